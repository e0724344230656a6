"""Damaged checkpoints, a plan changed by hand, a full disk: named, never passed over in silence."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.runs import ACCUMULATION, EVERY, STEPS, Run, Straight, Workplace, run_file
from headway.errors import CheckpointError, ExportError, PlanError, RunDiffers
from headway.plan.files import write_plan
from headway.run.paths import list_runs

pytestmark = [pytest.mark.faults, pytest.mark.distributed, pytest.mark.timeout(900)]

LAST_STEP = {"micro_batch": (STEPS - 1) * ACCUMULATION}
OLDER, NEWEST = f"step-{EVERY:08d}", f"step-{2 * EVERY:08d}"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("damage"))


@pytest.fixture(scope="module")
def straight(workplace: Workplace) -> Straight:
    return Straight(workplace)


@pytest.fixture(scope="module")
def killed(workplace: Workplace) -> Run:
    """Killed in its last step: two checkpoints stand. Tests take copies."""
    watch = workplace.watch("killed")
    watch.plant("kill", **LAST_STEP)
    run = workplace.train("killed", run_file("ddp", task=watch.task), code=5)
    watch.heal()
    assert run.checkpoints() == [OLDER, NEWEST]
    return run


def flip(path: Path) -> None:
    """One bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def tensors(run: Run, checkpoint: str) -> Path:
    return run.dir.checkpoints / checkpoint / "rank-00001-part-000.safetensors"


def test_a_damaged_newest_checkpoint_is_named_and_the_older_one_taken(
    killed: Run, workplace: Workplace, straight: Straight
) -> None:
    run = killed.copy("flipped")
    flip(tensors(run, NEWEST))
    ended = workplace.headway("resume", run.path).expect(0)
    warnings = " ".join(event["text"] for event in run.events("warning"))
    assert f"{NEWEST} is damaged and is passed over: {tensors(run, NEWEST).name} has checksum" in warnings
    assert f"{NEWEST} is damaged" in ended.out
    assert run.events("resumed")[-1]["checkpoint"] == OLDER
    assert run.losses() == straight["ddp"].losses()
    assert run.state() == straight["ddp"].state()


def test_without_a_sound_checkpoint_nothing_starts(killed: Run, workplace: Workplace) -> None:
    run = killed.copy("all-flipped")
    flip(tensors(run, NEWEST))
    flip(tensors(run, OLDER))
    ended = workplace.headway("resume", run.path).expect(CheckpointError.exit_code)
    assert NEWEST in ended.err
    assert OLDER in ended.err
    assert "Traceback" not in ended.err
    assert run.losses() == killed.losses()


def test_a_run_killed_before_its_first_checkpoint_does_not_begin_again_in_silence(workplace: Workplace) -> None:
    watch = workplace.watch("early")
    watch.plant("kill", micro_batch=2)
    run = workplace.train("early", run_file("ddp", task=watch.task), code=5)
    watch.heal()
    ended = workplace.headway("resume", run.path).expect(CheckpointError.exit_code)
    assert "no complete checkpoint" in ended.err
    assert "headway train" in ended.err
    assert list(run.losses()) == [1]


def test_a_plan_changed_by_hand_is_refused(killed: Run, workplace: Workplace) -> None:
    run = killed.copy("edited")
    text = run.dir.plan.read_text()
    run.dir.plan.write_text(text.replace('"peak_lr": 0.01', '"peak_lr": 0.02'))
    assert run.dir.plan.read_text() != text
    ended = workplace.headway("resume", run.path).expect(PlanError.exit_code)
    assert "plan.json was changed by hand" in ended.err
    assert "fix:" in ended.err
    assert run.losses() == killed.losses()


def test_what_the_checkpoint_depends_on_cannot_change(killed: Run, workplace: Workplace) -> None:
    run = killed.copy("other-batch")
    before = run.dir.plan.read_text()
    words = ["train.global_batch=4 sequences", "train.seed=1"]
    ended = workplace.headway("resume", run.path, *words).expect(PlanError.exit_code)
    for key in ("batch.global_sequences", "numerics.seed"):
        assert key in ended.err
    assert run.dir.plan.read_text() == before


