"""Pairs and preferences of messages: the tokens and the learnt ones are those that TRL's trainers make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from fakes.chats import FORGETFUL, MARKED, PLAIN, TOOLS, chat_tokenizer, turn, write_jsonl
from fakes.models import config_of
from headway.config.schema import SourceConfig
from headway.data.build import StoreRequest, build_store
from headway.data.pairs import read_pair
from headway.data.reading import Reading
from headway.data.shapes import BadRecord
from headway.data.store import TokenStore
from headway.errors import DataError

trl = pytest.importorskip("trl", reason="needs the package trl (extra dev)")
datasets = pytest.importorskip("datasets", reason="needs the package datasets (extra dev)")

ASKED = [turn("system", "walk quietly"), turn("user", "the grey sea?")]
EARLIER = [*ASKED, turn("assistant", "yes"), turn("user", "why?")]
PAIRS: list[dict[str, Any]] = [
    {"prompt": [turn("user", "the sea?")], "completion": [turn("assistant", "the grey sea.")]},
    {"prompt": ASKED, "completion": [turn("assistant", "under the stone \u4f60\u597d")]},
    {"prompt": EARLIER, "completion": [turn("assistant", "the morning light\nof the sea")]},
]
SEVERAL = [turn("assistant", "one"), turn("user", "the stone?"), turn("assistant", "two")]
PREFERENCES: list[dict[str, Any]] = [
    {
        "prompt": pair["prompt"],
        "chosen": pair["completion"],
        "rejected": [turn("assistant", "nobody walked")],
    }
    for pair in PAIRS
]


@pytest.fixture(scope="module", params=[PLAIN, MARKED], ids=["plain", "marked"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_tokenizer(tmp_path_factory.mktemp("pairs"), request.param)


def store_of(base: Path, tokenizer: Path, records: list[dict[str, Any]], task: str = "instruction") -> TokenStore:
    base.mkdir(exist_ok=True)
    write_jsonl(base / "a.jsonl", records)
    source = SourceConfig(paths=("a.jsonl",))
    return TokenStore(build_store(StoreRequest((source,), None, tokenizer, Path("cache"), base, reading=Reading(task))))


def prepared(kind: str, folder: Path, base: Path, records: list[dict[str, Any]], **options: Any) -> list[Any]:
    """The rows that a trainer of TRL's makes of the records before its first step."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, pad_token="<|im_end|>")
    settings = {"output_dir": str(base / "trl"), "use_cpu": True, "report_to": "none", "bf16": False, **options}
    settings["activation_checkpointing"] = False  # TRL's default says it by a name that transformers warns of
    config = AutoConfig.for_model(**config_of("llama", vocab_size=len(tokenizer)))
    model = AutoModelForCausalLM.from_config(config)
    trainer = getattr(trl, f"{kind}Trainer")(
        model=model,
        args=getattr(trl, f"{kind}Config")(**settings),
        train_dataset=datasets.Dataset.from_list(records),
        processing_class=tokenizer,
        **({"ref_model": AutoModelForCausalLM.from_config(config)} if kind == "DPO" else {}),
    )
    return list(trainer.train_dataset)


def closed(tokens: list[int], end: int) -> int:
    """How many tokens there are up to the last end token: no model is asked for the white space behind it."""
    return len(tokens) - tokens[::-1].index(end)


def end_of(folder: Path) -> int:
    found = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    return next(token["id"] for token in found if token["content"] == "<|im_end|>")


def test_a_completion_of_messages_is_learnt_as_trl_learns_it(folder: Path, tmp_path: Path) -> None:
    """What the assistant says in the prompt is not; TRL alone also learns the line end behind the last token."""
    store, end = store_of(tmp_path, folder, PAIRS), end_of(folder)
    for number, row in enumerate(prepared("SFT", folder, tmp_path, PAIRS)):
        tokens, labels = row["input_ids"], row["labels"]
        whole = closed(tokens, end)
        assert store.document(number).tolist() == tokens
        assert store.learnt(number).tolist()[:whole] == [int(label >= 0) for label in labels[:whole]]
        assert not store.learnt(number)[whole:].any()


def test_of_a_completion_of_several_turns_only_the_assistants_are_learnt(tmp_path: Path) -> None:
    """As TRL does under assistant_only_loss; without it TRL learns what the user says there too."""
    folder = chat_tokenizer(tmp_path, MARKED)
    records = [{"prompt": EARLIER, "completion": SEVERAL}, PAIRS[2]]
    store = store_of(tmp_path, folder, records)
    for number, row in enumerate(prepared("SFT", folder, tmp_path, records, assistant_only_loss=True)):
        assert store.document(number).tolist() == row["input_ids"]
        assert store.learnt(number).tolist() == [int(label >= 0) for label in row["labels"]]


