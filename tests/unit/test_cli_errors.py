"""Bad input: one message with its fix, no traceback, the right exit code."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.errors import CheckFailed, ExportError, HeadwayError, Problem, Stopped, UserError, WorkerFailed


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADWAY_TRACEBACK", raising=False)
    monkeypatch.setattr("headway.launch.local.warm_up", lambda: None)  # no ranks will be needed


@pytest.mark.parametrize(
    ("arguments", "expected", "fix"),
    [
        (["trian", "run.yaml"], "there is no verb 'trian'", "did you mean `headway train`?"),
        (["data"], "there is no verb 'data'", "did you mean `headway data build`?"),
        (["data", "biuld"], "there is no verb 'data'", "did you mean `headway data build`?"),
        (["xyzzy"], "there is no verb 'xyzzy'", "`headway --help` lists them"),
        (["train"], "headway train: the following arguments are required: RUN_FILE", "see headway train --help"),
        (["train", "a.yaml", "b.yaml"], "takes no 'b.yaml'", "see headway train --help"),
        (["train", "a.yaml", "--plian"], "takes no '--plian'", "did you mean --plain?"),
        (["plan", "a.yaml", "--force", "disk"], "takes no '--force disk'", "--force belongs to headway init, train"),
        (["plan", "a.yaml", "--set"], "expected one argument", "see headway plan --help"),
        (["export", "run", "--step", "five"], "invalid int value: 'five'", "see headway export --help"),
        (["export", "train.length=5"], "there is no run in runs", "headway train"),
        (["show", "a", "b", "c"], "show compares two runs", "name two"),
        (["show", "a", "b", "--logs"], "take one run", "name one"),
        (["show", "nothing"], "there is no run in runs", "headway train run.yaml"),
        (["show", "--logs"], "there is no run in runs", "headway train run.yaml"),
        (["resume"], "there is no run in runs", "headway train run.yaml"),
        (["stop"], "there is no run in runs", "headway train run.yaml"),
        (["plan", "absent.yaml"], "there is no file absent.yaml", "`headway init` writes a starter file"),
        (["train", "absent.yaml", "--plain"], "there is no file absent.yaml", "`headway init` writes a starter file"),
        (["data", "build", "absent.yaml", "--plain"], "there is no file absent.yaml", "`headway init`"),
        (["init", "no/such/folder/run.yaml"], "cannot be written: No such file or directory", ""),
        (["plan", "run.yaml", "train.lenght=5 steps"], "--set: train.lenght", "write train.length"),
        (["plan", "train.lenght=5 steps", "run.yaml"], "--set: train.lenght", "write train.length"),
        (["train", "train.length=5 steps"], "the following arguments are required: RUN_FILE", "see headway train"),
        (["certify", "run.yaml", "--claims", "a"], "'a' is no list of claims, such as 1,4", "see headway certify"),
        (["certify", "run.yaml", "--claims", "9"], "there is no claim 9", "from 1 to 8"),
        (["show", "n" * 300], "there is no run in runs", "headway train run.yaml"),
        (["show", "--rank", "1"], "--rank has no effect on headway show", "--logs --rank"),
        (["show", "--plain", "--logs"], "--plain has no effect on headway show --logs", "--follow --plain"),
        (["show", "--logs", "--json"], "--json has no effect on headway show --logs", "without --json"),
        (["show", "--logs", "--follow"], "two things to do", "give one"),
        (["plan", "run.yaml", "train.seed=-1"], "train.seed = -1: must be at least 0", ""),
        (["plan", "run.yaml", "launch.timeout=1e12 h"], "longer than three centuries", "10 min"),
    ],
)
def test_bad_input(arguments: list[str], expected: str, fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "run.yaml" in arguments:
        assert main(["init"]) == 0
        capsys.readouterr()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: ")
    assert expected in err
    assert fix in err
    assert "Traceback" not in out + err
    assert not Path("cache").exists()


def test_a_starter_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "mine.yaml"]) == 0
    Path("mine.yaml").write_text("mine")
    assert main(["init", "mine.yaml"]) == 2
    assert "pass --force" in capsys.readouterr().err
    assert Path("mine.yaml").read_text() == "mine"
    assert main(["init", "mine.yaml", "--force"]) == 0
    assert Path("mine.yaml").read_text() != "mine"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UserError(problems=[Problem("a.b", "is wrong", 5, "write 6", "run.yaml:3")]), 2, "error: run.yaml:3: a.b = 5"),
        (CheckFailed("disk: full", fix="free some"), 4, "error: disk: full\n    fix: free some"),
        (WorkerFailed("rank 1 failed first"), 5, "error: rank 1 failed first"),
        (ExportError("differs"), 7, "error: differs"),
        (HeadwayError(), 1, "error: HeadwayError"),
        (OSError(28, "No space left on device", "runs/a"), 1, "error: runs/a: No space left on device\n    fix: free"),
        (PermissionError(13, "Permission denied", "runs"), 1, "error: runs: Permission denied\n    fix: use a folder"),
        (Stopped("stopped and saved"), 75, "stopped and saved"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_exit_codes_are_the_errors(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("headway.api.runs", fail)
    assert main(["show"]) == code
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert "Traceback" not in err


def test_sigterm_is_heard_as_ctrl_c_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cleared: list[bool] = []

    def terminated(*_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            cleared.append(True)

    monkeypatch.setattr("headway.api.runs", terminated)
    assert main(["show"]) == 143
    assert capsys.readouterr().err == "ended by SIGTERM\n"
    assert cleared
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_the_unexpected_goes_to_a_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr("headway.api.runs", fail)
    monkeypatch.setattr("headway.api.stop", fail)
    assert main(["show"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: unexpected: ZeroDivisionError: by nought")
    assert "Traceback" not in err
    path = re.search(r"traceback is in (.*)", err)
    assert path is not None
    text = Path(path[1]).read_text()
    assert text.startswith("headway show\n")
    assert "raise ZeroDivisionError" in text
    Path("runs/x/logs").mkdir(parents=True)
    assert main(["stop", "runs/x"]) == 1
    assert "traceback is in runs/x/logs/headway-" in capsys.readouterr().err


def test_the_traceback_can_be_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HEADWAY_TRACEBACK", "1")
    assert main(["plan", "absent.yaml"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_without_a_place_to_write_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    Path("cache").write_text("a file in the way")
    monkeypatch.setattr("headway.api.runs", fail)
    assert main(["show"]) == 1
    assert "set HEADWAY_TRACEBACK=1" in capsys.readouterr().err


def test_a_run_is_found_below_the_root_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("else/mine").mkdir(parents=True)
    Path("else/mine/run.yaml").write_text("")
    for word in ("mine", "latest"):
        assert main(["show", "--root", "else", word, "--json"]) == 0
        assert '"name": "mine"' in capsys.readouterr().out
    assert main(["show", "mine"]) == 2


def test_a_file_of_a_sweep_may_have_an_equals_sign_in_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    Path("lr=1e-3.yaml").write_text("name: x\n")
    assert main(["plan", "lr=1e-3.yaml"]) == 2
    assert "model: is required" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-tokens", "0"), "max_tokens = 0: must be at least 1"),
        (("--temperature", "-1"), "temperature = -1.0: must be 0"),
        (("--temperature", "nan", "--seed", "-1"), "seed = -1: must be at least 0"),
        (("--prompt", "caf\udce9"), "prompt: is not UTF-8 text"),  # as Python hands on a byte of Latin-1
    ],
)
def test_what_cannot_be_drawn(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("model").mkdir()
    assert main(["generate", "model", "--prompt", "a", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert main(["evaluate", "model", "--limit", "0"]) == 2
    assert "limit = 0: must be at least 1" in capsys.readouterr().err


def test_a_plan_looks_at_the_text_that_was_not_built_yet(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.txt").write_bytes(b"one\ntwo \xff\n")
    main(["init"])
    capsys.readouterr()
    small = ["data={train: a.txt}", "launch={processes: 1}", "train.global_batch=2 sequences", "train.length=4 steps"]
    assert main(["plan", "run.yaml", *small]) == 4
    out = capsys.readouterr().out
    assert "red: text: byte 0xff at offset 8 is not utf-8 text" in out
    assert "\nnext" not in out


def test_closed_output_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert main(["show"]) == 0
    assert main(["show", "nothing"]) == 2
    for stream in (sys.stdout, sys.stderr):
        stream.close()
