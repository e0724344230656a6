"""The preference loss, from a store of records, against TRL's and against plain transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fakes.chats import MARKED, PLAIN, chat_tokenizer, turn, write_jsonl
from fakes.models import config_of, gradients, largest_difference, model_for, plan_for
from headway.config.load import from_mapping
from headway.config.schema import SourceConfig
from headway.data.build import StoreRequest, build_store
from headway.data.facts import data_facts
from headway.data.preferences import read_preference
from headway.data.reading import Reading
from headway.data.shapes import BadRecord
from headway.data.store import TokenStore, open_split
from headway.data.vocabulary import load_tokenizer
from headway.errors import ConfigError, DataError
from headway.task.preference import Preference, answers

SEQUENCE = 96
ASKED = turn("user", "the grey sea?")
PREFERENCES: list[dict[str, Any]] = [
    {"prompt": "the sea?", "chosen": "the grey sea.", "rejected": "nobody walked under the stone"},
    {"prompt": [ASKED], "chosen": [turn("assistant", "a lantern")], "rejected": [turn("assistant", "the light of it")]},
    {
        "chosen": [ASKED, turn("assistant", "yes"), turn("user", "why?"), turn("assistant", "the morning")],
        "rejected": [ASKED, turn("assistant", "yes"), turn("user", "why?"), turn("assistant", "stone, quietly")],
    },
]


def store_of(folder: Path, records: list[dict[str, Any]], template: str | None = MARKED) -> Path:
    tokenizer = chat_tokenizer(folder, template)
    write_jsonl(folder / "a.jsonl", records)
    reading = Reading("preference")
    return build_store(
        StoreRequest((SourceConfig(paths=("a.jsonl",)),), None, tokenizer, Path("cache"), folder, reading=reading)
    )


def task_for(vocab: int, **options: Any) -> Preference:
    return Preference(the_plan(vocab, **options))


def the_plan(vocab: int, *, chunk: int = 0, arch: str = "llama", **options: Any) -> Any:
    whole = {"beta": 0.3, "label_smoothing": 0.0, "per_token": False, "reference": "", **options}
    return plan_for(
        arch,
        config=config_of(arch, vocab_size=vocab),
        task={"kind": "preference", "options": whole},
        shape={"vocab": vocab},
        data={"sequence": SEQUENCE, "packing": False},
        numerics={"loss_chunk_tokens": chunk},
    )


def models(vocab: int, arch: str = "llama") -> tuple[Any, Any]:
    """A policy and another model as its reference."""
    changes = {"shape": {"vocab": vocab}, "data": {"packing": False}, "task": {"kind": "preference", "options": {}}}
    made = [
        model_for(arch, config=config_of(arch, vocab_size=vocab), numerics={"seed": seed}, **changes) for seed in (0, 1)
    ]
    return made[0], made[1]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    store = store_of(tmp_path_factory.mktemp("pairs"), PREFERENCES)
    return store, TokenStore(store).manifest.tokenizer.vocab


@pytest.mark.parametrize("template", [MARKED, PLAIN])
def test_only_the_answers_behind_the_prompt_are_learnt(tmp_path: Path, template: str) -> None:
    store = store_of(tmp_path, PREFERENCES, template)
    decoder = load_tokenizer(Path(TokenStore(store).manifest.tokenizer.path))
    found: set[tuple[str, ...]] = set()
    windows = open_split(store, "train", SEQUENCE, False)
    for number in range(len(windows)):
        texts = [
            decoder.decode(side.labels[side.labels >= 0].tolist(), skip_special_tokens=True)
            for side in answers(windows[number])
        ]
        found.add(tuple(text.strip() for text in texts))
    expected = {("the grey sea.", "nobody walked under the stone"), ("a lantern", "the light of it")}
    assert found == expected | {("the morning", "stone, quietly")}


def test_texts_without_a_template_follow_their_prompt(tmp_path: Path) -> None:
    store = TokenStore(store_of(tmp_path, PREFERENCES[:1], None))
    assert store.manifest.kind == "preference"
    assert int(store.learnt(0).sum()) > 4
    with pytest.raises(DataError, match=r"a\.jsonl:2.*no chat template"):
        store_of(tmp_path / "other", PREFERENCES, None)


def collated(pairs: tuple[Path, int], task: Preference, known: torch.Tensor | None = None) -> Any:
    from dataclasses import replace

    windows = open_split(pairs[0], "train", SEQUENCE, False)
    samples = [windows[number] for number in range(len(windows))]
    if known is not None:
        samples = [replace(s, reference=tuple(row)) for s, row in zip(samples, known.tolist(), strict=True)]
    return task.collate(samples, SEQUENCE)


def trl_loss(folder: Path, models: tuple[Any, Any], inputs: dict[str, torch.Tensor], **options: Any) -> torch.Tensor:
    """DPOTrainer's own loss of these pairs; its batch holds the chosen answers first."""
    trl = pytest.importorskip("trl", reason="needs the package trl (extra dev)")
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

    file = next(folder.glob("tokenizer/tokenizer.json"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token="<|im_end|>", pad_token="<|im_end|>")
    settings = {"use_cpu": True, "report_to": "none", "disable_dropout": False, "bf16": False}
    trainer = trl.DPOTrainer(
        model=models[0],
        ref_model=models[1],
        args=trl.DPOConfig(str(folder / "trl"), **settings, **options),
        train_dataset=Dataset.from_list([{k: PREFERENCES[0][k] for k in ("prompt", "chosen", "rejected")}]),
        processing_class=tokenizer,
    )
    models[0].eval()
    return trainer._compute_loss(models[0], inputs, return_outputs=False)


# TRL's classes warn of what is theirs to change.
@pytest.mark.filterwarnings("ignore::Warning")
def test_the_loss_and_its_gradients_are_trls(pairs: tuple[Path, int], tmp_path: Path) -> None:
    """Bounds: fp32; TRL sums rounded log-probabilities of padded rows in another order."""
    store, vocab = pairs
    policy, reference = models(vocab)
    for smoothing in (0.0, 0.2):
        task = task_for(vocab, label_smoothing=smoothing)
        with torch.no_grad():
            known = task.log_probabilities(reference, collated(pairs, task))
        batch = collated(pairs, task, known)
        terms = task.loss(policy, batch)
        (terms["loss"] / batch.counts["loss"]).backward()
        mine = gradients(policy)

        ids, labels = (batch.inputs[name].transpose(0, 1) for name in ("input_ids", "labels"))
        lengths = [len(side.tokens) for side in sides_of(store)]
        mask = torch.zeros_like(ids.flatten(0, 1))
        for row, length in enumerate(lengths):
            mask[row, :length] = 1
        learnt = F.pad((labels != -100).long(), (1, 0))[..., :-1].flatten(0, 1)
        inputs = {"input_ids": ids.flatten(0, 1), "attention_mask": mask, "completion_mask": learnt}
        if smoothing:  # "aot" smooths the sigmoid loss; of one pair it sorts nothing
            count = len(ids[0])
            each = [{k: v[[row, row + count]] for k, v in inputs.items()} for row in range(count)]
            options = {"beta": 0.3, "loss_type": "aot", "label_smoothing": smoothing}
            theirs = torch.stack([trl_loss(store.parents[1], (policy, reference), one, **options) for one in each])
            loss = theirs.mean()
        else:
            loss = trl_loss(store.parents[1], (policy, reference), inputs, beta=0.3, loss_type="sigmoid")
        loss.backward()
        assert float(terms["loss"]) / batch.counts["loss"] == pytest.approx(float(loss), rel=1e-5)
        assert largest_difference(mine, gradients(policy)) < 1e-4


def sides_of(store: Path) -> list[Any]:
    windows = open_split(store, "train", SEQUENCE, False)
    both = [answers(windows[number]) for number in range(len(windows))]
    return [pair[side] for side in (0, 1) for pair in both]


@pytest.mark.parametrize(("arch", "chunk"), [("llama", 0), ("llama", 7), ("gemma2", 0), ("opt", 0)])
@pytest.mark.parametrize("per_token", [False, True])
def test_log_probabilities_are_those_of_each_answer_alone(
    pairs: tuple[Path, int], arch: str, chunk: int, per_token: bool
) -> None:
    store, vocab = pairs
    changed = {"max_position_embeddings": SEQUENCE} if arch == "opt" else {}
    plan = the_plan(vocab, chunk=chunk, arch=arch, per_token=per_token)
    config = plan.model.config | changed
    task = Preference(plan)
    model = model_for(arch, config=config, shape={"vocab": vocab}, data={"packing": False})
    found = task.log_probabilities(model, collated(pairs, task)).detach()
    for row, side in enumerate(sides_of(store)):
        logits = model(input_ids=torch.from_numpy(side.tokens).long()[None], use_cache=False).logits[0].float()
        labels = torch.from_numpy(side.labels).long()
        kept = labels >= 0
        alone = -F.cross_entropy(logits[kept], labels[kept], reduction="mean" if per_token else "sum")
        assert float(found[row % 3, row // 3]) == pytest.approx(float(alone), rel=1e-5)


def test_a_model_is_indifferent_beside_itself(pairs: tuple[Path, int]) -> None:
    _, vocab = pairs
    task, (policy, _) = task_for(vocab), models(vocab)
    with torch.no_grad():
        known = task.log_probabilities(policy, collated(pairs, task))
        terms = task.loss(policy, collated(pairs, task, known))
    assert float(terms["loss"]) == pytest.approx(3 * np.log(2), rel=1e-6)
    assert float(terms["margin"]) == pytest.approx(0.0, abs=1e-5)


def test_long_answers_are_cut_and_hopeless_pairs_left_out_and_both_are_said(tmp_path: Path) -> None:
    long = {"prompt": "the sea " * 3, "chosen": "stone " * 90, "rejected": "no"}
    lost = {"prompt": "the sea " * 160, "chosen": "yes", "rejected": "no"}
    store = store_of(tmp_path, [*PREFERENCES, long, lost])
    facts = data_facts(store, 60, True)
    assert (facts.layout, facts.train_windows, facts.train_targets) == ("pair", 4, 4)
    assert "1 of 5 pairs (20.0%) are longer than train.sequence (60) and are cut off there" in facts.lost[0]
    assert "1 of 5 pairs (20.0%) have no token to learn" in facts.lost[1]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "prefers an answer to itself"),
        ({"chosen": "b", "rejected": "c"}, "has no 'prompt'"),
        ({"prompt": "a", "chosen": "b"}, "has no 'chosen' and 'rejected'; its keys: 'prompt', 'chosen'"),
        ({"prompt": "a", "chosen": " ", "rejected": "c"}, "has an empty 'chosen'"),
        ({"prompt": "a", "chosen": 3, "rejected": "c"}, "holds int as 'chosen', not a text or a list of messages"),
        (
            {"chosen": [ASKED], "rejected": [ASKED, turn("assistant", "x")]},
            "has no message of the assistant's at the end of 'chosen'",
        ),
        ({"chosen": [turn("user", "x")], "rejected": [ASKED]}, "do not begin alike"),
    ],
)
def test_bad_records_say_what_is_wrong(record: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRecord, match=said):
        read_preference(record)


def test_options_belong_to_the_task() -> None:
    base = {
        "model": {"from": "./m"},
        "data": {"train": "a.jsonl"},
        "train": {"length": "1 steps", "sequence": 8, "global_batch": "1 sequences"},
        "optimizer": {"lr": 1e-3},
    }
    with pytest.raises(ConfigError) as found:
        from_mapping(base | {"task": {"kind": "preference", "label_smoothing": 0.5, "loss_on": "all"}}, base=Path())
    assert {problem.key for problem in found.value.problems} == {"task.label_smoothing", "task.loss_on"}
    with pytest.raises(ConfigError, match=r"task\.beta.*has no effect with task: causal_lm"):
        from_mapping(base | {"task": {"kind": "causal_lm", "beta": 0.2}}, base=Path())
