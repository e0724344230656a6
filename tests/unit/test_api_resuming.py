"""Changing a run's plan at a resume: what stays in force, what is refused, and that nothing is half done. No ranks."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from fakes.plans import LAPTOP, SMALL, plan_of
from headway.api import preparing, resuming, running
from headway.api.differing import differences
from headway.cli.plain import PlainScreen
from headway.errors import CheckFailed, ConfigError, PlanError, UserError
from headway.plan.files import read_plan
from headway.plan.schema import Plan
from headway.run.lock import JobLock, this_process
from headway.run.paths import RunDir
from headway.run.record import read_record

RUN = """\
model:  {config: {arch: llama, hidden: 32, layers: 2, heads: 2}, tokenizer: {train: 300}}
data:   {train: ["corpus/*.txt"], eval: 20%}
train:  {length: 4 steps, sequence: 32, global_batch: 4 sequences}
optimizer: {lr: 1e-3}
launch: {processes: 2, device: cpu}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run that stands at step 3, as its files tell it."""
    (tmp_path / "corpus").mkdir()
    for number in range(12):
        (tmp_path / "corpus" / f"{number}.txt").write_text(f"chapter {number}: " + "the wind rose and fell. " * 30)
    (tmp_path / "run.yaml").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    planned = preparing.planned(Path("run.yaml"), ["optimizer.clip=0.5"], build=True, name="mine")
    run = running.make_run(planned, None)
    folder = run.checkpoints / "step-00000003"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    manifest = {"step": 3, "serial": 1, "time": 0.0, "files": [{"name": "state.json", "size_bytes": 2}]}
    (folder / "manifest.json").write_text(json.dumps({"manifest": manifest}))
    return run


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans of the ranks that would have been started."""
    plans: list[Plan] = []

    def run_here(run: RunDir, plan: Plan, screen: object, *, resume: bool) -> Path:
        assert resume
        plans.append(plan)
        return run.path

    monkeypatch.setattr(running, "run_here", run_here)
    return plans


def resume(run: RunDir, *overrides: str, force: tuple[str, ...] = ()) -> None:
    resuming.resume(run.path, overrides, screen=PlainScreen(), force=force)


