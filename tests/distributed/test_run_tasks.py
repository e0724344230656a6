"""Whole runs of the tasks beside the next token: two ranks, then everything that plain transformers can check."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes.chats import MARKED, chat_tokenizer, turn, write_jsonl
from fakes.corpora import encoder_tokenizer, prose
from fakes.runs import Run, Workplace, run_file
from headway.data.store import TokenStore, open_split

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]

CLUES = {"land": "stone", "light": "lantern", "sky": "morning"}
RARE = "sky"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("tasks"))
    chat_tokenizer(place.folder, MARKED)
    write_jsonl(place.folder / "chats.jsonl", [chat(number) for number in range(60)])
    (place.folder / "words").mkdir()
    encoder_tokenizer(place.folder / "words")
    write_jsonl(place.folder / "labels.jsonl", labelled(300))
    return place


def chat(number: int) -> dict[str, Any]:
    turns = [
        message
        for n in range(1 + number % 2)
        for message in (
            turn("user", prose(97 * number + n, 3 + number % 7)),
            turn("assistant", prose(number + n, 4 + number % 9)),
        )
    ]
    return {"messages": turns}


def labelled(count: int) -> list[dict[str, str]]:
    """Texts whose label stands in every second word; one label is rare."""
    draw = random.Random(0)
    rows: list[dict[str, str]] = []
    for number in range(count):
        label = RARE if number % 8 == 0 else draw.choice(["land", "light"])
        words = [word for word in prose(number, 4 + number % 12).split() if word not in CLUES.values()] or ["the"]
        rows.append({"text": " ".join(f"{word} {CLUES[label]}" for word in words), "label": label})
    return rows


@pytest.fixture(scope="module")
def chats(workplace: Workplace) -> Run:
    content = run_file(
        "zero-2",
        data={"train": "chats.jsonl"},
        task={"kind": "instruction", "loss_on": "assistant"},
        train={"length": "12 steps", "sequence": 160, "eval_every": "6 steps"},
        export={"at_end": True},
    )
    content["model"]["tokenizer"] = {"from": "tokenizer"}
    return workplace.train("chats", content)


def held_out(run: Run) -> TokenStore:
    return TokenStore(Path(run.plan().data.store))


def plain(folder: Path, kind: str) -> Any:
    import transformers

    return getattr(transformers, kind).from_pretrained(folder).eval()


def test_chats_are_learnt_and_judged_as_plain_transformers_judges_them(chats: Run) -> None:
    store, model = held_out(chats), plain(chats.dir.export, "AutoModelForCausalLM")
    total, count = 0.0, 0
    for number in store.documents("eval").tolist():
        ids = torch.from_numpy(store.document(number).astype("int64"))[None]
        learnt = torch.from_numpy(store.learnt(number).astype("int64"))[None]
        labels = ids.masked_fill(learnt == 0, -100)
        targets = int((labels[0, 1:] != -100).sum())
        with torch.no_grad():
            total += float(model(input_ids=ids, labels=labels).loss) * targets if targets else 0.0
        count += targets
    evaluations = chats.evaluations()
    assert count == chats.plan().facts.eval_targets
    assert evaluations[12]["loss"] == pytest.approx(total / count, abs=1e-5)
    assert evaluations[12]["loss"] < evaluations[6]["loss"]
    assert chats.events("export")[-1]["verified"] is True


def test_the_sample_before_the_start_marks_what_is_learnt(chats: Run) -> None:
    shown = chats.events("sample_data")[0]["text"]
    assert "<|im_start|>assistant\n⟦" in shown
    notes = [reason for key, reason in chats.plan().reasons.items() if key.startswith("notes.")]
    assert any("holds chats" in note and "chats.jsonl:1" in note for note in notes)
    assert any("marked by the chat template" in note for note in notes)


def test_whole_chats_in_windows_are_no_difference_from_the_plan(chats: Run) -> None:
    done = chats.events("done")[-1]
    assert done["differences"] == []
    assert done["tokens"] < chats.plan().schedule.tokens
    assert chats.plan().facts.layout == "best_fit"


def test_the_model_is_asked_in_its_own_template(chats: Run, workplace: Workplace) -> None:
    from transformers import AutoTokenizer

    model = plain(chats.dir.export, "AutoModelForCausalLM")
    tokenizer = AutoTokenizer.from_pretrained(chats.dir.export)
    asked = [turn("user", "the sea")]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    words = model.generate(**ids, max_new_tokens=8, do_sample=False)
    expected = tokenizer.decode(words[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    options = ["--prompt", "the sea", "--max-tokens", "8", "--temperature", "0"]
    assert workplace.headway("generate", chats.path, *options).expect(0).out == f"{expected}\n"
    assert chats.events("sample")[-1]["prompt"].endswith("<|im_start|>assistant\n")


@pytest.fixture(scope="module")
def texts(workplace: Workplace) -> Run:
    content = run_file(
        "zero-3",
        data={"train": "labels.jsonl"},
        task={"kind": "classification", "class_weights": "balanced"},
        train={"length": "60 steps", "sequence": 32, "eval_every": "30 steps"},
        optimizer={"lr": 5e-3, "warmup": "6 steps"},
        export={"at_end": True},
    )
    content["model"] = {
        "config": {"arch": "bert", "hidden": 32, "layers": 2, "heads": 4, "ffn": 64},
        "tokenizer": {"from": "words"},
    }
    return workplace.train("texts", content)


def test_texts_are_judged_as_plain_transformers_judges_them(texts: Run) -> None:
    data = texts.plan().data
    model = plain(texts.dir.export, "AutoModelForSequenceClassification")
    samples = open_split(Path(data.store), "eval", data.sequence, data.packing)
    guesses, truth = [], []
    for number in range(len(samples)):
        with torch.no_grad():
            logits = model(torch.from_numpy(samples[number].tokens)[None].long()).logits[0]
        guesses.append(int(logits.argmax()))
        truth.append(samples[number].label)
    scores = []
    for label in sorted({*guesses, *truth}):
        right = sum(g == t == label for g, t in zip(guesses, truth, strict=True))
        scores.append(2 * right / (guesses.count(label) + truth.count(label)))
    figures = texts.evaluations()[60]
    assert figures["accuracy"] == pytest.approx(float(np.mean(np.array(guesses) == np.array(truth))))
    assert figures["macro_f1"] == pytest.approx(sum(scores) / len(scores))
    assert figures["loss"] < texts.evaluations()[30]["loss"]
    assert "bits_per_byte" not in figures
    assert texts.events("export")[-1]["verified"] is True


def test_the_export_knows_its_labels(texts: Run, workplace: Workplace) -> None:
    config = json.loads((texts.dir.export / "config.json").read_text())
    assert config["id2label"] == {"0": "land", "1": "light", "2": "sky"}
    assert config["label2id"] == {"land": 0, "light": 1, "sky": 2}
    assert config["architectures"] == ["BertForSequenceClassification"]
    card = (texts.dir.export / "README.md").read_text()
    assert "pipeline_tag: text-classification" in card
    assert "AutoModelForSequenceClassification" in card
    assert "land, light, sky" in card
    from transformers import AutoTokenizer

    said = workplace.headway("generate", texts.path, "--prompt", "under the lantern").expect(0).out
    ids = AutoTokenizer.from_pretrained(texts.dir.export)("under the lantern", return_tensors="pt")
    with torch.no_grad():
        shares = plain(texts.dir.export, "AutoModelForSequenceClassification")(**ids).logits[0].softmax(0)
    expected = sorted(zip(shares.tolist(), ("land", "light", "sky"), strict=True), reverse=True)
    assert said.splitlines() == [f"{label} ({share:.2f})" for share, label in expected]


def test_labels_weigh_as_planned(texts: Run) -> None:
    plan = texts.plan()
    counts, weights = plan.facts.label_counts, plan.task.options["weights"]
    assert [weight * count for weight, count in zip(weights, counts, strict=True)] == pytest.approx(
        [sum(counts) / 3] * 3
    )
    assert weights[2] > 2 * weights[0]
    assert not plan.data.packing
    assert texts.events("sample_data")[0]["text"].rpartition("\n")[2].startswith("label: ")


def test_a_pretrained_body_is_trained_on_with_a_fresh_head(texts: Run, workplace: Workplace) -> None:
    """The export of three labels as the body of a classifier of two, on one process; plan, run and export agree."""
    rows = [{"text": row["text"], "stars": 1 + (row["label"] == RARE)} for row in labelled(120)]
    write_jsonl(workplace.folder / "stars.jsonl", rows)
    content = run_file(
        "single",
        data={"train": {"paths": "stars.jsonl", "label_key": "stars"}},
        train={"length": "6 steps", "sequence": 32},
        launch={"processes": 1},
        export={"at_end": True},
    ) | {"model": {"from": str(texts.dir.export)}, "task": "classification"}
    run = workplace.train("stars", content)
    plan = run.plan()
    assert plan.model.fresh_head
    assert "the head starts fresh" in plan.reasons["model.fresh_head"]
    assert plan.facts.labels == ("1", "2")
    assert json.loads((run.dir.export / "config.json").read_text())["id2label"] == {"0": "1", "1": "2"}
    assert run.events("export")[-1]["verified"] is True
