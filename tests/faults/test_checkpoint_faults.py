"""Damage, kills, full disks and second processes: what stands is found, what is broken is named, nothing is lost."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.checkpoints import assert_holds, contents, make_state, open_newest, run_ranks, save, save_job
from headway.checkpoint.load import checkpoint_at, newest_complete
from headway.checkpoint.reader import state_hash
from headway.checkpoint.save import save_checkpoint
from headway.checkpoint.store import LocalStore
from headway.errors import CheckpointError, UserError
from headway.run.journal import Journal, read
from headway.run.lock import JobLock, live_holder
from headway.run.paths import RunDir
from headway.track.fanout import make_trackers

pytestmark = pytest.mark.faults

TESTS = Path(__file__).parents[1]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (truncate, r"has \d+ bytes, \d+ were written"),
    "flipped bit": (flip_bit, r"has checksum [0-9a-f]{8}, [0-9a-f]{8} was written"),
    "empty": (empty, r"has 0 bytes, \d+ were written"),
    "absent": (remove, "is absent"),
}
FILES = ["rank-00000-part-001.safetensors", "rank-00001-part-000.safetensors", "rank-00001.json", "state.json"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of steps 1 and 2 by two ranks."""
    folder = tmp_path_factory.mktemp("saved")
    for step in (1, 2):
        state = make_state(step)
        run_ranks(
            2,
            lambda ranks, step=step, state=state: save_checkpoint(
                LocalStore(folder), save_job(step, state, ranks, part_bytes=512), ranks
            ),
        )
    return folder


@pytest.fixture
def store(saved: Path, tmp_path: Path) -> LocalStore:
    shutil.copytree(saved, tmp_path / "checkpoints")
    return LocalStore(tmp_path / "checkpoints")


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_damage_in_the_newest_is_named_and_the_older_one_is_used(store: LocalStore, damage: str, file: str) -> None:
    break_it, message = DAMAGE[damage]
    break_it(store.root / "step-00000002" / file)
    ref = newest_complete(store)
    assert ref.step == 1
    assert len(ref.notices) == 1
    assert ref.notices[0].startswith("step-00000002 is damaged and is passed over: ")
    with pytest.raises(CheckpointError, match=rf"{file} {message}"):
        checkpoint_at(store, 2)
    assert_holds(open_newest(store), make_state(1))


@pytest.mark.parametrize("break_it", [truncate, flip_bit, empty])
def test_a_damaged_manifest_is_named(store: LocalStore, break_it: Callable[[Path], None]) -> None:
    break_it(store.root / "step-00000002" / "manifest.json")
    ref = newest_complete(store)
    assert ref.step == 1
    assert "step-00000002/manifest.json" in ref.notices[0]


def test_every_single_bit_of_a_manifest_counts(store: LocalStore) -> None:
    path = store.root / "step-00000002" / "manifest.json"
    whole = path.read_bytes()
    for position in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert newest_complete(store).step == 1, whole[position : position + 20]


def test_sizes_alone_miss_a_flipped_bit_in_tensors_but_not_in_json(store: LocalStore) -> None:
    """What the cheaper check promises, no more."""
    flip_bit(store.root / "step-00000002" / FILES[0])
    assert newest_complete(store, verify="sizes").step == 2
    assert newest_complete(store, verify="full").step == 1
    flip_bit(store.root / "step-00000002" / "rank-00000.json")
    assert newest_complete(store, verify="sizes").step == 1


def test_when_all_are_damaged_each_is_named_and_step_0_is_never_taken(store: LocalStore) -> None:
    truncate(store.root / "step-00000001" / FILES[0])
    remove(store.root / "step-00000002" / "manifest.json")
    with pytest.raises(CheckpointError) as caught:
        newest_complete(store)
    message = str(caught.value)
    assert "no complete and undamaged checkpoint is left" in message
    assert "step-00000002: is incomplete" in message
    assert f"step-00000001: is damaged and is passed over: {FILES[0]} has" in message
    assert "fix:" in message
    assert caught.value.exit_code == 6


def test_training_goes_on_after_damage(store: LocalStore) -> None:
    truncate(store.root / "step-00000002" / FILES[0])
    save(store, 2)
    assert newest_complete(store).name == "step-00000002-2"


def test_a_file_that_vanishes_while_it_is_read_is_a_clear_error(store: LocalStore) -> None:
    reader = open_newest(store)
    for part in (store.root / "step-00000002").glob("*.safetensors"):
        part.unlink()
    with pytest.raises(CheckpointError, match=r"part-\d+\.safetensors is absent"):
        state_hash(reader)