def test_answers_of_messages_are_learnt_as_trl_learns_them(folder: Path, tmp_path: Path) -> None:
    """Also of whole conversations that begin alike, where the prompt is what they share."""
    end = end_of(folder)
    whole = [{side: [*record["prompt"], *record[side]] for side in ("chosen", "rejected")} for record in PREFERENCES]
    rows = prepared("DPO", folder, tmp_path, PREFERENCES)
    for name, records in (("apart", PREFERENCES), ("whole", whole)):
        store = store_of(tmp_path / name, folder, records, "preference")
        assert store.seconds is not None
        for number, row in enumerate(rows):
            tokens, learnt = store.document(number).tolist(), store.learnt(number).tolist()
            border = int(store.seconds[number])
            sides = ((tokens[:border], learnt[:border]), (tokens[border:], learnt[border:]))
            for (ids, taught), side in zip(sides, ("chosen_ids", "rejected_ids"), strict=True):
                assert ids == row["prompt_ids"] + row[side]
                last = closed(ids, end)
                first = len(row["prompt_ids"])
                assert taught == [int(first <= place < last) for place in range(len(ids))]


def test_forms_of_a_pair_that_mean_the_same_are_the_same_store(folder: Path, tmp_path: Path) -> None:
    text = {"prompt": "the sea?", "completion": "grey"}
    said = {"prompt": [turn("user", "the sea?")], "completion": [turn("assistant", "grey")]}
    forms: list[dict[str, Any]] = [
        text,
        said,
        {"prompt": "the sea?", "response": said["completion"]},
        {name: json.dumps(value) for name, value in said.items()},
        {"prompt": [{"from": "human", "value": "the sea?"}], "completion": [{"from": "gpt", "value": "grey"}]},
        {"prompt": said["prompt"], "completion": [*said["prompt"], *said["completion"]]},  # a whole chat
        {"instruction": "the sea?", "output": "grey", "system": "", "history": []},
    ]
    assert len({store_of(tmp_path, folder, [form]).manifest.hash for form in forms}) == 1
    asked = {"instruction": "the grey sea?", "output": "no", "system": "walk quietly", "history": [["a?", "b"]]}
    chat = [
        turn("system", "walk quietly"),
        turn("user", "a?"),
        turn("assistant", "b"),
        ASKED[1],
        turn("assistant", "no"),
    ]
    same = {store_of(tmp_path, folder, [each]).manifest.hash for each in (asked, {"messages": chat})}
    assert len(same) == 1
    sides = {"chosen": "grey", "rejected": "blue"}
    lists = {name: json.dumps([turn("assistant", text)]) for name, text in sides.items()}
    preferences = [
        {"prompt": "the sea?", **sides},
        {"instruction": "the sea?", "input": "", **sides},
        {"prompt": json.dumps([turn("user", "the sea?")]), **lists},
    ]
    assert len({store_of(tmp_path, folder, [each], "preference").manifest.hash for each in preferences}) == 1


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (
            {"prompt": ASKED, "completion": [turn("user", "x"), turn("assistant", "y")]},
            "goes on behind 'prompt' with a message of the user's",
        ),
        ({"prompt": ASKED, "completion": ASKED}, "has no message of the assistant's at the end of 'completion'"),
        ({"prompt": ASKED, "completion": []}, "holds an empty list as 'completion', not a text or a list of messages"),
        ({"prompt": turn("user", "x"), "completion": "y"}, "holds dict as 'prompt', not a text or a list of messages"),
        ({"prompt": ["x"], "completion": "y"}, "holds str as message 1, not an object with role and content"),
        ({"prompt": ASKED, "completion": [turn("assistant", "x"), turn("user", "y")]}, "has no message of the assis"),
        ({"instruction": "x", "output": "y", "history": ["a", "b"]}, "holds something else as 'history' than pairs"),
        ({"instruction": [turn("user", "x")], "output": "y"}, "holds list as 'instruction', not text"),
    ],
)
def test_pairs_that_would_teach_something_else(record: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRecord, match=said):
        read_pair(record)


def test_a_pair_of_messages_needs_a_template_that_can_be_told_apart(tmp_path: Path) -> None:
    bare = chat_tokenizer(tmp_path / "a", None)
    with pytest.raises(DataError, match=r"a\.jsonl:1(.|\n)*holds messages, and the tokenizer has no chat template"):
        store_of(tmp_path / "b", bare, PAIRS)
    forgetful = chat_tokenizer(tmp_path / "c", FORGETFUL)
    with pytest.raises(DataError, match="what the assistant wrote cannot be told"):
        store_of(tmp_path / "d", forgetful, PAIRS[2:])


def test_tools_and_all_of_a_pair(tmp_path: Path) -> None:
    folder = chat_tokenizer(tmp_path, MARKED)
    pair, chat = (
        PAIRS[0] | {"tools": TOOLS},
        {"messages": [*PAIRS[0]["prompt"], *PAIRS[0]["completion"]], "tools": TOOLS},
    )
    assert len({store_of(tmp_path, folder, [each]).manifest.hash for each in (pair, chat)}) == 1
