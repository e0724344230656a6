"""What each verb asks of headway.api, and what it prints of the answer."""

from __future__ import annotations

import io
import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.plans import LAPTOP, SMALL, plan_of
from headway.api.outlooks import Inquiry
from headway.check.report import Report, Verdict, green, red
from headway.cli.main import main
from headway.cli.seam import ExportResult, Screen
from headway.cli.tables import print_json
from headway.config.reference import reference
from headway.config.starter import STARTER
from headway.plan.files import write_plan
from headway.plan.schedule import learning_rate
from headway.plan.schema import Plan
from headway.run.journal import Journal
from headway.run.lock import JobLock
from headway.run.paths import RunDir

PLAN = plan_of(SMALL, LAPTOP)
LOADED = SimpleNamespace(config=None)


class Calls:
    """Stands in for one function of the api and remembers how it was called."""

    def __init__(self, answer: Any):
        self.answer = answer
        self.positional: tuple[Any, ...] = ()
        self.named: dict[str, Any] = {}

    def __call__(self, *positional: Any, **named: Any) -> Any:
        self.positional, self.named = positional, named
        return self.answer


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, answer: Any) -> Calls:
    calls = Calls(answer)
    monkeypatch.setattr(f"headway.api.{name}", calls)
    return calls


def planned(*verdicts: Verdict) -> SimpleNamespace:
    return SimpleNamespace(plan=PLAN, report=Report(verdicts or (green("disk", "room"),)), loaded=LOADED)


def made_run(name: str, plan: Plan = PLAN, steps: int = 4) -> RunDir:
    """A finished run of `steps` steps as its files tell it."""
    run = RunDir(Path("runs") / name)
    run.log_folder.mkdir(parents=True)
    write_plan(plan, run.plan)
    run.logs(0).write_text("".join(f"line {n}\n" for n in range(50)))
    run.logs(1).write_text("the other rank\x1b[31m\n")
    with Journal(run.events) as events, Journal(run.metrics) as metrics:
        events.event("started", resume=False)
        for step in range(1, steps + 1):
            lr = learning_rate(plan.schedule, step)
            figures = {"loss": 5.0 - step / 10, "lr": lr, "tokens": step * 4096, "tokens_per_second": 12_345.0}
            metrics.append({"step": step, "time": 1e9 + step, "memory_peak_bytes": 2**29, **figures})
        events.event("evaluation", step=steps, loss=4.5, perplexity=90.0, bits_per_byte=2.5, gzip_bits_per_byte=2.4)
        events.event("done", steps=steps, tokens=steps * 4096, differences=[])
    return run


def test_init_writes_the_starter_and_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "mine.yaml"]) == 0
    assert Path("mine.yaml").read_text() == STARTER
    assert "headway plan mine.yaml" in capsys.readouterr().out
    assert main(["init", "--reference"]) == 0
    assert capsys.readouterr().out == reference()


def test_plan_prints_the_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls = stand_in(monkeypatch, "look_ahead", (planned(), None))
    assert main(["plan", "run.yaml", "train.seed=1", "--reasons", "--set", "name=x y", "train.compile=true"]) == 0
    overrides = ["train.seed=1", "train.compile=true", "name=x y"]
    assert calls.positional == (Inquiry(file=Path("run.yaml"), overrides=overrides),)
    out = capsys.readouterr().out
    for part in ("zero-2", "every reason", "checks: 1 of 1 are green", PLAN.reasons["strategy"]):
        assert part in out
    assert "headway train run.yaml train.seed=1 train.compile=true 'name=x y'" in out
    assert main(["plan", "run.yaml"]) == 0
    out = capsys.readouterr().out
    assert PLAN.reasons["strategy"] in out
    assert PLAN.reasons["launch.threads"] not in out


