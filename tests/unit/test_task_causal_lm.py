"""Next-token loss: equal to transformers' own, whatever the padding, packing and splitting of the same documents."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from fakes.models import (
    CONFIGS,
    SEQUENCE,
    VOCAB,
    config_of,
    filled,
    gradients,
    largest_difference,
    model_for,
    plan_for,
    window,
)
from headway.data.seam import IGNORE
from headway.errors import ConfigError
from headway.model.huggingface import HuggingFaceSource
from headway.task.causal_lm import CausalLM
from headway.task.metrics import bits_per_byte
from headway.task.seam import Totals


@pytest.mark.parametrize("arch", CONFIGS)
def test_equals_transformers_own_loss(arch: str) -> None:
    model, task = model_for(arch), CausalLM(plan_for(arch))
    config = config_of(arch, attn_implementation="eager" if arch == "gemma2" else "sdpa")
    plain = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    plain.load_state_dict(model.state_dict())
    batch = task.collate([window([SEQUENCE], seed) for seed in range(3)], SEQUENCE)
    loss = task.loss(model, batch)["loss"] / batch.counts["loss"]
    loss.backward()
    mine = gradients(model)
    # transformers shifts the labels itself: these windows are one document each, so its labels are the tokens.
    theirs = plain.eval()(input_ids=batch.inputs["input_ids"], labels=batch.inputs["input_ids"]).loss
    theirs.backward()
    assert loss.item() == pytest.approx(theirs.item(), abs=1e-6)
    assert largest_difference(mine, gradients(plain)) < 2e-5


def test_a_batch_says_what_it_holds() -> None:
    batch = CausalLM(plan_for("llama")).collate([window([5, 3], 1), window([], 0), window([8], 2)], 8)
    inputs = batch.inputs
    assert batch.tokens == 16
    assert batch.counts == {"loss": 4 + 2 + 7}
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2], list(range(8)), list(range(8))]
    assert inputs["borders"].tolist() == [0, 5, 8, 16, 24]
    assert inputs["kept"].tolist() == [0, 1, 2, 3, 5, 6, *range(16, 23)]
    assert int((inputs["labels"] != IGNORE).sum()) == 13
    assert {inputs[k].dtype for k in ("input_ids", "labels", "position_ids", "kept")} == {torch.int64}


def test_padding_belongs_to_the_document_before_it() -> None:
    batch = CausalLM(plan_for("llama")).collate([window([2, 3], 1)], 8)
    assert batch.inputs["position_ids"].tolist() == [[0, 1, 0, 1, 2, 3, 4, 5]]
    assert batch.inputs["borders"].tolist() == [0, 2, 8]


@pytest.mark.parametrize("arch", ["llama", "gpt2", "mistral"])
def test_sums_do_not_depend_on_how_documents_are_batched(arch: str) -> None:
    """The same documents packed, padded one by one, and with fillers: equal sums, counts and gradients."""
    model, task = model_for(arch), CausalLM(plan_for(arch))
    packed = [window([9, 17, 4], 5)]
    parts = [(0, 9), (9, 26), (26, 30)]
    single = [
        type(packed[0])(0, *(column[a:b] for column in (packed[0].tokens, packed[0].labels)),
                        packed[0].positions[a:b], packed[0].documents[a:b])
        for a, b in parts
    ]  # fmt: skip
    found = []
    for batches in ([packed], [single], [[sample] for sample in single], [[*packed, window([]), window([])]]):
        collated = [task.collate(samples, SEQUENCE) for samples in batches]
        losses = [task.loss(model, batch)["loss"] for batch in collated]
        torch.stack(losses).sum().backward()
        found.append((sum(float(loss.detach()) for loss in losses), gradients(model)))
        assert sum(batch.counts["loss"] for batch in collated) == 27
        assert sum(batch.tokens for batch in collated) == 30
    for value, gradient in found[1:]:
        assert value == pytest.approx(found[0][0], rel=1e-6)
        assert largest_difference(gradient, found[0][1]) < 2e-5


def test_activation_checkpointing_changes_no_gradient() -> None:
    found = []
    for on in (False, True):
        plan = plan_for("llama", numerics={"activation_checkpointing": on})
        source, task = HuggingFaceSource(plan), CausalLM(plan)
        model = filled(source).train()
        source.prepare_for_training(model)
        saved: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, n=saved: n.append(t.numel()) or t, lambda t: t):
            loss = task.loss(model, task.collate([window([20, 9])], SEQUENCE))["loss"]
        loss.backward()
        found.append((loss.item(), gradients(model), sum(saved)))
    assert found[0][0] == found[1][0]
    assert largest_difference(found[0][1], found[1][1]) == 0.0
    assert found[1][2] < found[0][2] / 2  # it did save memory


def test_compile_changes_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as torch.compile traces it, but run without a C++ compiler, which would take minutes."""
    compile_module = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda part: compile_module(part, backend="aot_eager"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    found = []
    for on in (False, True):
        plan = plan_for("llama", numerics={"compile": on})
        source, task = HuggingFaceSource(plan), CausalLM(plan)
        model = filled(source).train()
        source.prepare_for_training(model)
        for lengths in ([20, 9], [5, 6, 7]):
            loss = task.loss(model, task.collate([window(lengths)], SEQUENCE))["loss"]
            loss.backward()
        found.append((loss.item(), gradients(model)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1  # the second batch needed no new program
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-6)
    assert largest_difference(found[1][1], found[0][1]) < 1e-4


def test_metrics_and_bits_per_byte() -> None:
    figures = CausalLM(plan_for("llama")).metrics(Totals({"loss": 30.0}, {"loss": 10.0}))
    assert figures == {"loss": 3.0, "perplexity": pytest.approx(math.exp(3.0))}
    assert CausalLM(plan_for("llama")).metrics(Totals({"loss": 1e6}, {"loss": 1.0}))["perplexity"] == math.inf
    assert CausalLM(plan_for("llama")).metrics(Totals({"loss": 0.0}, {"loss": 0.0})) == {}
    # A uniform guess over 256 byte values needs 8 bits a byte.
    assert bits_per_byte(1000 * math.log(256), 1000) == pytest.approx(8.0)
    assert math.isnan(bits_per_byte(0.0, 0))


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"task\.options\.smoothing"):
        CausalLM(plan_for("llama", task={"options": {"smoothing": 0.1}}))


def test_a_users_own_model_gives_logits() -> None:
    table = torch.nn.Embedding(VOCAB, VOCAB)

    class Bigrams(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
            return table(input_ids)

    task = CausalLM(plan_for("llama", model={"kind": "mine:Bigrams"}))
    batch = task.collate([window([20, 9])], SEQUENCE)
    chosen = batch.inputs["labels"] != IGNORE
    logits = table(batch.inputs["input_ids"][chosen])
    expected = torch.nn.functional.cross_entropy(logits, batch.inputs["labels"][chosen], reduction="sum")
    assert task.loss(Bigrams(), batch)["loss"].item() == pytest.approx(expected.item(), rel=1e-6)
