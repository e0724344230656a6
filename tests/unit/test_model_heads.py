"""The summed loss equals linear + cross_entropy, value and gradients, for every head and every size of chunk."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from fakes.models import CONFIGS, config_of, gradients, largest_difference, model_for, plan_for, window
from headway.model.heads import LossHead, head_is_linear, head_logits, summed_cross_entropy
from headway.model.huggingface import HuggingFaceSource
from headway.task.causal_lm import CausalLM


def problem(bias: bool, dtype: torch.dtype = torch.float32) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    head = nn.Linear(16, 50, bias=bias, dtype=dtype)
    return head, torch.randn(23, 16, dtype=dtype).requires_grad_(), torch.randint(0, 50, (23,))


def value_and_gradients(head: nn.Linear, hidden: torch.Tensor, loss: torch.Tensor) -> tuple[float, dict[str, Any]]:
    (loss * 0.37).backward()
    found = {"hidden": hidden.grad, **{name: p.grad for name, p in head.named_parameters()}}
    head.zero_grad(set_to_none=True)
    hidden.grad = None
    return loss.item(), found


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("chunk", [0, 1, 7, 23, 100])
def test_equals_linear_and_cross_entropy(bias: bool, chunk: int) -> None:
    head, hidden, targets = problem(bias)
    value, found = value_and_gradients(head, hidden, summed_cross_entropy(head, hidden, targets, chunk))
    plain = F.cross_entropy(head(hidden), targets, reduction="sum")
    expected, wanted = value_and_gradients(head, hidden, plain)
    assert value == pytest.approx(expected, rel=1e-6)
    assert largest_difference(found, wanted) < 1e-5


def test_extreme_logits_stay_finite() -> None:
    head, _, targets = problem(bias=False)
    hidden = (1e4 * torch.randn(23, 16)).requires_grad_()
    value, found = value_and_gradients(head, hidden, summed_cross_entropy(head, hidden, targets, 5))
    expected, wanted = value_and_gradients(head, hidden, F.cross_entropy(head(hidden), targets, reduction="sum"))
    assert value == pytest.approx(expected, rel=1e-6)
    assert largest_difference(found, wanted) < 1e-5


def test_a_frozen_head_gets_no_gradient() -> None:
    head, hidden, targets = problem(bias=True)
    head.requires_grad_(False)
    summed_cross_entropy(head, hidden, targets, 4).backward()
    assert hidden.grad is not None
    assert head.weight.grad is None


def test_no_targets_are_a_zero_with_a_graph() -> None:
    head, hidden, targets = problem(bias=False)
    loss = summed_cross_entropy(head, hidden[:0], targets[:0], 4)
    loss.backward()
    assert loss.item() == 0.0
    assert head.weight.grad is not None
    assert torch.equal(head.weight.grad, torch.zeros_like(head.weight))


@pytest.mark.parametrize("way", ["weights in bf16", "autocast"])
def test_bf16_sums_in_fp32(way: str) -> None:
    """Value and gradients are those of plain bf16 logits, whose cross entropy is taken in fp32."""
    head, hidden, targets = problem(bias=True, dtype=torch.bfloat16 if way == "weights in bf16" else torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=way == "autocast"):
        loss = summed_cross_entropy(head, hidden, targets, 7)
        plain = F.cross_entropy(head(hidden).float(), targets, reduction="sum")
    assert loss.dtype == torch.float32
    value, found = value_and_gradients(head, hidden, loss)
    expected, wanted = value_and_gradients(head, hidden, plain)
    assert value == pytest.approx(expected, rel=1e-5)
    assert largest_difference(found, wanted) < 2e-2  # bf16 keeps 8 bits; the gradients are rounded once on the way


def test_evaluation_keeps_no_gradients() -> None:
    head, hidden, targets = problem(bias=False)
    with torch.no_grad():
        loss = summed_cross_entropy(head, hidden, targets, 7)
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(F.cross_entropy(head(hidden), targets, reduction="sum").item(), rel=1e-6)


@pytest.mark.parametrize("arch", CONFIGS)
def test_plain_heads_are_told_from_others(arch: str) -> None:
    source = HuggingFaceSource(plan_for(arch))
    special = arch in ("gemma2", "granite")  # a soft cap, a scale
    assert head_is_linear(source._kind, source.skeleton) is not special
    assert isinstance(model_for(arch).get_output_embeddings(), LossHead) is not special


@pytest.mark.parametrize("arch", ["gemma2", "granite", "llama"])
def test_a_head_alone_is_what_the_whole_model_does(arch: str) -> None:
    model: Any = model_for(arch)
    kind = type(AutoModelForCausalLM.from_config(AutoConfig.for_model(**config_of(arch))))
    ids = torch.arange(8).view(1, 8)
    with torch.no_grad():
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        expected = model(input_ids=ids, use_cache=False).logits
        assert torch.equal(head_logits(kind, model, hidden.flatten(0, 1)), expected[0])
    assert isinstance(model.model, nn.Module)
    assert "model" not in model.__dict__


@pytest.mark.parametrize("arch", CONFIGS)
def test_chunks_change_no_gradient(arch: str) -> None:
    model = model_for(arch)
    found = []
    for chunk in (0, 7, 64):
        task = CausalLM(plan_for(arch, numerics={"loss_chunk_tokens": chunk}))
        loss = task.loss(model, task.collate([window([20, 9], 1), window([32], 2)], 32))["loss"]
        loss.backward()
        found.append((loss.item(), gradients(model)))
    for value, gradient in found[1:]:
        assert value == pytest.approx(found[0][0], rel=1e-6)
        assert largest_difference(gradient, found[0][1]) < 2e-5


@pytest.mark.parametrize("arch", ["gemma2", "llama"])
def test_every_batch_calls_the_head_equally_often(arch: str) -> None:
    """ZeRO-3 gathers the head's weight at each call: ranks with fewer targets must not call it less."""
    model = model_for(arch)
    calls: list[int] = []
    model.get_output_embeddings().register_forward_hook(lambda *_: calls.append(1))
    task = CausalLM(plan_for(arch, numerics={"loss_chunk_tokens": 7}))
    numbers = []
    for lengths in ([32], [3], []):
        calls.clear()
        task.loss(model, task.collate([window(lengths)], 32))["loss"].backward()
        numbers.append(len(calls))
    assert len(set(numbers)) == 1, numbers


def test_a_body_that_is_not_one_call_gives_its_logits() -> None:
    """opt's class runs a part of its body: the head cannot run alone, so all logits are made, the loss is the same."""
    config = config_of("opt")
    model, task = model_for("llama", model={"config": config}), CausalLM(plan_for("llama", model={"config": config}))
    batch = task.collate([window([20], 1)], 32)
    loss = task.loss(model, batch)["loss"]
    loss.backward()
    logits = model(input_ids=batch.inputs["input_ids"], use_cache=False).logits
    expected = F.cross_entropy(logits[0, :19], batch.inputs["labels"][0, :19], reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert len(gradients(model)) > 10
