"""What every CheckpointStore must do. A new store joins by adding a row to STORES."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.checkpoints import assert_holds, make_state, open_newest, save
from headway.checkpoint.load import newest_complete
from headway.checkpoint.seam import CheckpointStore
from headway.checkpoint.store import LocalStore
from headway.errors import CheckpointError

STORES: dict[str, Callable[[Path], CheckpointStore]] = {"local": LocalStore}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    return STORES[request.param](tmp_path / "bucket")


def test_an_empty_store_lists_nothing(store: CheckpointStore) -> None:
    assert store.list() == []
    assert store.list("step-1/") == []


def test_bytes_come_back(store: CheckpointStore) -> None:
    store.write("step-1/a.json", b"content")
    assert store.read("step-1/a.json").read_bytes() == b"content"


def test_a_file_comes_back_and_its_source_stays(store: CheckpointStore, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"content")
    store.write("step-1/deep/er/a", source)
    assert store.read("step-1/deep/er/a").read_bytes() == b"content"
    assert source.read_bytes() == b"content"


def test_a_staged_file_comes_back_and_may_be_moved(store: CheckpointStore) -> None:
    staged = store.staging() / "x"
    staged.write_bytes(b"content")
    store.write("step-1/a", staged)
    assert store.read("step-1/a").read_bytes() == b"content"


def test_staged_files_are_not_listed(store: CheckpointStore) -> None:
    (store.staging() / "x").write_bytes(b"")
    assert store.list() == []


def test_writing_again_replaces(store: CheckpointStore) -> None:
    store.write("a", b"long old content")
    store.write("a", b"new")
    assert store.read("a").read_bytes() == b"new"
    assert store.list() == ["a"]


def test_an_absent_key_is_an_error_that_names_it(store: CheckpointStore) -> None:
    with pytest.raises(CheckpointError, match="step-1/absent"):
        store.read("step-1/absent")


def test_lists_are_sorted_and_prefixes_are_folders(store: CheckpointStore) -> None:
    for key in ("step-10/a", "step-1/b", "step-1/a", "top"):
        store.write(key, b"")
    assert store.list() == ["step-1/a", "step-1/b", "step-10/a", "top"]
    assert store.list("step-1/") == ["step-1/a", "step-1/b"]
    assert store.list("step-1") == []
    assert store.list("top") == ["top"]


def test_deleting_a_folder_leaves_its_neighbours(store: CheckpointStore) -> None:
    for key in ("step-10/a", "step-1/a", "step-1/deep/b"):
        store.write(key, b"")
    store.delete("step-1/")
    assert store.list() == ["step-10/a"]


def test_deleting_one_key_leaves_the_rest(store: CheckpointStore) -> None:
    store.write("step-1/a", b"")
    store.write("step-1/ab", b"")
    store.delete("step-1/a")
    assert store.list() == ["step-1/ab"]


def test_deleting_what_is_absent_is_no_error(store: CheckpointStore) -> None:
    store.delete("step-1/")
    store.delete("step-1/a")


def test_deleting_everything_is_refused(store: CheckpointStore) -> None:
    store.write("a", b"")
    with pytest.raises(ValueError, match="every checkpoint"):
        store.delete("")
    assert store.list() == ["a"]


@pytest.mark.parametrize("key", ["", "/etc/a", "../a", "step-1/../../a"])
def test_keys_outside_the_store_are_refused(store: CheckpointStore, key: str) -> None:
    with pytest.raises(ValueError, match="not a key"):
        store.write(key, b"")


def test_room_is_a_number_or_unlimited(store: CheckpointStore) -> None:
    free = store.free_bytes()
    assert free is None or free > 0


def test_checkpoints_are_saved_kept_and_read(store: CheckpointStore) -> None:
    for step in (1, 2, 3):
        save(store, step, keep=2)
    assert {key.partition("/")[0] for key in store.list()} == {"step-00000002", "step-00000003"}
    assert_holds(open_newest(store), make_state(3))


def test_an_interrupted_checkpoint_is_passed_over(store: CheckpointStore) -> None:
    save(store, 1)
    save(store, 2)
    store.delete("step-00000002/manifest.json")
    ref = newest_complete(store)
    assert ref.step == 1
    assert "step-00000002" in ref.notices[0]