def test_plan_explains_one_value(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in(monkeypatch, "look_ahead", (planned(), None))
    assert main(["plan", "run.yaml", "--explain", "batch.micro_batch"]) == 0
    out = capsys.readouterr().out
    assert out == f"batch.micro_batch = 8\n    {PLAN.reasons['batch.micro_batch']}\n"


def test_plan_with_a_red_finding_ends_like_train_would(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, "look_ahead", (planned(red("disk", "full", "free some")), None))
    assert main(["plan", "run.yaml"]) == 4
    out = capsys.readouterr().out
    assert "red: disk: full" in out
    assert "headway train" not in out
    assert main(["plan", "run.yaml", "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["plan"] == PLAN.model_dump(mode="json")
    assert found["digest"] == PLAN.digest()
    assert found["checks"]["verdicts"][0]["fix"] == "free some"


def test_train_passes_everything_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = stand_in(monkeypatch, "train", Path("runs/x"))
    arguments = ["train", "run.yaml", "--plain", "a.b=1", "--name", "try", "--force", "disk", "--force", "gpu", "c.d=2"]
    assert main(arguments) == 0
    assert calls.positional == (Path("run.yaml"), ["a.b=1", "c.d=2"])
    assert (calls.named["name"], calls.named["force"]) == ("try", ["disk", "gpu"])
    for method in ("plan", "checks", "event", "metrics", "finish"):
        assert callable(getattr(calls.named["screen"], method))
    for method in ("start", "advance", "note"):
        assert callable(getattr(calls.named["report"], method))


def test_a_dry_run_prints_the_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls = stand_in(monkeypatch, "dry_run", (Path("runs/x"), "python -m headway.train.worker runs/x"))
    assert main(["train", "run.yaml", "--dry-run", "--force", "disk"]) == 0
    assert calls.positional == (Path("run.yaml"), [])
    assert (calls.named["name"], calls.named["force"]) == (None, ["disk"])
    assert capsys.readouterr().out.endswith("\npython -m headway.train.worker runs/x\n")


@pytest.mark.parametrize(
    ("arguments", "run", "overrides"),
    [
        ([], None, []),
        (["mine"], "mine", []),
        (["launch.processes=1"], None, ["launch.processes=1"]),
        (["mine", "launch.processes=1", "strategy=ddp"], "mine", ["launch.processes=1", "strategy=ddp"]),
        (["launch.processes=1", "strategy=ddp"], None, ["launch.processes=1", "strategy=ddp"]),
        (["--set", "launch.processes=1", "mine"], "mine", ["launch.processes=1"]),
    ],
)
def test_resume_tells_a_run_from_an_override(
    arguments: list[str], run: str | None, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, "plan_of", PLAN)
    calls = stand_in(monkeypatch, "resume", Path("runs/x"))
    assert main(["resume", "--plain", *arguments]) == 0
    assert calls.positional == (run, overrides)


def test_export_says_what_was_verified(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = ExportResult(Path("out"), 200, True, 2e-6, 3 * 2**20)
    calls = stand_in(monkeypatch, "export", result)
    assert main(["export", "mine", "--step", "200", "--out", "out"]) == 0
    assert (calls.positional, calls.named) == (("mine",), {"step": 200, "out": Path("out")})
    assert (
        "verified: plain transformers gives the same logits; the largest difference is 2e-06" in capsys.readouterr().out
    )
    result = ExportResult(tmp_path, 8, True, 0.0, compared="its own load.py gives the same losses")
    (tmp_path / "load.py").touch()
    stand_in(monkeypatch, "export", result)
    assert main(["export", "mine"]) == 0
    said = capsys.readouterr().out
    assert "verified: its own load.py gives the same losses" in said
    assert "headway generate" not in said
    assert main(["export", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**asdict(result), "path": str(tmp_path), "notices": []}


def test_generate_continues_the_prompt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls = stand_in(monkeypatch, "generate", " world\x1b[31m")
    stand_in(monkeypatch, "answers", False)
    assert main(["generate", "mine", "--prompt", "hello", "--max-tokens", "5", "--temperature", "0"]) == 0
    assert calls.positional == ("mine", "hello")
    assert calls.named == {"max_tokens": 5, "temperature": 0.0, "seed": 0}
    assert capsys.readouterr().out == "hello world\\u001b[31m\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert main(["generate", "mine", "--prompt", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"prompt": "from a pipe", "text": " world\x1b[31m"}


def test_stop_and_data_build(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    stopped = stand_in(monkeypatch, "stop", Path("runs/mine"))
    assert main(["stop"]) == 0
    assert stopped.positional == (None,)
    assert capsys.readouterr().out.startswith("mine will save and stop")
    built = stand_in(monkeypatch, "data_build", Path("store"))
    assert main(["data", "build", "run.yaml", "data.workers=1"]) == 0
    assert built.positional[:2] == (Path("run.yaml"), ["data.workers=1"])
    assert main(["data", "build", "run.yaml", "--json"]) == 0
    assert capsys.readouterr().out.endswith('{\n  "store": "store"\n}\n')


def test_show_lists_runs(capsys: pytest.CaptureFixture[str]) -> None:
    made_run("first-20260101-000000")
    made_run("second-20260102-000000")
    assert main(["show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["run", "state", "step", "loss"]
    assert [line.split()[0] for line in lines[1:]] == ["second-20260102-000000", "first-20260101-000000"]
    assert lines[1].split()[1:7] == ["done", "4/200", "4.6", "4.5", "16.4k", "zero-2"]
    assert main(["show", "--json", "--root", "runs"]) == 0
    assert [run["step"] for run in json.loads(capsys.readouterr().out)] == [4, 4]
    assert main(["show", "--root", "nowhere"]) == 0
    assert "no runs in nowhere" in capsys.readouterr().out


def test_show_tells_one_runs_story(capsys: pytest.CaptureFixture[str]) -> None:
    made_run("mine-20260101-000000")
    assert main(["show", "mine"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("mine-20260101-000000: done, step 4 of 200\n")
    rows = [line.split() for line in out.splitlines()]
    assert ["steps", "200", "4"] in rows
    rate = f"{learning_rate(PLAN.schedule, 4):.6g}"
    assert ["learning", "rate,", "step", "4", rate, rate] in rows
    assert "held out  " in out
    assert "loss 4.500  perplexity 90.00  bits per byte 2.50  (gzip -9: 2.4)  at step 4" in out
    assert out.rstrip().endswith("headway export mine-20260101-000000")
    assert main(["show", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 200


def test_a_learning_rate_off_the_plan_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run("mine-20260101-000000")
    with Journal(run.metrics) as metrics, Journal(run.events) as events:
        metrics.append({"step": 5, "time": 1e9, "lr": 1.0})
        events.event("done", steps=5, tokens=1, differences=["tokens: planned 2, read 1"])
    assert main(["show", "mine"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[-1] for row in rows if row[:1] in (["tokens"], ["learning"])] == ["DIFFERS", "DIFFERS"]


def test_a_damaged_plan_does_not_hide_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run("mine-20260101-000000")
    run.plan.write_text("{")
    assert main(["show", "mine"]) == 0
    out, err = capsys.readouterr()
    assert "step 4" in out
    assert err.startswith("the plan cannot be read")


def test_show_compares_two(capsys: pytest.CaptureFixture[str]) -> None:
    made_run("one-20260101-000000")
    made_run("two-20260101-000000", plan_of(SMALL, LAPTOP, "optimizer.lr=1e-3"), steps=3)
    assert main(["show", "one", "two"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["optimizer.peak_lr", "0.0006", "0.001"] in rows or ["schedule.peak_lr", "0.0006", "0.001"] in rows
    assert ["loss", "4.6", "4.7"] in rows
    assert main(["show", "one", "two", "--json"]) == 0
    assert {"a", "b", "differences"} <= set(json.loads(capsys.readouterr().out))


def test_logs_are_each_ranks_last_lines_or_all_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    made_run("mine-20260101-000000")
    assert main(["show", "mine", "--logs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "line 19" not in lines
    assert lines[lines.index("line 20") + 29] == "line 49"
    assert lines[-1] == "the other rank\\u001b[31m"
    assert main(["show", "mine", "--logs", "--rank", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "line 0"
    assert main(["show", "--logs", "--rank", "7"]) == 2
    assert "ranks with a log: 0, 1" in capsys.readouterr().err


def test_following_a_run_that_has_ended_tells_it_from_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    made_run("mine-20260101-000000")
    assert main(["show", "mine", "--follow", "--plain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    steps = [line.split("  ")[0] for line in lines if line.startswith("step") and "lr" in line]
    assert steps == ["step 1/200", "step 2/200", "step 3/200", "step 4/200"]
    assert "mine-20260101-000000: done, step 4 of 200" in lines


def test_leaving_the_display_leaves_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run("mine-20260101-000000")

    def follow(_: str, screen: Screen) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headway.api.follow", follow)
    assert main(["show", "--follow", "--plain"]) == 0
    assert "no longer following; mine-20260101-000000 goes on" in capsys.readouterr().out


def test_stop_says_so_where_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run("mine")
    assert main(["stop", "mine"]) == 2
    assert "mine is not running (it is done)" in capsys.readouterr().err
    assert not run.stop_request.exists()
    with JobLock(run):
        assert main(["stop", "mine"]) == 0
    assert run.stop_request.exists()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_json_is_json_whatever_the_figures_and_the_terminal(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
    monkeypatch.setattr("sys.stdout", stream)
    print_json({"loss": float("nan"), "paths": [Path("café"), float("-inf")]})
    stream.flush()
    text = stream.buffer.getvalue().decode(encoding)
    assert json.loads(text, parse_constant=pytest.fail) == {"loss": "NaN", "paths": ["café", "-Infinity"]}
