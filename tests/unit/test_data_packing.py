"""Windows: each token once as input, each but a document's first once as target, nothing across borders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fakes.corpora import prose, store_of
from headway.data import packing
from headway.data.packing import Layout, Losses, document_order, losses, open_index, targets
from headway.data.seam import IGNORE, Sample
from headway.data.store import TokenStore, open_split

LENGTHS = [1, 3, 40, 2, 17, 90, 5, 5, 64, 33, 8, 150, 1, 1, 12]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("packing")
    return store_of(base, [prose(seed, length) for seed, length in enumerate(LENGTHS)], eval=0.3)


def rebuilt(samples: list[Sample]) -> list[list[int]]:
    """Documents put together again from windows in order: a fragment that goes on says so by its last label."""
    documents: list[list[int]] = [[]]
    for sample in samples:
        for token, label in zip(sample.tokens.tolist(), sample.labels.tolist(), strict=True):
            documents[-1].append(token)
            if label == IGNORE:
                documents.append([])
    assert documents.pop() == []
    return documents


@pytest.mark.parametrize("split", ["train", "eval"])
@pytest.mark.parametrize("sequence", [1, 2, 7, 16, 64, 1000])
def test_packed_windows_hold_every_document_once_in_order(store: Path, split: str, sequence: int) -> None:
    opened = TokenStore(store)
    windows = open_split(store, split, sequence, True)  # type: ignore[arg-type]
    samples = [windows[number] for number in range(len(windows))]
    expected = [opened.document(number).tolist() for number in document_order(opened, split)]  # type: ignore[arg-type]
    assert rebuilt(samples) == expected
    total = sum(map(len, expected))
    assert [len(sample.tokens) for sample in samples[:-1]] == [sequence] * (total // sequence - (total % sequence == 0))
    assert 0 < len(samples[-1].tokens) <= sequence


@pytest.mark.parametrize("sequence", [1, 7, 16, 64])
def test_labels_are_the_next_token_even_across_a_cut(store: Path, sequence: int) -> None:
    windows = open_split(store, "train", sequence, True)
    line = np.concatenate([windows[number].tokens for number in range(len(windows))])
    labels = np.concatenate([windows[number].labels for number in range(len(windows))])
    told = labels != IGNORE
    assert np.array_equal(labels[:-1][told[:-1]], line[1:][told[:-1]])
    # Only a document's end has nothing to predict: no target is lost at a cut.
    assert (~told).sum() == TokenStore(store).manifest.train.documents


@pytest.mark.parametrize("sequence", [1, 7, 16, 64])
def test_positions_and_documents_restart_with_each_fragment(store: Path, sequence: int) -> None:
    windows = open_split(store, "train", sequence, True)
    for number in range(len(windows)):
        sample = windows[number]
        assert sample.index == number
        expected_positions, expected_documents = [], []
        position = document = 0
        for label in sample.labels.tolist():
            expected_positions.append(position)
            expected_documents.append(document)
            position += 1
            if label == IGNORE:
                position, document = 0, document + 1
        assert sample.positions.tolist() == expected_positions
        assert sample.documents.tolist() == expected_documents
        assert {array.dtype for array in (sample.tokens, sample.labels, sample.positions, sample.documents)} == {
            np.dtype(np.int32)
        }


def test_three_documents_in_one_window(tmp_path: Path) -> None:
    """Three documents, one longer than the others: positions count within each."""
    found = store_of(tmp_path, ["a", "x?1", "b"])
    windows = open_split(found, "train", 12, True)
    order = document_order(TokenStore(found), "train").tolist()
    lengths = [len(TokenStore(found).document(number)) for number in order]
    assert sorted(lengths) == [3, 3, 5]
    assert windows[0].positions.tolist() == [position for length in lengths for position in range(length)]
    assert windows[0].documents.tolist() == [n for n, length in enumerate(lengths) for _ in range(length)]
    # The text's first token is predicted from the begin token, the end token from the last one.
    assert (windows[0].labels == IGNORE).sum() == 3


def test_without_packing_a_window_is_one_document_cut_off(store: Path) -> None:
    opened = TokenStore(store)
    windows = open_split(store, "train", 16, False)
    order = document_order(opened, "train")
    assert len(windows) == len(order) == opened.manifest.train.documents
    lost = 0
    for number, document in enumerate(order):
        tokens = opened.document(document)
        sample = windows[number]
        assert sample.tokens.tolist() == tokens[:16].tolist()
        assert sample.labels[:-1].tolist() == tokens[1:16].tolist()
        assert sample.labels[-1] == (IGNORE if len(tokens) <= 16 else tokens[16])
        assert sample.positions.tolist() == list(range(len(sample.tokens)))
        lost += max(0, len(tokens) - 16)
    cut = sum(len(opened.document(number)) > 16 for number in order)
    assert cut > 2
    assert losses(opened, Layout("train", 16, False)) == Losses(cut, lost)
    assert losses(opened, Layout("train", 16, True)) == Losses(0, 0)


def test_the_order_of_documents_is_mixed_and_follows_the_store(store: Path) -> None:
    opened = TokenStore(store)
    order = document_order(opened, "train").tolist()
    assert order != sorted(order)
    assert sorted(order) == opened.documents("train").tolist()
    assert order == document_order(TokenStore(store), "train").tolist()


def test_targets_are_counted(store: Path) -> None:
    for packed in (True, False):
        windows = open_split(store, "train", 16, packed)
        counted = sum(int((windows[number].labels != IGNORE).sum()) for number in range(len(windows)))
        opened = TokenStore(store)
        assert targets(opened, open_index(opened, Layout("train", 16, packed))) == counted


def test_the_index_is_kept_and_read_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = [open_split(store, "train", 21, True)[number].tokens.tolist() for number in range(3)]

    def fail(*_: object) -> None:
        raise AssertionError("the index was made again")

    monkeypatch.setattr(packing, "_packed", fail)
    assert [open_split(store, "train", 21, True)[number].tokens.tolist() for number in range(3)] == first
    assert not list(store.glob("*.part"))


def test_a_store_that_cannot_be_written_to_is_read_all_the_same(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(packing, "_save", refuse)
    assert len(open_split(store, "train", 23, True)[0].tokens) == 23
    assert not list(store.glob("index-*-23-*"))


def test_windows_outside_are_an_index_error(store: Path) -> None:
    windows = open_split(store, "train", 16, True)
    for index in (-1, len(windows)):
        with pytest.raises(IndexError):
            windows[index]


def test_samples_are_the_callers_own(store: Path) -> None:
    windows = open_split(store, "train", 16, True)
    for name in ("tokens", "labels", "positions", "documents"):
        getattr(windows[0], name)[:] = -7
        assert (getattr(windows[0], name) != -7).all()


def test_an_empty_split_has_no_windows(tmp_path: Path) -> None:
    windows = open_split(store_of(tmp_path, ["only one"]), "eval", 16, True)
    assert len(windows) == 0


def test_windows_cross_from_one_token_file_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.data.assemble.SHARD_BYTES", 300)
    monkeypatch.setattr("headway.data.build.SMALLEST_TASK_BYTES", 150)
    found = store_of(tmp_path, [prose(seed, 30) for seed in range(20)])
    opened = TokenStore(found)
    assert len(opened.shards) > 4
    windows = open_split(found, "train", 64, True)
    samples = [windows[number] for number in range(len(windows))]
    assert rebuilt(samples) == [opened.document(number).tolist() for number in document_order(opened, "train")]