def test_what_one_resume_changed_is_still_in_force_at_the_next(
    run: RunDir, started: list[Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    resume(run, "train.length=9 steps")
    assert "note: the plan changed at this resume: schedule.steps: 4 -> 9\n" in capsys.readouterr().out
    resume(run, "launch.processes=1")
    assert "the plan changed at this resume: launch.processes: 2 -> 1\n" in capsys.readouterr().out
    assert [(plan.schedule.steps, plan.launch.processes) for plan in started] == [(9, 2), (9, 1)]
    assert {(plan.name, plan.optimizer.clip) for plan in started} == {("mine", 0.5)}
    record = read_record(run)
    assert record["run_file"]["overrides"] == ["optimizer.clip=0.5", "train.length=9 steps", "launch.processes=1"]
    assert record["plan"]["digest"] == started[-1].digest() == read_plan(run.plan).digest()
    assert {read_plan(run.path / f"plan-{n}.json").schedule.steps for n in (1, 2)} == {4, 9}


def test_a_run_cannot_be_made_to_end_before_where_it_stands(run: RunDir, started: list[Plan]) -> None:
    before = run.plan.read_bytes()
    with pytest.raises(PlanError, match=r"train\.length: would end after 2 steps, and the run stands at 3"):
        resume(run, "train.length=2 steps")
    assert run.plan.read_bytes() == before
    assert not started
    resume(run, "train.length=3 steps")
    assert started[0].schedule.steps == 3


@pytest.mark.parametrize(
    "override",
    ["data.eval=30%", "data.train=run.yaml", "model.tokenizer.train=400", "data.packing=false", "optimizer.momentum=0"],
)
def test_what_the_checkpoint_depends_on_is_refused_and_not_ignored(
    run: RunDir, started: list[Plan], override: str
) -> None:
    with pytest.raises(PlanError, match="cannot change at a resume") as caught:
        resume(run, override)
    assert override.partition("=")[0] in str(caught.value).replace("tokenizer =", "tokenizer.train =")
    assert not started


def test_a_run_that_goes_on_keeps_its_plan(run: RunDir, started: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    before = run.plan.read_bytes()
    someone = this_process()
    with JobLock(run):
        monkeypatch.setattr("headway.run.lock.this_process", lambda: type(someone)(**{**vars(someone), "pid": 1}))
        with pytest.raises(UserError, match="is in use by process"):
            resume(run, "train.length=9 steps")
        shutil.rmtree(run.checkpoints)  # one that has saved nothing yet is no less busy
        with pytest.raises(UserError, match="is in use by process"):
            resume(run)
    assert run.plan.read_bytes() == before
    assert not list(run.path.glob("plan-*.json"))
    assert not started


def test_data_that_has_gone_is_missed_before_the_ranks_start(run: RunDir, started: list[Plan]) -> None:
    store = Path(read_plan(run.plan).data.store)
    store.rename(store.with_name("elsewhere"))
    with pytest.raises(CheckFailed, match="there is no token store at"):
        resume(run)
    assert not started
    store.with_name("elsewhere").rename(store)
    resume(run)
    assert len(started) == 1


def test_a_plan_that_was_edited_can_be_had_back_from_a_checkpoint(run: RunDir, started: list[Plan]) -> None:
    whole = run.plan.read_text()
    (run.checkpoints / "step-00000003" / "plan.json").write_text(whole)
    run.plan.write_text(whole.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(PlanError, match="was changed by hand") as caught:
        resume(run)
    (command,) = (line for line in str(caught.value).splitlines() if "fix: cp " in line)
    subprocess.run(command.partition("fix: ")[2].partition("   (")[0], shell=True, check=True)
    resume(run)
    assert len(started) == 1


def test_a_mistyped_check_is_not_passed_in_silence(run: RunDir, started: list[Plan]) -> None:
    with pytest.raises(UserError, match="is no check; did you mean memory"):
        resume(run, "train.length=9 steps", force=("memry",))
    with pytest.raises(UserError, match="is no check"):
        preparing.planned(Path("run.yaml"), [], build=True, force=("memry",))
    assert not started


def test_a_finding_of_the_ranks_can_be_passed_at_a_resume_and_stays_passed(
    run: RunDir, started: list[Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    resume(run, force=("live-clip", "live-clip"))
    assert "passed by --force at this resume: live-clip\n" in capsys.readouterr().out
    assert started[0].forced == read_plan(run.plan).forced == ("live-clip",)
    assert read_record(run)["plan"]["forced"] == ["live-clip"]
    assert read_plan(run.path / "plan-1.json").forced == ()
    resume(run, force=("live-clip",))  # nothing new: the plan stays as it is
    assert not (run.path / "plan-2.json").exists()
    resume(run, "train.length=9 steps", force=("live-stage",))
    assert started[-1].forced == ("live-clip", "live-stage")


def test_a_forced_finding_is_passed_said_and_written_into_the_plan(run: RunDir) -> None:
    shutil.rmtree(read_plan(run.plan).data.store)
    loaded = preparing.load(Path("run.yaml"), [])
    planned = preparing.judged(read_plan(run.plan), loaded, run.path, ("data", "memory"))
    assert planned.plan.forced == ("data",)
    assert [v.level for v in planned.report.verdicts if v.name == "data"] == ["yellow"]
    planned.report.raise_if_red()


def test_differences_are_what_was_decided_otherwise() -> None:
    old = plan_of(SMALL, LAPTOP)
    assert differences(old, old) == []
    new = plan_of(SMALL, LAPTOP, "launch.processes=1", "strategy=zero-3")
    found = {key: (left, right) for key, left, right in differences(old, new)}
    assert found["launch.processes"] == (2, 1)
    assert found["strategy.stage"] == (2, 3)
    assert not [key for key in found if key.startswith(("schedule.", "memory.", "reasons."))]


def test_a_run_without_its_run_file_says_how_to_get_it_back(run: RunDir, started: list[Plan]) -> None:
    run.config.unlink()
    with pytest.raises(ConfigError, match=r"fix: if nothing .* cp .*/run\.yaml .*/run\.yaml"):
        resuming.resume(run.path, ["train.log_every=2"], screen=PlainScreen(), force=())
    resuming.resume(run.path, [], screen=PlainScreen(), force=())  # the plan stands
    assert len(started) == 1


def test_half_a_run_directory_is_not_left(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = list(run.path.parent.iterdir())
    planned = preparing.planned(Path("run.yaml"), [], build=True)
    monkeypatch.setattr(running, "write_record", full)
    with pytest.raises(OSError, match="No space left"):
        running.make_run(planned, None)
    assert list(run.path.parent.iterdir()) == before


def test_folders_of_the_run_file_may_begin_at_home(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path.cwd() / "home"
    monkeypatch.setenv("HOME", str(home))
    planned = preparing.planned(Path("run.yaml"), ["data.cache=~/cache", "runs=~/runs"], build=True)
    assert planned.plan.data.store.startswith(str(home / "cache"))
    assert running.make_run(planned, None).path.parent == home / "runs"
