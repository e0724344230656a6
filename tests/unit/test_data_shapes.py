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
from headway.data.pairs import read_pair
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
    read_chat,
    read_label,
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
        ({"messages": None}, "holds null as 'messages'"),
        ({"messages": [turn("Assistant", "x")]}, "has the role 'Assistant' in message 1"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]}, "has a part of type 'image'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "has a part without text in message 1"),
        ({"messages": [{"role": "user", "content": [5]}]}, "has a part without text in message 1"),
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
    for record in (  # as written by others: in parts, as JSON text, ShareGPT's words under the other name
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}, turn("assistant", "y")]},
        {"messages": json.dumps([turn("user", "x"), turn("assistant", "y")])},
        {"messages": [{"from": "Human", "value": "x"}, {"from": "model", "value": "y"}]},
    ):
        assert read_chat(record).messages == shared.messages


def test_pairs_and_labels() -> None:
    assert read_pair({"prompt": "a", "completion": "b"}).plain == ("a", "b")
    pair = read_pair({"prompt": "a", "response": "b"})
    assert list(pair.chat.messages) == [turn("user", "a"), turn("assistant", "b")]
    with pytest.raises(BadRecord, match="has an empty 'response': there is nothing to learn"):
        read_pair({"prompt": "a", "response": " \n"})
    alpaca = {"instruction": "add", "input": "1 2", "output": "3"}
    assert read_pair(alpaca).plain == ("add\n\n1 2", "3")
    plain = read_pair(alpaca | {"input": ""}).plain
    assert plain == read_pair({"instruction": "add", "output": "3", "system": "", "history": []}).plain == ("add", "3")
    assert read_label({"text": "a", "label": 3}, Keys()) == ("a", "3")
    assert read_label({"body": "a", "class": "x"}, Keys("body", "class")) == ("a", "x")
    for label, name in ((True, "true"), (2.0, "2"), (" x ", "x")):
        assert read_label({"text": "a", "label": label}, Keys()) == ("a", name)
    wrong: list[tuple[Any, str]] = [(None, "has nothing as 'label'"), (["x"], "holds a list"), (1.5, "holds float")]
    for label, said in [*wrong, ({"x": 1}, "holds dict"), (" ", "holds str")]:
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
    write_jsonl(tmp_path / "b.jsonl", [{"prompt": "sea?", "chosen": [turn("assistant", "grey")], "rejected": "blue"}])
    ((_, source),) = TrainingText((SourceConfig(paths=("b.jsonl",)),), 0.0, 0, tmp_path).open()
    (found,) = source.documents(source.shards()[0])
    assert isinstance(found, Document)
    assert found.text == "sea?\ngrey\nblue"


def test_records_as_others_write_them_are_read(tmp_path: Path, tokenizer: Path) -> None:
    """Their words are those of the plain form, so the tokens are too."""
    plain = {"messages": [turn("user", "the sea?"), turn("assistant", "grey")]}
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "the sea?"}]}, plain["messages"][1]]}
    alike = [
        parts,
        {"messages": json.dumps(plain["messages"])},
        {"conversations": [{"from": "human", "value": "the sea?"}, {"from": "gpt", "value": "grey"}]},
        {"prompt": "the sea?", "completion": "grey"},
        {"instruction": "the sea?", "input": "", "output": "grey"},
    ]
    wanted = built(tmp_path, tokenizer, [plain] * 2, "instruction").manifest.hash
    for record in alike:
        assert built(tmp_path, tokenizer, [record] * 2, "instruction").manifest.hash == wanted, record


