"""The help of every verb, and what it loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headway.cli.main import main
from headway.cli.verbs import VERBS

HEAVY = {"torch", "transformers", "deepspeed", "pydantic", "numpy", "rich", "ruamel", "ruamel.yaml"}
NAMES = [verb.name for verb in VERBS]


def test_the_page_lists_every_verb_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    for asked in ([], ["--help"], ["-h"], ["help"]):
        assert main(asked) == 0
        upper, lower = capsys.readouterr().out.split("more:")
        for verb in VERBS:
            assert f"  {verb.name} " in (lower if verb.more else upper)
    assert {verb.name for verb in VERBS if not verb.more} == {
        *("init", "plan", "train", "resume", "show", "export", "certify", "doctor")
    }
    assert {verb.name for verb in VERBS if verb.more} == {
        "calibrate",
        "stop",
        "generate",
        "evaluate",
        "launch",
        "data build",
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_verb_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert f"usage: headway {name}" in out
    assert f"example:\n  headway {name}" in out


@pytest.mark.parametrize("name", ["plan", "show", "export", "generate", "data build"])
def test_what_a_script_would_read_comes_as_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([*name.split(), "--help"])
    assert "--json" in capsys.readouterr().out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headway ")


def test_help_loads_nothing_heavy() -> None:
    code = f"""
import sys
from headway.cli.main import main
for name in {NAMES!r}:
    main([*name.split(), "--help"])
main(["--help"])
print("LOADED", *sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=120)
    assert HEAVY & set(done.stdout.partition("LOADED")[2].split()) == set()


def test_run_files_are_read_without_torch() -> None:
    code = """
import sys
from pathlib import Path
from headway.config.load import load_text
from headway.config.starter import STARTER
load_text(STARTER, Path("run.yaml"), ["train.length=500 steps"])
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=120)
    assert {"torch", "transformers", "deepspeed", "rich"} & set(done.stdout.split()) == set()


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = [sys.executable, "-m", "headway.cli.main", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (141, b"")
