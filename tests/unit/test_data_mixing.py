"""Sources by weight: the shares of an epoch, that nothing is lost, and the ledger against a count of what was read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fakes.chats import chat_tokenizer, turn, write_jsonl
from fakes.corpora import prose
from headway.config.schema import SourceConfig
from headway.data.bpe import TrainingText, train_bpe
from headway.data.build import StoreRequest, build_store
from headway.data.facts import data_facts
from headway.data.ledger import Ledger
from headway.data.mixing import LONGEST, epoch_counts, mixture_of
from headway.data.order import windows_at
from headway.data.packing import Layout, Windows, open_index
from headway.data.reading import Reading
from headway.data.samples import decode_sample
from headway.data.store import TokenStore, open_split
from headway.errors import DataError

SEQUENCE = 24
SEED = 5


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sources of 30, 10 and 4 documents, told apart by a word of their own."""
    base = tmp_path_factory.mktemp("mixing")
    configs: list[SourceConfig] = []
    for name, count in (("a", 30), ("b", 10), ("c", 4)):
        lines = [json.dumps({"text": f"{name}{name} {prose(number, 8)}"}) for number in range(count)]
        (base / f"{name}.jsonl").write_text("\n".join(lines))
        configs.append(SourceConfig(kind="jsonl", paths=(f"{name}.jsonl",)))
    tokenizer = train_bpe(TrainingText(tuple(configs), 0.0, 0, base), 300, base / "cache", report=_Quiet())
    request = StoreRequest(tuple(configs), 0.2, tokenizer, Path("cache"), base, workers=1)
    return build_store(request)


class _Quiet:
    def start(self, total_bytes: int) -> None: ...

    def advance(self, count: int) -> None: ...

    def note(self, text: str) -> None: ...


