"""What a probe answered is kept: no process starts again until something that it was counted on changes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from fakes.plans import shape
from headway.errors import ModelError
from headway.facts import probing
from headway.facts.schema import ModelShape
from headway.facts.shape import OwnModel, probe_own, probe_shape

NET = """
import json, pathlib
from torch import nn
from widths import WIDTH
LAYERS = json.loads(pathlib.Path(__file__).with_name("layers.json").read_text())
def make(vocab):
    return nn.Sequential(nn.Embedding(vocab, WIDTH), *[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
"""


class Started(Exception):
    """A probe's process."""


def started(*_: object, **__: object) -> None:
    raise Started


def test_an_answer_holds_until_something_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One real probe; afterwards starting a process is an error, so that each question shows whether one starts."""
    code, kept = tmp_path / "code", tmp_path / "cache"
    code.mkdir()
    files = {"net.py": NET, "widths.py": "WIDTH = 8\n", "layers.json": "3"}
    for name, text in files.items():
        (code / name).write_text(text)
    monkeypatch.setattr(probing, "CACHE", kept)

    def asked(vocab: int = 10) -> ModelShape:
        return probe_own(OwnModel("net:make", {}, vocab, 16, (str(code),)))

    first = asked()
    assert first.parameters == 10 * 8 + 3 * (8 * 8 + 8)
    monkeypatch.setattr(subprocess, "run", started)
    assert asked() == first
    for name, text in files.items():  # the module, what it imports, what it reads
        (code / name).write_text(text + " ")
        with pytest.raises(Started):
            asked()
        (code / name).write_text(text)
        assert asked() == first
    with pytest.raises(Started):
        asked(vocab=11)
    monkeypatch.setattr(probing, "_version", lambda package: f"another {package}")
    with pytest.raises(Started):
        asked()
    monkeypatch.undo()

    monkeypatch.setattr(probing, "CACHE", kept)
    monkeypatch.setattr(subprocess, "run", started)
    (file,) = kept.iterdir()
    whole = file.read_text()
    altered = json.loads(whole)
    altered["answer"] = altered["answer"].replace('"layers":1', '"layers":7')
    for torn in ("", whole[: len(whole) // 2], "[]", json.dumps(altered)):
        file.write_text(torn)
        with pytest.raises(Started):
            asked()
    file.write_text(whole)
    (code / "widths.py").unlink()
    with pytest.raises(Started):
        asked()


def test_a_fault_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], ModelError.exit_code, "", "no such thing")
    )
    with pytest.raises(ModelError, match="no such thing"):
        probe_shape({"model_type": "unheard-of"})
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    answer = shape(1_000_000)
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, answer.model_dump_json(), "")
    )
    for folder in (tmp_path / "file" / "below", Path("~nobody-of-this-name/cache")):
        monkeypatch.setattr(probing, "CACHE", folder)
        assert probe_shape({"model_type": "unheard-of"}) == answer
