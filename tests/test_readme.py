"""A newcomer's walk: the README's run file and commands, in order, in an empty folder with a space in its name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEADWAY = Path(sys.executable).with_name("headway")
FENCE = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
# The walk is of the words, not of the hours: the README's own lengths would take minutes.
SHORTER = {"train": "train.length='8 steps'", "resume": "train.length='10 steps'"}


def fences(readme: str, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall((ROOT / readme).read_text(encoding="utf-8")) if kind == language]


def commands(readme: str) -> list[str]:
    return [line for block in fences(readme, "sh") for line in block.splitlines() if line.startswith("headway ")]


def shortened(command: str) -> str:
    verb = command.split()[1]
    if verb not in SHORTER:
        return command
    kept = re.sub(r" train\.length='[^']*'", "", command)
    return f"{kept} {SHORTER[verb]}"


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(600)
def test_the_readme_can_be_followed(tmp_path: Path) -> None:
    folder = tmp_path / "a new folder"
    corpus = folder / "corpus" / "books"
    corpus.mkdir(parents=True)
    for number in range(60):
        text = "".join(
            f"Once upon a time, in the year {number * 37 + line}, {line} ships set sail.\n" for line in range(40)
        )
        (corpus / f"book-{number}.txt").write_text(text)
    (folder / "run.yaml").write_text(fences("README.md", "yaml")[0])
    walked = commands("README.md")
    assert len(walked) >= 8, "the README lost its commands"
    for command in walked:
        line = shortened(command).replace("headway", f"'{HEADWAY}'", 1)
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, command


def test_the_chinese_readme_shows_the_same_commands_and_run_file() -> None:
    assert commands("README.zh-CN.md") == commands("README.md")
    assert fences("README.zh-CN.md", "yaml") == fences("README.md", "yaml")


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(readme: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / readme).read_text(encoding="utf-8"))
    absent = [target for target in targets if "://" not in target and not (ROOT / target).exists()]
    assert not absent


def test_the_run_file_for_beginners_is_short() -> None:
    assert len(fences("README.md", "yaml")[0].splitlines()) <= 12
