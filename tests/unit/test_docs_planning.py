"""The commands of docs/planning.md that need no run of one's own are run, and its figures are what they print."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import main
from headway.facts.clusterfile import read_cluster

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^headway (plan --model examples/.*)$", TEXT, re.MULTILINE)


def answer(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(ROOT)
    assert main([*shlex.split(command), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_ten_billion_parameters(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer(EXAMPLES[0], capsys, monkeypatch)
    parameters = found["plan"]["shape"]["parameters"]
    assert f"{12 * parameters / 1e9:.0f} GB" in TEXT
    families = {each["family"]: each for each in found["outlook"]["candidates"]}
    assert not families["ddp"]["fits"]
    assert families["zero-2"]["fits"]
    for family in ("ddp", "zero-1"):
        assert f"{families[family]['forecast']['device_bytes'] / 2**30:.0f}" in TEXT
    assert found["outlook"]["smallest"]["devices"] == 2


def test_billions_on_one_v100(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer(EXAMPLES[1], capsys, monkeypatch)
    assert found["plan"]["shape"]["parameters"] == pytest.approx(4.2e9, rel=0.02)
    forecast = found["outlook"]["forecast"]
    assert forecast["fits"]
    assert found["plan"]["strategy"]["offload_optimizer"]
    assert f"{forecast['device_bytes'] / 2**30:.1f} of {forecast['limit_bytes'] / 2**30:.1f} GiB" in TEXT
    assert forecast["tokens_per_second"] == pytest.approx(1800, rel=0.1)


def test_the_cluster_file_can_be_read(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    path = tmp_path / "lab.yaml"
    path.write_text(block)
    assert read_cluster(path).machine().devices == 32


def test_every_option_that_it_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert set(re.findall(r"--[a-z-]+", "".join(re.findall(r"`[^`\n]*`", TEXT)))) <= known