@pytest.mark.timeout(120)
def test_killed_at_any_moment_of_a_save_a_whole_checkpoint_is_found(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fakes.killed_save", str(tmp_path)],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    operations = int(done.stdout)
    assert operations > 20
    found: list[int] = []
    for number in range(operations + 1):
        store = LocalStore(tmp_path / f"killed-{number}")
        step = newest_complete(store).step
        found.append(step)
        assert_holds(open_newest(store), make_state(step))
        if number % 3:
            continue
        save(store, 3, keep=1)  # the next save clears away what the kill left
        files = {path.relative_to(store.root).parts[0] for path in store.root.rglob("*") if path.is_file()}
        assert files == {"step-00000003"}
        assert_holds(open_newest(store), make_state(3))
    assert found == sorted(found)
    assert set(found) == {1, 2}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small tmpfs cannot be mounted here: {error}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, leave_bytes: int) -> Path:
    ballast = folder / "ballast"
    ballast.write_bytes(b"x" * (shutil.disk_usage(folder).free - leave_bytes))
    return ballast


def test_a_disk_that_is_full_before_a_save_is_noticed_before_anything_is_touched(small_disk: Path) -> None:
    store = LocalStore(small_disk / "checkpoints")
    save(store, 1)
    before = contents(store.root)
    ballast = fill(small_disk, 8192)
    with pytest.raises(CheckpointError, match=r"no room for the checkpoint of step 2 in .*: needs .* KiB, .* free"):
        save(store, 2, keep=1)
    assert contents(store.root) == before
    ballast.unlink()
    save(store, 2, keep=1)
    assert newest_complete(store).step == 2


@pytest.mark.parametrize("leave_bytes", [0, 4096, 12 * 1024, 20 * 1024])
def test_a_disk_that_fills_up_during_a_save_fails_all_ranks_and_keeps_the_old_one(
    small_disk: Path, leave_bytes: int
) -> None:
    store = LocalStore(small_disk / "checkpoints")
    save(store, 1)
    before = contents(store.root)
    ballast = fill(small_disk, leave_bytes)
    state = make_state(2)
    outcomes = run_ranks(
        2, lambda ranks: save_checkpoint(store, save_job(2, state, ranks, expected_bytes=1, keep=1), ranks)
    )
    assert all(isinstance(outcome, CheckpointError) for outcome in outcomes), outcomes
    assert len({str(outcome) for outcome in outcomes}) == 1
    assert "no room for" in str(outcomes[0])
    assert "lower checkpoint.keep" in str(outcomes[0])
    assert contents(store.root) == before
    ballast.unlink()
    save(store, 2, keep=1)
    assert newest_complete(store).step == 2


def test_a_limit_on_the_size_of_files_is_told_as_want_of_room(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    save(store, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(CheckpointError, match="no room for"):
            save(store, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert newest_complete(store).step == 1


def test_figures_are_missed_but_training_goes_on_while_the_disk_is_full(small_disk: Path) -> None:
    run, warnings = RunDir(small_disk), list[str]()
    trackers = make_trackers((), warnings.append)
    trackers.start(run.path, "a", {}, resumed=False)
    trackers.log(1, {"loss": 0.5})
    ballast = fill(small_disk, 0)
    for step in range(2, 200):  # what is left of the file's last page goes first
        trackers.log(step, {"loss": 0.5})
    ballast.unlink()
    trackers.log(200, {"loss": 0.5})
    steps = [line["step"] for line in read(run.metrics)]
    assert (steps[0], steps[-1]) == (1, 200)
    assert len(steps) < 200
    assert len(warnings) == 1
    assert "No space left" in warnings[0]


def test_a_torn_line_costs_itself_only(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    assert read(path) == [{"step": 1}]
    with Journal(path) as journal:
        journal.append({"step": 2})
        journal.append({"step": 3})
    assert read(path) == [{"step": 1}, {"step": 2}, {"step": 3}]


HOLD = """
import sys, time
from pathlib import Path
from headway.run.lock import JobLock
from headway.run.paths import RunDir
from headway.errors import UserError
try:
    with JobLock(RunDir(Path(sys.argv[1]))):
        print("held", flush=True)
        sys.stdin.read()
except UserError as error:
    print("refused", flush=True)
"""


def hold(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def answer(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip() if process.stdout else ""


def test_two_processes_in_one_run_directory(tmp_path: Path) -> None:
    first = hold(tmp_path)
    try:
        assert answer(first) == "held"
        with pytest.raises(UserError, match=f"in use by process {first.pid}"), JobLock(RunDir(tmp_path)):
            pass
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert live_holder(RunDir(tmp_path)) is None
        with JobLock(RunDir(tmp_path)):
            pass
    finally:
        first.kill()
        first.communicate()


def test_of_several_that_find_a_dead_lock_one_gets_it(tmp_path: Path) -> None:
    first = hold(tmp_path)
    assert answer(first) == "held"
    first.kill()
    first.communicate()
    rivals = [hold(tmp_path) for _ in range(4)]
    try:
        assert sorted(map(answer, rivals)) == ["held", "refused", "refused", "refused"]
    finally:
        for rival in rivals:
            rival.communicate("")