@pytest.mark.parametrize(
    ("counts", "weights"),
    [((100, 10), (0.5, 0.5)), ((7, 7, 7), (0.2, 0.3, 0.5)), ((3, 1000), (0.9, 0.1)), ((1, 1), (1.0, 3.0))],
)
def test_an_epoch_keeps_the_weights_and_loses_nothing(counts: tuple[int, ...], weights: tuple[float, ...]) -> None:
    wanted = epoch_counts(counts, weights)
    length = sum(wanted)
    for count, weight in zip(wanted, weights, strict=True):
        assert abs(count - length * weight / sum(weights)) < 1
    if length < LONGEST * sum(counts):
        assert all(read >= count for read, count in zip(wanted, counts, strict=True))
    mixture = mixture_of(counts, weights, SEED)
    times = np.bincount(mixture, minlength=sum(counts))
    first = 0
    for count, read in zip(counts, wanted, strict=True):
        assert times[first : first + count].sum() == read
        assert set(times[first : first + count]) <= {read // count, -(-read // count)}
        first += count


def test_a_small_weight_of_a_large_source_does_not_make_an_epoch_endless() -> None:
    wanted = epoch_counts((10**6, 10), (1e-6, 1.0))
    assert sum(wanted) == LONGEST * (10**6 + 10)


def test_windows_hold_one_source_each_in_the_shares_asked_for(store: Path) -> None:
    weights = (0.2, 0.5, 0.3)
    opened = TokenStore(store)
    index = open_index(opened, Layout("train", SEQUENCE, True, weights))
    windows = Windows(opened, index)
    read = np.zeros(3)
    for number in range(len(windows)):
        at = int(index.mixture[number]) if index.mixture is not None else 0
        fragments = index.fragments[index.windows[at] : index.windows[at + 1]]
        documents = np.searchsorted(opened.offsets, fragments[:, 0], side="right") - 1
        (source,) = set(opened.sources[documents].tolist())
        assert len(windows[number].tokens) == fragments[:, 1].sum()
        read[source] += 1
    assert np.abs(read - np.array(weights) * len(windows)).max() < 1
    facts = data_facts(store, SEQUENCE, True, weights)
    assert facts.train_windows == len(windows) == len(open_split(store, "train", SEQUENCE, True, weights))
    assert facts.train_targets == sum(int((windows[n].labels != -100).sum()) for n in range(len(windows)))
    assert facts.short_windows == sum(len(windows[n].tokens) < SEQUENCE for n in range(len(windows)))
    assert any("source 2 of 3: 50.0% of the windows" in note for note in facts.notes)


def test_held_out_data_and_unweighted_stores_are_as_they_were(store: Path) -> None:
    plain, weighted = data_facts(store, SEQUENCE, True), data_facts(store, SEQUENCE, True, (0.2, 0.5, 0.3))
    assert (plain.eval_windows, plain.eval_targets) == (weighted.eval_windows, weighted.eval_targets)
    assert not any("of the windows" in note for note in plain.notes)
    opened = TokenStore(store)
    every = np.concatenate([open_index(opened, Layout("train", SEQUENCE, True)).lengths()])
    assert every.sum() == plain.tokens
    assert plain.short_windows <= 1


@pytest.mark.parametrize("weights", [(), (0.2, 0.5, 0.3)])
def test_the_ledger_is_a_count_of_what_was_read(store: Path, weights: tuple[float, ...]) -> None:
    opened = TokenStore(store)
    index = open_index(opened, Layout("train", SEQUENCE, True, weights))
    ledger = Ledger(opened, index, SEED, 3)
    counted = np.zeros(3, dtype=np.int64)
    done = 0
    for position in (1, 7, 8, len(index) - 1, len(index) + 5, 2 * len(index) + 3):
        for window in windows_at(SEED, done, position, len(index)).tolist():
            at = window if index.mixture is None else int(index.mixture[window])
            for start, length, _ in index.fragments[index.windows[at] : index.windows[at + 1]].tolist():
                document = int(np.searchsorted(opened.offsets, start, side="right")) - 1
                counted[opened.sources[document]] += length
        done = position
        assert ledger.at(position) == counted.tolist()
        assert Ledger(opened, index, SEED, 3).at(position) == counted.tolist()  # as after a resume
    assert ledger.at(0) == [0, 0, 0]


@pytest.mark.parametrize("task", ["instruction", "classification"])
def test_chats_and_labels_are_mixed_too(tmp_path: Path, task: str) -> None:
    """Each window's words are of one source; shares, labels and the ledger follow the windows that are read."""
    tokenizer = chat_tokenizer(tmp_path)
    configs: list[SourceConfig] = []
    for name, count in (("qq", 24), ("zz", 6)):
        texts = [f"{name} {prose(number, 4)} {name}" for number in range(count)]
        chats = [{"messages": [turn("user", text), turn("assistant", name)]} for text in texts]
        labelled = [{"text": text, "label": f"{name}{n % 2}"} for n, text in enumerate(texts)]
        write_jsonl(tmp_path / f"{name}.jsonl", chats if task == "instruction" else labelled)
        configs.append(SourceConfig(kind="jsonl", paths=(f"{name}.jsonl",)))
    request = StoreRequest(tuple(configs), None, tokenizer, Path("cache"), tmp_path, reading=Reading(task))
    store, weights = build_store(request), (0.6, 0.4)
    opened = TokenStore(store)
    windows = open_split(store, "train", 96, True, weights)
    samples = [windows[number] for number in range(len(windows))]
    texts = [decode_sample(sample, tokenizer) for sample in samples]
    assert all(("qq" in text) != ("zz" in text) for text in texts)
    of_first = sum("qq" in text for text in texts)
    assert abs(of_first - 0.6 * len(texts)) < 1
    if task == "classification":
        named = [opened.manifest.labels[sample.label] for sample in samples]
        assert all(name[:2] in text for name, text in zip(named, texts, strict=True))
        assert set(named) == {"qq0", "qq1", "zz0", "zz1"}
    lengths = [[len(s.tokens) for s, text in zip(samples, texts, strict=True) if name in text] for name in ("qq", "zz")]
    index = open_index(opened, Layout("train", 96, True, weights))
    assert Ledger(opened, index, SEED, 2).at(len(windows)) == [sum(each) for each in lengths]


def test_a_source_without_a_window_is_named() -> None:
    with pytest.raises(DataError, match=r"data\.more\[0\]: has a weight, but no training window"):
        mixture_of((3, 0), (0.5, 0.5), SEED)
