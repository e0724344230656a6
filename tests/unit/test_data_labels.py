"""A store of labelled texts: labels in order, each text as the tokenizer itself frames it, the unknown refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.chats import write_jsonl
from fakes.corpora import encoder_tokenizer, prose, tokenizer_for, write_texts
from headway.config.schema import SourceConfig
from headway.data import build, crew
from headway.data.build import StoreRequest, build_store
from headway.data.facts import data_facts, estimate_facts
from headway.data.reading import Reading
from headway.data.samples import decode_sample
from headway.data.seam import IGNORE
from headway.data.store import TokenStore, open_split
from headway.data.vocabulary import read_vocabulary
from headway.errors import DataError

LABELS = ("sea", "land", "light")


def records(count: int) -> list[dict[str, Any]]:
    return [
        {"text": prose(number, 3 + number % 20), "label": LABELS[number % 3], "id": number} for number in range(count)
    ]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder_tokenizer(tmp_path_factory.mktemp("bert"))


def request_for(base: Path, rows: list[Any], tokenizer: Path, **changes: Any) -> StoreRequest:
    write_jsonl(base / "a.jsonl", rows)
    settings: dict[str, Any] = {"eval": 0.2, "reading": Reading("classification"), **changes}
    source = SourceConfig(paths=("a.jsonl",), label_key=settings.pop("label_key", "label"))
    return StoreRequest((source,), settings.pop("eval"), tokenizer, Path("cache"), base, **settings)


def test_texts_are_framed_as_transformers_frames_them(tmp_path: Path, bert: Path) -> None:
    from transformers import AutoTokenizer

    rows = records(30)
    store = build_store(request_for(tmp_path, rows, bert, eval=None))
    theirs = AutoTokenizer.from_pretrained(bert)
    windows = open_split(store, "train", 12, True)
    assert len(windows) == len(rows)
    mine = sorted(windows[number].tokens.tolist() for number in range(len(rows)))
    assert mine == sorted(theirs(row["text"], truncation=True, max_length=12)["input_ids"] for row in rows)


def test_a_tokenizer_that_adds_no_end_gets_none(tmp_path: Path) -> None:
    """A decoder is judged at a text's last token: in training it must be the same as later."""
    folder = tokenizer_for(tmp_path, write_texts(tmp_path / "corpus", [prose(1, 50)]))
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    store = TokenStore(build_store(request_for(tmp_path, records(9), folder, eval=None)))
    assert [store.document(n).tolist() for n in range(9)] == [theirs(row["text"])["input_ids"] for row in records(9)]
    assert store.document(0)[-1] != read_vocabulary(folder).end


def test_labels_are_sorted_and_each_sample_has_its_own(tmp_path: Path, bert: Path) -> None:
    store = build_store(request_for(tmp_path, records(60), bert))
    opened = TokenStore(store)
    assert (opened.manifest.kind, opened.manifest.labels) == ("labelled", ("land", "light", "sea"))
    assert opened.labels is not None
    assert [opened.manifest.labels[n] for n in opened.labels] == [row["label"] for row in records(60)]
    for split in ("train", "eval"):
        windows = open_split(store, split, 64, True)
        numbers = opened.documents(split)
        found = sorted((windows[n].tokens.tolist(), windows[n].label) for n in range(len(windows)))
        assert found == sorted((opened.document(n).tolist(), int(opened.labels[n])) for n in numbers.tolist())
        assert all((windows[n].labels == IGNORE).all() for n in range(len(windows)))
    facts = data_facts(store, 64, True)
    assert facts.labels == opened.manifest.labels
    assert sum(facts.label_counts) == facts.train_windows == facts.train_targets == opened.manifest.train.documents
    assert (facts.layout, facts.eval_bytes) == ("single", 0)
    assert facts.notes == (
        'data.train holds labelled texts, such as {"text": "...", "label": "..."}; read off a.jsonl:1',
    )
    assert "land" not in decode_sample(open_split(store, "train", 64, True)[0], bert).split()


def test_numbers_are_names_in_their_own_order(tmp_path: Path, bert: Path) -> None:
    rows = [{"text": prose(n, 5), "stars": n % 11} for n in range(40)]
    store = TokenStore(build_store(request_for(tmp_path, rows, bert, eval=None, label_key="stars")))
    assert store.manifest.labels == tuple(str(n) for n in range(11))
    assert store.labels is not None
    assert store.labels.tolist() == [n % 11 for n in range(40)]


