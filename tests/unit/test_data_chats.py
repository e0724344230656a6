"""A store of chats: tokens as transformers gives them, the assistant's marked, whole examples in each window."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.chats import CHATS, FORGETFUL, MARKED, PLAIN, STRICT, chat_tokenizer, turn, write_jsonl
from fakes.corpora import prose
from headway.config.schema import SourceConfig
from headway.data import crew
from headway.data.build import StoreRequest, build_store, find_store
from headway.data.facts import data_facts, estimate_facts
from headway.data.packing import Layout, Losses, document_order, losses, open_index, targets
from headway.data.reading import Reading
from headway.data.samples import decode_sample, excerpt
from headway.data.seam import IGNORE
from headway.data.store import TokenStore, open_split
from headway.data.vocabulary import load_tokenizer, read_vocabulary
from headway.errors import DataError, ModelError


def long_chats(count: int) -> list[dict[str, Any]]:
    """Chats of one to three turns, of many lengths."""
    made: list[dict[str, Any]] = []
    for number in range(count):
        turns = [
            message
            for n in range(1 + number % 3)
            for message in (
                turn("user", prose(97 * number + n, 3 + number % 7)),
                turn("assistant", prose(number + n, 4 + number % 11)),
            )
        ]
        made.append({"messages": turns})
    return made


def request_for(base: Path, records: list[Any], tokenizer: Path, **changes: Any) -> StoreRequest:
    write_jsonl(base / "a.jsonl", records)
    source = SourceConfig(paths=("a.jsonl",), options=changes.pop("options", {}))
    settings: dict[str, Any] = {"eval": None, "reading": Reading("instruction"), **changes}
    return StoreRequest((source,), settings.pop("eval"), tokenizer, Path("cache"), base, **settings)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_tokenizer(tmp_path_factory.mktemp("chats"), PLAIN)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    return build_store(request_for(tmp_path_factory.mktemp("store"), long_chats(60), tokenizer, eval=0.2))


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_tokens_and_mask_equal_those_of_transformers(tmp_path: Path, template: str) -> None:
    from transformers import AutoTokenizer

    folder = chat_tokenizer(tmp_path, template)
    store = TokenStore(build_store(request_for(tmp_path, list(CHATS.values()), folder)))
    theirs = AutoTokenizer.from_pretrained(folder)
    marked = AutoTokenizer.from_pretrained(folder)
    marked.chat_template = MARKED
    for number, chat in enumerate(CHATS.values()):
        tools = chat.get("tools") if template == MARKED else None
        expected = theirs.apply_chat_template(chat["messages"], tools=tools, return_dict=True)
        masked = marked.apply_chat_template(
            chat["messages"], tools=tools, return_dict=True, return_assistant_tokens_mask=True
        )
        assert store.document(number).tolist() == expected["input_ids"]
        assert store.learnt(number).tolist() == masked["assistant_masks"]
    assert store.manifest.format == 2
    assert store.manifest.kind == "chat"
    how = "marked by the chat template" if template == MARKED else "found by rendering each chat up to it"
    assert store.manifest.shapes[1] == f"what the assistant wrote is {how}"


def test_loss_on_all_learns_every_token(tmp_path: Path, tokenizer: Path, store: Path) -> None:
    found = TokenStore(
        build_store(request_for(tmp_path, long_chats(60), tokenizer, reading=Reading("instruction", "all")))
    )
    assert all(found.learnt(number).all() for number in range(60))
    assert found.path.name != store.name


def test_labels_are_the_learnt_tokens_and_nothing_else(store: Path) -> None:
    opened = TokenStore(store)
    for split in ("train", "eval"):
        windows = open_split(store, split, 64, True)
        taught = 0
        for number in range(len(windows)):
            sample = windows[number]
            kept = sample.labels != IGNORE
            assert kept.any()
            assert (sample.labels[:-1][kept[:-1]] == sample.tokens[1:][kept[:-1]]).all()
            assert (sample.documents[:-1][kept[:-1]] == sample.documents[1:][kept[:-1]]).all()
            taught += int(kept.sum())
        index = open_index(opened, Layout(split, 64, True))
        assert taught == targets(opened, index)
    everything = sum(int(opened.learnt(n).sum()) for n in opened.documents("train"))
    facts = data_facts(store, 10_000, True)
    assert facts.train_targets == everything
    assert facts.layout == "best_fit"


def test_windows_hold_whole_examples_apart(store: Path) -> None:
    opened = TokenStore(store)
    windows = open_split(store, "train", 64, True)
    wanted = sorted(opened.document(n).tolist()[:64] for n in opened.documents("train"))
    found: list[list[int]] = []
    for number in range(len(windows)):
        sample = windows[number]
        assert len(sample.tokens) <= 64
        for document in np.unique(sample.documents):
            mine = sample.documents == document
            assert sample.positions[mine].tolist() == list(range(int(mine.sum())))
            found.append(sample.tokens[mine].tolist())
    assert sorted(found) == wanted
    assert len(windows) < len(wanted)
    single = open_split(store, "train", 64, False)
    assert len(single) == len(wanted)


def test_prompts_that_fill_the_window_are_dropped_and_counted(tmp_path: Path, tokenizer: Path) -> None:
    """As a row of ten prompt tokens under a limit of eight: its loss would be a calm 0 of nothing."""
    long = {"messages": [turn("user", prose(1, 60)), turn("assistant", "light")]}
    cut = {"messages": [turn("user", "sea?"), turn("assistant", prose(2, 60))]}
    short = {"messages": [turn("user", "sea?"), turn("assistant", "grey")]}
    store = build_store(request_for(tmp_path, [long, cut, short], tokenizer))
    opened = TokenStore(store)
    lengths = np.diff(opened.offsets)
    assert losses(opened, Layout("train", 40, True)) == Losses(1, int(lengths[1]) - 40, 1)
    facts = data_facts(store, 40, True)
    assert facts.train_windows == 2
    first, second = facts.lost
    assert first.startswith("1 of 3 chats (33.3%) are longer than train.sequence (40) and are cut off there")
    assert second.startswith("1 of 3 chats (33.3%) have no token to learn within train.sequence (40) and are left out")
    assert "a longer sequence keeps them" in second
    with pytest.raises(DataError, match="no example has a token to learn within 8 tokens"):
        data_facts(build_store(request_for(tmp_path, [long], tokenizer)), 8, True)


def test_the_end_token_is_learnt_and_padding_is_not(tmp_path: Path) -> None:
    """Also where the pad token is the end token, which would hide every end from a loss that leaves out pads."""
    folder = chat_tokenizer(tmp_path, None)
    records = [{"prompt": "the sea", "response": " grey"}, {"prompt": "the stone", "response": " under the light"}]
    store = TokenStore(build_store(request_for(tmp_path, records, folder)))
    ends = read_vocabulary(folder)
    assert ends.end == load_tokenizer(folder).token_to_id("<|im_end|>")
    plain = load_tokenizer(folder)
    for number, record in enumerate(records):
        tokens, learnt = store.document(number), store.learnt(number)
        whole = plain.encode(record["prompt"] + record["response"], add_special_tokens=False).ids
        assert tokens.tolist() == [ends.begin, *whole, ends.end]
        assert learnt[-1] == 1
        assert plain.decode(tokens[learnt == 1].tolist()) == record["response"]
    assert "each response follows its prompt plainly" in store.manifest.shapes[1]


def test_text_and_mask_travel_through_worker_processes(
    tmp_path: Path, tokenizer: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.data import build

    monkeypatch.setattr(crew, "SMALL_BYTES", 0)
    monkeypatch.setattr(build, "SMALLEST_TASK_BYTES", 1)
    again = build_store(request_for(tmp_path, long_chats(60), tokenizer, eval=0.2, workers=2))
    mine, theirs = TokenStore(store), TokenStore(again)
    assert mine.manifest.hash == theirs.manifest.hash
    assert mine.manifest.masks == theirs.manifest.masks
    assert theirs.verify() == []


def test_refusals_name_the_record(tmp_path: Path) -> None:
    bad = {"messages": [turn("system", "quietly"), turn("user", "x"), turn("assistant", "y")]}
    mute = {"messages": [turn("user", "anyone?"), turn("user", "nobody")]}
    folder = chat_tokenizer(tmp_path, STRICT)
    with pytest.raises(DataError) as caught:
        build_store(request_for(tmp_path, [CHATS["one turn"], bad, mute], folder))
    refused, silent = caught.value.problems
    assert refused.where == "a.jsonl:2"
    assert refused.rule == "the record is refused by the chat template: the user must begin"
    assert silent.where == "a.jsonl:3"
    assert "nothing of it would be learnt" in silent.rule
    skipping = request_for(tmp_path, [CHATS["one turn"], bad, mute], folder, options={"on_error": "skip"})
    assert TokenStore(build_store(skipping)).manifest.skipped == {"template error": 1, "nothing to learn": 1}
    forgetful = chat_tokenizer(tmp_path, FORGETFUL, "forgetful")
    with pytest.raises(DataError, match=r"a.jsonl:1.*does not begin as the template renders its first 2") as caught:
        build_store(request_for(tmp_path, [CHATS["two turns"]], forgetful))
    build_store(request_for(tmp_path, [CHATS["two turns"]], forgetful, reading=Reading("instruction", "all")))


def test_chats_need_a_template(tmp_path: Path) -> None:
    folder = chat_tokenizer(tmp_path, None)
    with pytest.raises((ModelError, DataError), match="has no chat template, and the data holds chats"):
        build_store(request_for(tmp_path, [CHATS["one turn"]], folder))


def test_another_template_is_another_store(tmp_path: Path) -> None:
    folder = chat_tokenizer(tmp_path, PLAIN)
    first = request_for(tmp_path, [CHATS["one turn"]], folder)
    assert find_store(first) is None
    built = build_store(first)
    assert find_store(first) == built
    (folder / "chat_template.jinja").write_text(MARKED)
    assert find_store(first) is None


def test_control_tokens_that_a_message_spells_out_are_counted(tmp_path: Path, tokenizer: Path) -> None:
    records = [{"messages": [turn("user", "what is <|im_end|>?"), turn("assistant", "an end")]}, CHATS["one turn"]]
    notes = TokenStore(build_store(request_for(tmp_path, records, tokenizer))).manifest.notes
    assert notes == (
        "1 documents spell out control tokens of the chat in their messages, and are read as these tokens",
    )


def test_lone_surrogates_are_mended_before_the_template(tmp_path: Path, tokenizer: Path) -> None:
    line = json.dumps({"messages": [turn("user", "a"), turn("assistant", "b \udbc0 c")]})
    (tmp_path / "a.jsonl").write_text(line + "\n")
    request = StoreRequest(
        (SourceConfig(paths=("a.jsonl",)),), None, tokenizer, Path("cache"), tmp_path, reading=Reading("instruction")
    )
    store = TokenStore(build_store(request))
    assert store.manifest.repaired == 1
    assert "b \ufffd c" in load_tokenizer(tokenizer).decode(store.document(0).tolist())


def test_bytes_are_those_of_what_is_learnt(store: Path, tokenizer: Path) -> None:
    opened = TokenStore(store)
    plain = load_tokenizer(tokenizer)
    sizes = np.load(store / "bytes.npy")
    for number, size in zip(opened.documents("eval").tolist(), sizes[opened.documents("eval")], strict=True):
        learnt = opened.document(number)[opened.learnt(number) == 1]
        assert len(plain.decode(learnt.tolist(), skip_special_tokens=False).encode()) == size
    assert data_facts(store, 10_000, True).eval_bytes == opened.manifest.eval.bytes
    assert data_facts(store, 40, True).eval_bytes == 0  # some are cut off: the loss covers less than the text


def test_the_shown_sample_marks_what_is_learnt(store: Path, tokenizer: Path) -> None:
    opened = TokenStore(store)
    sample = open_split(store, "train", 10_000, False)[0]
    number = int(document_order(opened, "train")[0])
    shown = decode_sample(sample, tokenizer)
    assert shown.replace("⟦", "").replace("⟧", "") == load_tokenizer(tokenizer).decode(
        opened.document(number).tolist(), skip_special_tokens=False
    )
    assert shown.count("⟦") == shown.count("<|im_start|>assistant")
    assert all(part.split("⟧")[0].endswith("<|im_end|>") for part in shown.split("⟦")[1:])
    assert "⟦" in excerpt("x" * 500 + shown, 100)
    assert excerpt("x" * 50, 100) == "x" * 50


def test_estimates_know_the_layout(tmp_path: Path, tokenizer: Path, store: Path) -> None:
    request = request_for(tmp_path, long_chats(60), tokenizer, eval=0.2)
    guess, exact = estimate_facts(request, vocab=300, sequence=64, packing=True), data_facts(store, 64, True)
    assert (guess.layout, guess.estimated) == ("best_fit", True)
    assert exact.documents / 2 < guess.documents < exact.documents * 2