def test_a_run_that_did_not_go_as_planned_says_so(killed: Run, workplace: Workplace) -> None:
    """A plan of more tokens than there will be, as if the planner had counted wrong. The weights are saved first."""
    run = killed.copy("differs")
    plan = run.plan()
    schedule = plan.schedule.model_copy(update={"tokens": plan.schedule.tokens + 10_000})
    write_plan(plan.model_copy(update={"schedule": schedule}), run.dir.plan)
    ended = workplace.headway("resume", run.path).expect(RunDiffers.exit_code)
    planned = f"tokens: planned {schedule.tokens}, read "
    assert f"NOT AS PLANNED: {planned}" in ended.out
    assert planned in ended.err
    assert run.events("done")[-1]["differences"][0].startswith(planned)
    assert run.checkpoints()[-1] == f"step-{STEPS:08d}"


def test_an_export_that_failed_is_made_by_a_resume(workplace: Workplace, straight: Straight) -> None:
    """Somebody's files lie where the model is to go. The weights are safe by then, and no step is trained again."""
    watch = workplace.watch("in-the-way")
    watch.plant("hold")

    def put_in_the_way() -> None:
        folder = workplace.run("in-the-way").dir.export
        folder.mkdir()
        (folder / "thesis.txt").write_text("mine")
        watch.let_go()

    path = workplace.write("in-the-way", run_file("ddp", task=watch.task, export={"at_end": True}))
    with watch.when_held(put_in_the_way):
        ended = workplace.headway("train", path, "--name", "in-the-way").expect(ExportError.exit_code)
    run = workplace.run("in-the-way")
    assert "no export of Headway" in ended.err
    assert "Traceback" not in ended.err
    assert (run.dir.export / "thesis.txt").read_text() == "mine"
    assert run.state() == straight["ddp"].state()

    (run.dir.export / "thesis.txt").rename(run.path / "thesis.txt")
    lines = len(run.dir.metrics.read_text().splitlines())
    workplace.headway("resume", run.path).expect(0)
    assert len(run.dir.metrics.read_text().splitlines()) == lines == STEPS
    assert run.events("export")[-1]["verified"] is True
    assert run.events("done")[-1]["differences"] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB for the runs."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True, timeout=60)


def run_on(disk: Path) -> Run:
    return Run(list_runs(disk)[-1])


def leave_free(disk: Path, free_bytes: int) -> Path:
    """A file of somebody else's that fills the disk up to `free_bytes`."""
    filler = disk / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(disk).free - free_bytes))
    return filler


@pytest.mark.parametrize(
    ("when", "share", "said"),
    [
        ("whole", 0.0, "is full (0 B free)"),  # not even a line of the log can be written
        ("before", 0.5, f"no room for the checkpoint of step {2 * EVERY}"),
        ("during", 1.05, f"no room for {NEWEST}/"),
    ],
)
def test_a_disk_that_fills_up(
    when: str, share: float, said: str, small_disk: Path, workplace: Workplace, straight: Straight
) -> None:
    """Room for nothing, for half of what is expected, or for that but not for what is written beside the tensors."""
    name = f"full-{when}"
    watch = workplace.watch(name)
    watch.plant("hold")
    fillers: list[Path] = []

    def fill() -> None:
        expected_bytes = 12 * run_on(small_disk).plan().shape.parameters
        fillers.append(leave_free(small_disk, int(share * expected_bytes)))
        watch.let_go()

    path = workplace.write(name, run_file("ddp", task=watch.task) | {"runs": str(small_disk)})
    with watch.when_held(fill):
        ended = workplace.headway("train", path, "--name", name).expect(CheckpointError.exit_code)
    run = run_on(small_disk)
    assert f"saving the checkpoint of step {2 * EVERY} failed" in ended.err
    assert said in ended.err
    assert "Traceback" not in ended.err
    assert run.checkpoints() == [OLDER]

    fillers[0].unlink()
    watch.heal()
    workplace.headway("resume", run.path).expect(0)
    assert run.events("resumed")[-1]["checkpoint"] == OLDER
    assert run.losses() == straight["ddp"].losses()
    assert run.state() == straight["ddp"].state()