@pytest.mark.parametrize(
    ("record", "task", "said"),
    [
        (
            {"messages": [turn("user", "x"), turn("assistant", " ")]},
            "instruction",
            "has empty answers of the assistant's",
        ),
        ({"messages": [turn("user", "x"), turn("bard", "y")]}, "instruction", "its roles: 'user', 'bard'"),
        (
            {"messages": [turn("user", "x"), {"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]}]},
            "instruction",
            r"calls a tool \(add\), and the chat template does not write it",
        ),
        ({"messages": 5}, "instruction", "holds int as 'messages', not a list of messages"),
        (
            {"text": "x", "labels": ["y"]},
            "classification",
            "holds texts without 'label'[\\s\\S]*name the label's key with",
        ),
        ({"prompt": "x", "chosen": 1, "rejected": "y"}, "preference", "holds int as 'chosen'"),
        ({"prompt": "x", "chosen": turn("assistant", "y"), "rejected": "z"}, "preference", "holds dict as 'chosen'"),
        (
            {"prompt": "x", "chosen": [turn("user", "y"), turn("assistant", "z")], "rejected": "z"},
            "preference",
            "goes on behind 'prompt' with a message of the user's in 'chosen'",
        ),
    ],
)
def test_records_that_would_teach_something_else(
    tmp_path: Path, tokenizer: Path, record: dict[str, Any], task: str, said: str
) -> None:
    with pytest.raises(DataError, match=said) as caught:
        built(tmp_path, tokenizer, [record], task)
    assert "a.jsonl:1" in str(caught.value)


def test_what_is_odd_in_a_chat_is_counted(tmp_path: Path, tokenizer: Path) -> None:
    silent = {"messages": [*CHATS["two turns"]["messages"][:2], turn("user", "x"), turn("assistant", "")]}
    store = built(
        tmp_path, tokenizer, [silent, CHATS["one turn"], CHATS["one turn"] | {"tools": [{"name": "f"}]}], "instruction"
    )
    assert [note.partition(" documents ")[0::2] for note in store.manifest.notes] == [
        ("1", "hold an answer of the assistant's without a word: to end at once is learnt there"),
        ("1", "bring tools, and the chat template does not write them"),
    ]


def test_a_preference_may_repeat_its_prompt(tmp_path: Path, tokenizer: Path) -> None:
    """As in UltraFeedback: `prompt`, and chats that begin with it."""
    whole = {name: [turn("user", "the sea?"), turn("assistant", name)] for name in ("chosen", "rejected")}
    apart = {"prompt": "the sea?", "chosen": "chosen", "rejected": "rejected"}
    stores = [
        built(tmp_path, tokenizer, [each], "preference") for each in (whole, apart, whole | {"prompt": "the sea?"})
    ]
    assert len({store.manifest.hash for store in stores}) == 1


@pytest.mark.parametrize("raw", ['{"text": "x"}\n', '[{"text": "x"}]'])
def test_json_in_another_encoding_says_how_to_convert_it(tmp_path: Path, tokenizer: Path, raw: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(raw.encode("utf-16"))
    request = StoreRequest((SourceConfig(paths=("a.jsonl",)),), None, tokenizer, Path("cache"), tmp_path)
    with pytest.raises(DataError, match=r"is UTF-16 or UTF-32[\s\S]*iconv -f utf-16"):
        build_store(request)


@pytest.mark.parametrize(
    ("raw", "options", "said"),
    [
        ("text;label\na;b\n", {}, r'has one column, \'text;label\'[\s\S]*options.delimiter: ";"'),
        ("text\tlabel\na\tb\n", {}, r'options.delimiter: "\\t"'),
        ("text,label,label\na,b,c\n", {}, "names the column 'label' twice"),
        ("text,label\na,b\nc, d,b\n", {}, r"a\.csv:3: data\.train: has 3 fields, and the header 2"),
        ('text,label\na,b\n"c,b\nd,b\n', {}, r"a\.csv:3: [\s\S]*a quote is opened there and never closed"),
        ("text,label\na\nb,c\n", {}, "has nothing as 'label'"),
        ("text,label\na,b\n", {"delimiter": "::"}, "must be one character between two fields"),
        ("text,label\na,b\n", {"delimiter": 3}, "must be one character between two fields"),
    ],
)
def test_csv_that_would_be_read_otherwise(
    tmp_path: Path, tokenizer: Path, raw: str, options: dict[str, Any], said: str
) -> None:
    (tmp_path / "a.csv").write_text(raw)
    config = SourceConfig(paths=("a.csv",), options=options)
    reading = Reading("classification")
    with pytest.raises(DataError, match=said):
        build_store(StoreRequest((config,), None, tokenizer, Path("cache"), tmp_path, reading=reading))


def test_csv_with_spaces_blank_lines_and_lists(tmp_path: Path, tokenizer: Path) -> None:
    for name, raw, labels in (
        ("a.csv", '\ufefftext, label\r\n\r\n"a ""b""\nc", pos\r\nd,neg \r\n', ("neg", "pos")),
        ("b.csv", 'text,label\na,"[""x"", ""y""]"\nb,[]\n', ("x", "y")),
    ):
        (tmp_path / name).write_text(raw, newline="")
        request = StoreRequest(
            (SourceConfig(paths=(name,)),), None, tokenizer, Path("cache"), tmp_path, reading=Reading("classification")
        )
        store = TokenStore(build_store(request))
        assert store.manifest.labels == labels
        assert store.manifest.train.documents == 2


def test_a_lone_surrogate_in_a_label_is_replaced_and_counted(tmp_path: Path, tokenizer: Path) -> None:
    records = [{"text": "the sea", "label": "a\ud800"}, {"text": "the stone", "label": "b"}]
    manifest = built(tmp_path, tokenizer, records, "classification").manifest
    assert manifest.labels == ("a\ufffd", "b")
    assert manifest.repaired == 1
    with pytest.raises(DataError, match="has no 'label'; its keys: 'text'"):
        built(tmp_path, tokenizer, [*records, {"text": "x"}], "classification")