def test_labels_are_the_same_however_the_work_is_shared(
    tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = TokenStore(build_store(request_for(tmp_path, records(60), bert)))
    monkeypatch.setattr(crew, "SMALL_BYTES", 0)
    monkeypatch.setattr(build, "SMALLEST_TASK_BYTES", 1)
    from headway.data import records as module

    monkeypatch.setattr(module, "JSONL_SHARD_BYTES", 400)
    (tmp_path / "again").mkdir()
    again = TokenStore(build_store(request_for(tmp_path / "again", records(60), bert, workers=2)))
    assert once.manifest.hash == again.manifest.hash
    assert once.labels is not None
    assert again.labels is not None
    assert np.array_equal(once.labels, again.labels)


def test_a_label_that_is_held_out_only_is_refused(tmp_path: Path, bert: Path) -> None:
    write_jsonl(tmp_path / "held.jsonl", [{"text": "the sea", "label": "sea"}, {"text": "a star", "label": "sky"}])
    held = SourceConfig(paths=("held.jsonl",))
    with pytest.raises(DataError, match="the label 'sky' occurs in the held-out data only") as caught:
        build_store(request_for(tmp_path, records(9), bert, eval=held))
    assert caught.value.problems[0].where == "held.jsonl:2"


def test_bad_labels_name_their_line(tmp_path: Path, bert: Path) -> None:
    rows = [*records(3), {"text": "x"}, {"text": "x", "label": {"a": 1}}, {"text": None, "label": "a"}]
    with pytest.raises(DataError) as caught:
        build_store(request_for(tmp_path, rows, bert))
    assert [problem.where for problem in caught.value.problems] == ["a.jsonl:4", "a.jsonl:5", "a.jsonl:6"]
    assert "has no 'label'; its keys: 'text'" in caught.value.problems[0].rule
    assert "a label is one text, one whole number, true or false" in caught.value.problems[1].rule
    assert "holds null as 'text'" in caught.value.problems[2].rule
    with pytest.raises(DataError, match="every text has the label 'sea': there is nothing to tell apart"):
        build_store(request_for(tmp_path, [row for row in records(9) if row["label"] == "sea"], bert))


SETS = [["sea"], [], ["light", "land"], ["land", "sea", "light"], ["sea", "sea"]]


def set_rows(count: int) -> list[dict[str, Any]]:
    return [{"text": row["text"], "label": SETS[number % 5]} for number, row in enumerate(records(count))]


def test_a_text_may_have_any_number_of_labels(tmp_path: Path, bert: Path) -> None:
    store = build_store(request_for(tmp_path, set_rows(60), bert))
    opened = TokenStore(store)
    assert opened.has_sets
    assert opened.manifest.labels == ("land", "light", "sea")
    named = [[opened.manifest.labels[n] for n in opened.labels_of(number).tolist()] for number in range(60)]
    assert named == [sorted(set(row["label"])) for row in set_rows(60)]
    for split in ("train", "eval"):
        windows = open_split(store, split, 64, True)
        numbers = opened.documents(split).tolist()
        found = sorted((windows[n].tokens.tolist(), windows[n].held) for n in range(len(windows)))
        assert found == sorted((opened.document(n).tolist(), tuple(opened.labels_of(n).tolist())) for n in numbers)
    facts = data_facts(store, 64, True)
    assert facts.label_sets
    trained = [row["label"] for row, held in zip(set_rows(60), np.load(store / "split.npy"), strict=True) if not held]
    assert facts.label_counts == tuple(sum(name in labels for labels in trained) for name in facts.labels)


def test_held_out_single_labels_beside_lists(tmp_path: Path, bert: Path) -> None:
    write_jsonl(tmp_path / "held.jsonl", [{"text": "the sea", "label": "sea"}])
    opened = TokenStore(
        build_store(request_for(tmp_path, set_rows(20), bert, eval=SourceConfig(paths=("held.jsonl",))))
    )
    assert opened.labels_of(20).tolist() == [opened.manifest.labels.index("sea")]


def test_bad_lists_of_labels_name_their_line(tmp_path: Path, bert: Path) -> None:
    rows = [*set_rows(3), {"text": "x", "label": "sea"}, {"text": "x", "label": [["sea"]]}, {"text": "x"}]
    with pytest.raises(DataError) as caught:
        build_store(request_for(tmp_path, rows, bert))
    assert [problem.where for problem in caught.value.problems] == ["a.jsonl:4", "a.jsonl:5", "a.jsonl:6"]
    assert "expected a list of labels, as in the records before it" in caught.value.problems[0].rule
    rows = [*records(3), {"text": "x", "label": ["sea"]}]
    with pytest.raises(DataError, match="holds a list as 'label', and the labels before it are one each"):
        build_store(request_for(tmp_path, rows, bert))
    with pytest.raises(DataError, match="no text has any label"):
        build_store(request_for(tmp_path, [{"text": "x", "label": []} for _ in range(4)], bert))
    write_jsonl(tmp_path / "held.jsonl", [{"text": "a star", "label": ["sea", "sky"]}])
    with pytest.raises(DataError, match="the label 'sky' occurs in the held-out data only"):
        build_store(request_for(tmp_path, set_rows(9), bert, eval=SourceConfig(paths=("held.jsonl",))))


def test_estimates_count_records(tmp_path: Path, bert: Path) -> None:
    request = request_for(tmp_path, records(200), bert)
    guess = estimate_facts(request, vocab=200, sequence=64, packing=True)
    assert 130 < guess.train_windows < 190
    assert guess.train_targets == guess.train_windows
    assert guess.eval_bytes == 0
