"""What a record holds: detected on the first ones, shown, and held to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.chats import CHATS, chat_tokenizer, turn, write_jsonl
from headway.config.schema import SourceConfig
from headway.data.bpe import TrainingText
from headway.data.build import StoreRequest, build_store
from headway.data.reading import Reading
from headway.data.seam import Document
from headway.data.shapes import (
    LABELLED,
    MESSAGES,
    PAIR,
    TEXT,
    BadRecord,
    Keys,
    detect,
    pair_as_chat,
    read_chat,
    read_label,
    read_pair,
)
from headway.data.sources import concrete, open_source, with_shape
from headway.data.store import TokenStore
from headway.errors import DataError

RECORDS: dict[str, dict[str, Any]] = {
    TEXT: {"text": "the sea"},
    MESSAGES: CHATS["one turn"],
    PAIR: {"prompt": "the sea?", "response": "grey"},
    LABELLED: {"text": "the sea", "label": "water"},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_tokenizer(tmp_path_factory.mktemp("shapes"))


def built(base: Path, tokenizer: Path, records: list[Any], task: str, **source: Any) -> TokenStore:
    write_jsonl(base / "a.jsonl", records)
    config = SourceConfig(paths=("a.jsonl",), **source)
    request = StoreRequest((config,), None, tokenizer, Path("cache"), base, reading=Reading(task))
    return TokenStore(build_store(request))


@pytest.mark.parametrize("shape", RECORDS)
def test_the_first_records_say_the_shape(tmp_path: Path, shape: str) -> None:
    write_jsonl(tmp_path / "a.jsonl", [RECORDS[shape]] * 3)
    config = concrete(SourceConfig(paths=("a.jsonl",)), tmp_path, "data.train")
    settled, found = with_shape(config, tmp_path, "data.train", (shape,))
    assert settled.shape == shape
    assert found is not None
    assert found.where == "a.jsonl:1"
    source = open_source(settled, tmp_path)
    documents = list(source.documents(source.shards()[0]))
    assert all(isinstance(item, Document) and item.text for item in documents)


def test_the_task_chooses_where_a_record_fits_several() -> None:
    both = [("a:1", {"text": "x", "label": "y", "messages": [turn("user", "z")], "prompt": "p", "completion": "c"})]
    for accepted in ((TEXT,), (MESSAGES, PAIR), (PAIR, MESSAGES), (LABELLED,)):
        found = detect(both, accepted, Keys())
        assert found is not None
        assert found.shape == accepted[0]


def test_records_for_another_task_name_the_task(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(
        DataError, match=r"a\.jsonl:1: data\.train: holds chats[\s\S]*write task: instruction"
    ) as caught:
        built(tmp_path, tokenizer, [RECORDS[MESSAGES]], "causal_lm")
    assert 'records of text, such as {"text": "..."}' in str(caught.value)
    with pytest.raises(DataError, match="write task: classification"):
        built(tmp_path, tokenizer, [RECORDS[LABELLED]], "instruction")


def test_unknown_records_are_listed_with_what_was_expected(tmp_path: Path, tokenizer: Path) -> None:
    with pytest.raises(DataError) as caught:
        built(tmp_path, tokenizer, [{"question": "?", "reply": "!"}], "instruction")
    said = str(caught.value)
    assert "a.jsonl:1" in said
    assert "the record's keys: 'question', 'reply'" in said
    assert '{"messages": [{"role": "user"' in said
    assert '{"prompt": "...", "response": "..."}' in said


def test_plain_text_has_no_chats(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.txt").write_text("the sea")
    request = StoreRequest(
        (SourceConfig(paths=("a.txt",)),), None, tokenizer, Path("cache"), tmp_path, reading=Reading("instruction")
    )
    with pytest.raises(DataError, match="is plain text, but the task learns from chats"):
        build_store(request)


def test_mixed_records_name_the_line_and_what_was_expected(tmp_path: Path, tokenizer: Path) -> None:
    records = [RECORDS[MESSAGES], RECORDS[PAIR], RECORDS[MESSAGES], RECORDS[TEXT]]
    with pytest.raises(DataError) as caught:
        built(tmp_path, tokenizer, records, "instruction")
    first, second = caught.value.problems
    assert first.where == "a.jsonl:2"
    assert "has no 'messages'; its keys: 'prompt', 'response'" in first.rule
    assert 'expected chats, such as {"messages"' in first.fix
    assert "data.train.options.on_error: skip" in first.fix
    assert second.where == "a.jsonl:4"
    store = built(tmp_path, tokenizer, records, "instruction", options={"on_error": "skip"})
    assert store.manifest.skipped == {"no chat": 2}
    assert store.manifest.train.documents == 2


def test_the_shape_is_shown_and_can_be_set(tmp_path: Path, tokenizer: Path) -> None:
    records = [RECORDS[MESSAGES] | RECORDS[PAIR]] * 2
    store = built(tmp_path, tokenizer, records, "instruction")
    assert store.manifest.shapes[0].startswith("data.train holds chats, such as")
    assert store.manifest.shapes[0].endswith("read off a.jsonl:1")
    assert built(tmp_path, tokenizer, records, "instruction", shape=PAIR).manifest.key != store.manifest.key
    with pytest.raises(DataError, match="is not what the task learns from: text"):
        built(tmp_path, tokenizer, records, "causal_lm", shape=PAIR)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"messages": []}, "holds an empty list as 'messages', not a list of messages"),
        ({"messages": ["hello"]}, "holds str as message 1, not an object"),
        ({"messages": [{"content": "x"}]}, "has no 'role' in message 1; that one's keys: 'content'"),
        ({"messages": [turn("user", "x"), {"role": "assistant"}]}, r"has no 'content' in message 2 \(assistant\)"),
        ({"messages": [{"role": "user", "content": 5}]}, "holds int as the 'content' of message 1"),
        ({"messages": [turn("user", "x")], "tools": "{"}, "holds text as 'tools' that is not JSON"),
        ({"messages": [turn("user", "x")], "tools": {"a": 1}}, "holds dict as 'tools', not a list of JSON schemas"),
    ],
)
def test_chats_that_are_none(record: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRecord, match=said):
        read_chat(record)


def test_chats_are_read_in_their_several_forms() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]}
    chat = read_chat({"messages": [turn("user", "x"), call], "tools": json.dumps([{"name": "add"}])})
    assert chat.messages[1] == {"role": "assistant", "tool_calls": call["tool_calls"]}
    assert chat.tools == ({"name": "add"},)
    shared = read_chat({"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]})
    assert list(shared.messages) == [turn("user", "x"), turn("assistant", "y")]
    assert read_chat({"messages": [turn("user", "x")], "tools": []}).tools is None


def test_pairs_and_labels() -> None:
    assert read_pair({"prompt": "a", "completion": "b"}) == ("a", "b")
    assert list(pair_as_chat({"prompt": "a", "response": "b"}).messages) == [turn("user", "a"), turn("assistant", "b")]
    with pytest.raises(BadRecord, match="has an empty 'response': there is nothing to learn"):
        read_pair({"prompt": "a", "response": " \n"})
    with pytest.raises(BadRecord, match="holds list as 'prompt', not text"):
        read_pair({"prompt": ["a"], "response": "b"})
    assert read_label({"text": "a", "label": 3}, Keys()) == ("a", "3")
    assert read_label({"body": "a", "class": "x"}, Keys("body", "class")) == ("a", "x")
    for label, said in ((None, "has no 'label'"), (True, "holds bool"), (["x"], "holds a list"), (1.5, "holds float")):
        with pytest.raises(BadRecord, match=said):
            read_label({"text": "a", "label": label}, Keys())


def test_csv_and_parquet_hold_records_too(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.csv").write_text("id,prompt,response\n1,the sea?,grey\n2,the stone?,under the sea\n")
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra parquet")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")
    rows = [CHATS["one turn"], CHATS["two turns"]]
    parquet.write_table(
        pyarrow.Table.from_pylist([{"id": 1, "note": None, **row} for row in rows]), tmp_path / "b.parquet"
    )
    for name in ("a.csv", "b.parquet"):
        config = SourceConfig(paths=(name,))
        request = StoreRequest((config,), None, tokenizer, Path("cache"), tmp_path, reading=Reading("instruction"))
        store = TokenStore(build_store(request))
        assert store.manifest.train.documents == 2
        assert store.manifest.kind == "chat"


def test_a_tokenizer_is_trained_on_the_words_of_chats(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", list(CHATS.values()))
    text = TrainingText((SourceConfig(paths=("a.jsonl",)),), 0.0, 0, tmp_path)
    ((_, source),) = text.open()
    words = [item.text for item in source.documents(source.shards()[0]) if isinstance(item, Document)]
    assert words[1] == "the lantern under the stone?\nnobody walked.\nquietly\nthe morning light\nof the sea"
