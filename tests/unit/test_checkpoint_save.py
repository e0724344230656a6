"""All ranks succeed or all raise the same; what stands is never touched before the new checkpoint is complete."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fakes.checkpoints import assert_holds, contents, make_state, open_newest, rank_slices, run_ranks, save, save_job
from headway.checkpoint.layout import checkpoint_name, crc32_of_file, read_manifest, step_of
from headway.checkpoint.load import checkpoint_at, newest_complete
from headway.checkpoint.ranks import Ranks
from headway.checkpoint.save import Saved, save_checkpoint
from headway.checkpoint.store import LocalStore
from headway.errors import CheckpointError
from headway.parallel.seam import Slice


class BrokenStore(LocalStore):
    """Fails when a key with `fails_on` in it is written or deleted."""

    fails_on = ""
    deletes_fail = False

    def write(self, key: str, source: Path | bytes) -> None:
        if self.fails_on and self.fails_on in key:
            raise CheckpointError(f"no room for {key}")
        super().write(key, source)

    def delete(self, prefix: str) -> None:
        if self.deletes_fail:
            raise CheckpointError(f"{prefix}: not permitted")
        super().delete(prefix)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name.startswith("step-"))


def save_with_ranks(store: LocalStore, world: int, step: int) -> list[Saved | Exception]:
    state = make_state(step)
    return run_ranks(world, lambda ranks: save_checkpoint(store, save_job(step, state, ranks), ranks))


def test_names() -> None:
    assert checkpoint_name(100) == "step-00000100"
    assert step_of(checkpoint_name(123456789, 3)) == 123456789
    assert step_of("tmp-00000100") is None


def test_every_rank_reports_the_same_save(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    outcomes = save_with_ranks(store, 3, 100)
    assert all(isinstance(outcome, Saved) for outcome in outcomes)
    assert {(outcome.name, outcome.size_bytes) for outcome in outcomes if isinstance(outcome, Saved)} == {
        ("step-00000100", sum(path.stat().st_size for path in (tmp_path / "step-00000100").iterdir()))
    }
    assert not list(store.staging().iterdir())


def test_the_manifest_lists_every_file_as_it_is(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    save_with_ranks(store, 2, 100)
    manifest = read_manifest(store, "step-00000100")
    folder = tmp_path / "step-00000100"
    assert {entry.name for entry in manifest.files} == {path.name for path in folder.iterdir()} - {"manifest.json"}
    for entry in manifest.files:
        assert entry.size_bytes == (folder / entry.name).stat().st_size
        assert entry.crc32 == crc32_of_file(folder / entry.name)
    assert (manifest.step, manifest.world, manifest.serial) == (100, 2, 1)


@pytest.mark.parametrize(
    "fails_on", ["rank-00002-part", "rank-00001.json", "state.json", "manifest.json", "rank-00000-part"]
)
def test_one_failing_rank_makes_all_raise_the_same_and_leaves_the_old_one(tmp_path: Path, fails_on: str) -> None:
    store = BrokenStore(tmp_path)
    save_with_ranks(store, 3, 100)
    before = contents(tmp_path / "step-00000100")
    store.fails_on = fails_on
    outcomes = save_with_ranks(store, 3, 200)
    assert all(isinstance(outcome, CheckpointError) for outcome in outcomes), outcomes
    assert len({str(outcome) for outcome in outcomes}) == 1
    assert "saving the checkpoint of step 200 failed" in str(outcomes[0])
    assert "no room for" in str(outcomes[0])
    assert names(tmp_path) == ["step-00000100"]
    assert contents(tmp_path / "step-00000100") == before
    store.fails_on = ""
    assert all(isinstance(outcome, Saved) for outcome in save_with_ranks(store, 3, 201))


def test_a_failing_rank_still_takes_part_in_what_its_peers_gather(tmp_path: Path) -> None:
    """A strategy may gather inside the iterator: a rank that stopped iterating would leave its peers waiting."""
    store = BrokenStore(tmp_path)
    store.fails_on = "rank-00001-part-000"
    gathered = threading.Barrier(2, timeout=20)

    def slices(ranks: Ranks) -> Iterator[Slice]:
        for number in range(6):
            gathered.wait()
            yield Slice(f"layer.{number}", "weight", (32,), ranks.rank * 16, torch.ones(16))

    def work(ranks: Ranks) -> Saved:
        return save_checkpoint(store, save_job(5, {}, ranks, slices=slices(ranks), part_bytes=64), ranks)

    outcomes = run_ranks(2, work)
    assert all(isinstance(outcome, CheckpointError) for outcome in outcomes), outcomes
    assert "BrokenBarrierError" not in str(outcomes[0])


def test_an_error_of_another_kind_reaches_all_ranks_too(tmp_path: Path) -> None:
    def slices(ranks: Ranks) -> Iterator[Slice]:
        yield from rank_slices(make_state(1), ranks.rank, ranks.world)
        if ranks.rank == 1:
            raise RuntimeError("the engine lost a tensor")

    outcomes = run_ranks(
        2, lambda ranks: save_checkpoint(LocalStore(tmp_path), save_job(5, {}, ranks, slices=slices(ranks)), ranks)
    )
    assert {str(outcome) for outcome in outcomes} == {
        "saving the checkpoint of step 5 failed\nrank 1: RuntimeError: the engine lost a tensor"
    }


def test_keep_last_n(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for step in (1, 2, 3, 4):
        save(store, step, keep=2)
    assert names(tmp_path) == ["step-00000003", "step-00000004"]


def test_protected_checkpoints_stay(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    save(store, 1)
    for step in (2, 3):
        save(store, step, keep=1, protect=frozenset({"step-00000001"}))
    assert names(tmp_path) == ["step-00000001", "step-00000003"]


def test_old_ones_that_cannot_be_deleted_are_a_notice(tmp_path: Path) -> None:
    store = BrokenStore(tmp_path)
    save(store, 1)
    store.deletes_fail = True
    saved = save(store, 2, keep=1)
    assert newest_complete(store).step == 2
    assert len(saved.notices) == 1
    assert "step-00000001 could not be removed" in saved.notices[0]


def test_leftovers_of_a_killed_save_are_removed_at_the_next(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    save(store, 1)
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000002" / "rank-00000-part-000.safetensors").write_bytes(b"half")
    (store.staging() / "write-1").write_bytes(b"half")
    (store.staging() / "deleted-1").mkdir()
    (tmp_path / "mine.txt").write_text("not Headway's")
    save(store, 3)
    assert names(tmp_path) == ["step-00000001", "step-00000003"]
    assert not list(store.staging().iterdir())
    assert (tmp_path / "mine.txt").exists()


def test_the_same_step_again_does_not_touch_the_one_that_stands(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    save(store, 5)
    before = contents(tmp_path / "step-00000005")
    saved = save_checkpoint(store, save_job(5, make_state(77)))
    assert saved.name == "step-00000005-2"
    assert contents(tmp_path / "step-00000005") == before
    assert_holds(open_newest(store), make_state(77))
    assert checkpoint_at(store, 5).name == "step-00000005-2"


def test_after_a_resume_from_an_older_step_the_new_line_of_training_is_the_newest(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    save(store, 100)
    save(store, 200)
    save_checkpoint(store, save_job(150, make_state(150)))
    assert newest_complete(store).step == 150


def test_room_is_checked_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    save(store, 1)
    monkeypatch.setattr(LocalStore, "free_bytes", lambda self: 10 * 1024**2)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        save(store, 2, keep=1, expected_bytes=30 * 1024**2)
    message = str(caught.value)
    assert "needs 30.00 MiB, 10.00 MiB free" in message
    assert "free at least 20.00 MiB" in message
    assert contents(tmp_path) == before
    assert caught.value.exit_code == 6


def test_the_newest_checkpoint_tells_how_much_room_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    size_bytes = save(store, 1).size_bytes
    monkeypatch.setattr(LocalStore, "free_bytes", lambda self: size_bytes // 2)
    with pytest.raises(CheckpointError, match="no room for the checkpoint of step 2"):
        save(store, 2)


def test_state_documents_and_record_are_kept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    job = save_job(5, make_state(5), documents={"record.diff": b"--- a\n"})
    save_checkpoint(store, job)
    state = json.loads((tmp_path / "step-00000005" / "state.json").read_text())
    assert state["position"] == 40
    assert (tmp_path / "step-00000005" / "record.diff").read_bytes() == b"--- a\n"
    assert open_newest(store).state == job.state


def test_nothing_to_resume_from_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint to resume from"):
        newest_complete(LocalStore(tmp_path / "absent"))


def test_an_absent_step_names_those_that_are(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    save(store, 1)
    save(store, 2)
    with pytest.raises(CheckpointError, match=r"no complete checkpoint of step 7\n    fix: complete ones: 1, 2"):
        checkpoint_at(store, 7)


def test_all_ranks_look_together_and_agree(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    save_with_ranks(store, 2, 100)
    save_with_ranks(store, 2, 200)
    part = next((tmp_path / "step-00000200").glob("rank-00001-part-*"))
    part.write_bytes(part.read_bytes()[:-1])
    refs = run_ranks(3, lambda ranks: newest_complete(store, ranks=ranks))
    assert [getattr(ref, "step", ref) for ref in refs] == [100, 100, 100]
    assert refs[0] == refs[1] == refs[2]
