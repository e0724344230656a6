"""Naming a text's class: loss, counts and figures against plain transformers and plain counting."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from fakes.classifiers import LABELS, classifier, classifier_config, classifier_plan, held, labelled
from fakes.models import SEQUENCE, gradients, largest_difference, window
from headway.errors import ModelError
from headway.facts.labels import has_labels, label_count, with_labels
from headway.facts.shape import probe_shape, shape_of
from headway.model.huggingface import HuggingFaceSource
from headway.task.classification import Classification, LabelSets, classification
from headway.task.metrics import macro_f1
from headway.task.seam import Totals

FILLER = window([])
DECODERS = ("llama", "gpt2", "qwen2", "gpt_neox", "gemma2")


@pytest.mark.parametrize("arch", ["bert", "llama", "gpt2"])
def test_the_loss_is_the_weighted_mean_of_transformers_on_each_text_alone(arch: str) -> None:
    weights = (1.0, 3.0, 0.5)
    task, model = Classification(classifier_plan(arch, weights)), classifier(arch)
    samples = [labelled(length, number % 3, number) for number, length in enumerate((5, 17, 1, 32, 9))]
    batch = task.collate([*samples, FILLER], SEQUENCE)
    terms = task.loss(model.train(), batch)
    terms["loss"].backward()
    mine = gradients(model)
    total, weight = torch.zeros(()), 0.0
    for sample in samples:
        ids = torch.from_numpy(sample.tokens)[None].long()
        loss = model(input_ids=ids, labels=torch.tensor([sample.label])).loss
        total = total + loss * weights[sample.label]
        weight += weights[sample.label]
    total.backward()
    assert batch.counts["loss"] == weight
    assert batch.counts["accuracy"] == len(samples)
    assert terms["loss"].item() == pytest.approx(total.item(), rel=1e-5)
    assert largest_difference(mine, gradients(model)) < 2e-5


def test_rows_are_padded_no_further_than_the_longest_text() -> None:
    task = Classification(classifier_plan())
    batch = task.collate([labelled(5, 0), labelled(9, 1)], SEQUENCE)
    assert batch.inputs["input_ids"].shape == (2, 16)
    assert batch.inputs["attention_mask"].sum(1).tolist() == [5, 9]
    assert batch.tokens == 14
    compiled = Classification(classifier_plan(numerics={"compile": True}))
    assert compiled.collate([labelled(5, 0)], SEQUENCE).inputs["input_ids"].shape == (1, SEQUENCE)


@torch.no_grad()
def test_figures_are_those_of_counting() -> None:
    task, model = Classification(classifier_plan()), classifier()
    samples = [labelled(3 + number % 11, number % 3, number) for number in range(23)]
    totals = Totals()
    model.eval()
    for first in range(0, 24, 4):
        batch = task.collate([*samples[first : first + 4], FILLER], SEQUENCE)
        for name, value in task.loss(model, batch).items():
            totals.sums[name] = totals.sums.get(name, 0.0) + float(value)
            totals.counts[name] = totals.counts.get(name, 0.0) + batch.counts[name]
    logits = [model(torch.from_numpy(s.tokens)[None].long()).logits[0] for s in samples]
    guesses, truth = np.array([int(row.argmax()) for row in logits]), np.array([s.label for s in samples])
    scores = []
    for label in sorted({*guesses.tolist(), *truth.tolist()}):
        right = int(((guesses == label) & (truth == label)).sum())
        precision, recall = right / max(1, (guesses == label).sum()), right / max(1, (truth == label).sum())
        scores.append(2 * precision * recall / (precision + recall) if right else 0.0)
    figures = task.metrics(totals)
    assert figures["accuracy"] == pytest.approx(float((guesses == truth).mean()))
    assert figures["macro_f1"] == pytest.approx(sum(scores) / len(scores))
    nats = [-float(row.log_softmax(0)[s.label]) for row, s in zip(logits, samples, strict=True)]
    assert figures["loss"] == pytest.approx(sum(nats) / len(nats), rel=1e-5)


def test_macro_f1_leaves_out_labels_that_nobody_named() -> None:
    assert macro_f1([2, 0, 0], [2, 1, 0], [3, 0, 0]) == pytest.approx((4 / 5 + 0) / 2)
    assert macro_f1([1, 1], [1, 1], [1, 1]) == 1.0
    assert math.isnan(macro_f1([0], [0], [0]))


def test_single_labels_are_counted_in_evaluation_only() -> None:
    task, model = Classification(classifier_plan()), classifier()
    batch = task.collate([labelled(5, 0), labelled(9, 1)], SEQUENCE)
    assert task.loss(model.train(), batch).keys() == {"loss", "accuracy"}
    assert task.loss(model.eval(), batch).keys() == task.terms.keys()
    assert [name for name, term in task.terms.items() if term.weight] == ["loss"]


# Any number of labels a text

HELD = ((0,), (), (1, 2), (0, 1, 2), (2,), (0, 2), ())


def set_task(weights: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Classification:
    plan = classifier_plan(task={"kind": "classification", "options": {**OPTIONS, "weights": list(weights)}})
    task = classification(plan)
    assert isinstance(task, LabelSets)
    return task


OPTIONS = {"labels": list(LABELS), "sets": True}


@pytest.mark.parametrize("weights", [None, (1.0, 3.0, 0.5)])
def test_the_loss_of_label_sets_is_transformers_own(weights: tuple[float, ...] | None) -> None:
    task, model = set_task(weights or (1.0, 1.0, 1.0)), classifier()
    model.config.problem_type = "multi_label_classification"
    samples = [held(3 + 4 * number, labels, number) for number, labels in enumerate(HELD)]
    batch = task.collate([*samples, FILLER], SEQUENCE)
    terms = task.loss(model.train(), batch)
    (terms["loss"] / batch.counts["loss"]).backward()
    mine = gradients(model)
    total = torch.zeros(())
    for sample in samples:
        truth = torch.zeros(1, 3)
        truth[0, list(sample.held or ())] = 1
        output = model(input_ids=torch.from_numpy(sample.tokens)[None].long(), labels=truth)
        if weights:
            judge = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(weights))
            total = total + judge(output.logits, truth) / len(samples)
        else:
            total = total + output.loss / len(samples)
    total.backward()
    assert (terms["loss"] / batch.counts["loss"]).item() == pytest.approx(total.item(), rel=1e-5)
    assert largest_difference(mine, gradients(model)) < 2e-5


@torch.no_grad()
def test_figures_of_label_sets_are_those_of_counting() -> None:
    task, model = set_task(), classifier()
    samples = [held(3 + number % 11, HELD[number % 7], number) for number in range(23)]
    totals = Totals()
    model.eval()
    for first in range(0, 24, 4):
        batch = task.collate([*samples[first : first + 4], FILLER], SEQUENCE)
        for name, value in task.loss(model, batch).items():
            totals.sums[name] = totals.sums.get(name, 0.0) + float(value)
            totals.counts[name] = totals.counts.get(name, 0.0) + batch.counts[name]
    guesses = np.array([(model(torch.from_numpy(s.tokens)[None].long()).logits[0] > 0).tolist() for s in samples])
    truth = np.array([[number in (s.held or ()) for number in range(3)] for s in samples])
    hits, named = (guesses & truth).sum(0), guesses.sum(0) + truth.sum(0)
    figures = task.metrics(totals)
    assert figures["accuracy"] == pytest.approx((guesses == truth).all(1).mean())
    assert figures["micro_f1"] == pytest.approx(2 * hits.sum() / named.sum())
    assert figures["macro_f1"] == pytest.approx((2 * hits[named > 0] / named[named > 0]).mean())


# The model under it


def test_labels_in_a_config() -> None:
    config = with_labels({"model_type": "bert", "num_labels": 9}, LABELS, 7)
    made = AutoConfig.for_model(**config)
    assert made.num_labels == label_count(config) == 3
    assert made.id2label == dict(enumerate(LABELS))
    assert made.label2id == {"land": 0, "light": 1, "sea": 2}
    assert made.pad_token_id == 7
    assert has_labels(config, LABELS)
    assert not has_labels(config, LABELS[::-1])
    assert not has_labels({}, LABELS)
    assert label_count({}) == 2
    assert config["problem_type"] == "single_label_classification"
    assert with_labels({}, LABELS, 0, sets=True)["problem_type"] == "multi_label_classification"


@pytest.mark.parametrize("arch", ["bert", *DECODERS])
def test_the_shape_by_formula_is_that_of_the_model(arch: str) -> None:
    config = classifier_config(arch)
    with torch.device("meta"):
        built = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(**config))
    found = shape_of(config, "classification")
    assert found.parameters == sum(parameter.numel() for parameter in built.parameters())
    assert not found.tied


@pytest.mark.usefixtures("probe_here")
def test_other_architectures_are_probed() -> None:
    config = classifier_config("bert") | {"model_type": "electra", "embedding_size": 16}
    assert shape_of(config, "classification") == probe_shape(config, "classification")
    with torch.device("meta"):
        built = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(**config))
    assert shape_of(config, "classification").parameters == sum(p.numel() for p in built.parameters())


def saved(folder: Path, kind: str, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    import transformers

    torch.manual_seed(5)
    model = getattr(transformers, kind).from_config(AutoConfig.for_model(**config))
    model.save_pretrained(folder)
    return model.state_dict()


BODIES = {"AutoModel": "embeddings", "AutoModelForMaskedLM": "bert", "AutoModelForSequenceClassification": "bert"}


@pytest.mark.parametrize("kind", BODIES)
def test_a_pretrained_body_gets_a_fresh_head(tmp_path: Path, kind: str) -> None:
    """From the bare encoder, from a language model (which has no pooler), from a classifier of other labels."""
    stored = saved(tmp_path, kind, classifier_config(labels=("a", "b", "c", "d", "e")))
    one, again = (classifier(path=tmp_path, fresh_head=True).state_dict() for _ in range(2))
    scratch = classifier().state_dict()
    assert all(torch.equal(one[name], again[name]) for name in one)
    for name, tensor in one.items():
        bare = name.removeprefix("bert.")
        origin = stored.get(name, stored.get(bare))
        if name.startswith("classifier.") or (origin is None and "pooler" in name):
            assert torch.equal(tensor, scratch[name]), name
        else:
            assert origin is not None, name
            assert torch.equal(tensor, origin), name


def test_a_decoders_body_gets_a_fresh_head(tmp_path: Path) -> None:
    stored = saved(tmp_path, "AutoModelForCausalLM", classifier_config("llama"))
    model = classifier("llama", path=tmp_path, fresh_head=True)
    assert torch.equal(model.state_dict()["model.norm.weight"], stored["model.norm.weight"])
    assert model.score.weight.shape == (3, 32)  # pyright: ignore


def test_a_head_for_these_labels_is_kept(tmp_path: Path) -> None:
    stored = saved(tmp_path, "AutoModelForSequenceClassification", classifier_config())
    found = classifier(path=tmp_path).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in stored.items())


def test_a_body_that_lacks_a_tensor_is_refused_all_the_same(tmp_path: Path) -> None:
    saved(tmp_path, "AutoModel", classifier_config(num_hidden_layers=1))
    with pytest.raises(ModelError, match=r"tensors of the model are missing: bert\.encoder\.layer\.1"):
        classifier(path=tmp_path, fresh_head=True)
    saved(tmp_path, "AutoModel", classifier_config(num_hidden_layers=3))
    with pytest.raises(ModelError, match="have no place in the model"):
        classifier(path=tmp_path, fresh_head=True)


def test_the_attention_is_both_ways_and_leaves_padding_out() -> None:
    source = HuggingFaceSource(classifier_plan())
    assert source.config._attn_implementation == "sdpa"
    task, model = Classification(classifier_plan()), classifier().eval()
    short, long = labelled(4, 0, 1), labelled(30, 1, 2)
    alone = task.collate([short], SEQUENCE).inputs
    padded = task.collate([short, long], SEQUENCE).inputs
    with torch.no_grad():
        one = model(input_ids=alone["input_ids"], attention_mask=alone["attention_mask"]).logits[0]
        two = model(input_ids=padded["input_ids"], attention_mask=padded["attention_mask"]).logits[0]
    assert torch.allclose(one, two, atol=1e-6)
