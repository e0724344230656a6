"""What an adapter changes in a plan: trained parameters, states, buckets, activations, checkpoints, words."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import pytest

from fakes.plans import A100_8, data_facts, run_of
from headway.check.machine import checkpoint_bytes
from headway.errors import MissingExtra
from headway.facts.adapters import with_adapter
from headway.facts.model_config import scratch_config
from headway.facts.shape import shape_of
from headway.plan.explain import explain, summary_rows
from headway.plan.make import AllFacts, make_plan
from headway.plan.memory import MemoryRequest, adapter_bytes, logits_bytes, model_states
from headway.plan.schema import Plan
from headway.plan.work import useful_flops_per_token
from headway.registry import require_extra

FILE: dict[str, Any] = {
    "model": {"from": "./base"},
    "data": {"train": ["chats.jsonl"]},
    "train": {"length": "100 steps", "sequence": 1024, "global_batch": "64 sequences"},
    "optimizer": {"lr": 2e-4},
    "launch": {"gpus": 8},
}
SEVEN_B = {"arch": "llama", "hidden": 4096, "layers": 32, "heads": 32, "ffn": 11008}


def config() -> dict[str, Any]:
    from headway.config.schema import ModelArch

    return scratch_config(ModelArch.model_validate(SEVEN_B), vocab=32000, sequence=4096)


def plan_with(adapter: dict[str, Any] | None, *overrides: str) -> Plan:
    run = run_of(FILE | ({"adapter": adapter} if adapter else {}), *overrides)
    shape = shape_of(config())
    if run.config.adapter is not None:
        shape = with_adapter(shape, config(), run.config.adapter.rank, run.config.adapter.targets)
    facts = AllFacts(A100_8, shape, data_facts(1024, 32000), config(), "a-run", "/base", None, (), "0123456789abcdef")
    return make_plan(run, facts)


def request_of(plan: Plan, **changes: Any) -> MemoryRequest:
    request = MemoryRequest(
        shape=plan.shape,
        cluster=plan.cluster,
        strategy=plan.strategy,
        optimizer=plan.optimizer,
        precision=plan.numerics.precision,
        processes=plan.launch.processes,
        micro_batch=4,
        sequence=1024,
        activation_checkpointing=False,
        loss_chunk_tokens=0,
        attention="sdpa",
    )
    return replace(request, **changes)


def test_only_the_adapter_is_trained_and_counted() -> None:
    plan = plan_with({"rank": 16}, "strategy=zero-2")
    per_block = 4 * (4096 + 4096) + 3 * (4096 + 11008)
    assert plan.shape.trainable_parameters == 32 * 16 * per_block == 39_976_960
    assert plan.shape.parameters == 6_738_415_616 + 39_976_960
    assert plan.adapter is not None
    assert (plan.adapter.alpha, plan.adapter.scale, plan.adapter.base) == (32.0, 2.0, "0123456789abcdef")
    assert plan.strategy.reduce_bucket_elements == 39_976_960
    items = {item.name: item.device_bytes for item in model_states(request_of(plan))}
    share = -(-plan.shape.trainable_parameters // 8)
    assert items["parameters"] == 2 * plan.shape.parameters
    assert items["gradients"] == 2 * share
    assert items["optimizer states"] == 12 * share


def test_a_checkpoint_is_the_adapters() -> None:
    whole, adapted = plan_with(None), plan_with({"rank": 16})
    assert whole.adapter is None
    assert checkpoint_bytes(whole) == 12 * 6_738_415_616
    assert checkpoint_bytes(adapted) == 12 * 39_976_960


def test_a_frozen_head_keeps_no_gradient_and_the_pairs_keep_little() -> None:
    whole, adapted = request_of(plan_with(None)), request_of(plan_with({"rank": 16}))
    assert logits_bytes(adapted) < logits_bytes(whole)
    tokens = 4 * 1024
    assert adapter_bytes(whole) == 0
    assert adapter_bytes(adapted) == tokens * 7 * 32 * 16 * 2
    inputs = 32 * (6 * 4096 + 11008)
    assert adapter_bytes(replace(adapted, adapter_dropout=True)) == tokens * (7 * 32 * 16 + 2 * inputs) * 2
    assert adapter_bytes(replace(adapted, activation_checkpointing=True)) == tokens * 7 * 16 * 2


def test_frozen_weights_cost_two_thirds() -> None:
    whole, adapted = plan_with(None).shape, plan_with({"rank": 16}).shape
    assert useful_flops_per_token(adapted, 1024) / useful_flops_per_token(whole, 1024) == pytest.approx(2 / 3, abs=0.02)


def test_the_plan_says_what_is_trained() -> None:
    plan = plan_with({"rank": 8, "alpha": 10.0, "dropout": 0.05, "targets": ["q_proj", "v_proj"]})
    row = next(row for row in summary_rows(plan) if row[0] == "adapter")
    assert row[1] == "lora, rank 8, alpha 10, dropout 0.05, q_proj, v_proj"
    assert row[2] == "4.19M of 6.74B parameters (0.06%) in 64 layers are trained"
    assert not any(row[0] == "adapter" for row in summary_rows(plan_with(None)))
    assert ("adapter.alpha", "32.0", "2 x rank") in explain(plan_with({"rank": 16}), "adapter")


def test_the_short_form_and_other_trainers_words() -> None:
    assert plan_with({"kind": "lora"}) == plan_with({"rank": 16})
    run = run_of(FILE | {"adapter": "lora"})
    assert run.config.adapter is not None
    assert run.config.adapter.targets == "all-linear"
    one = run_of(FILE | {"adapter": {"targets": "q_proj"}}).config.adapter
    assert one is not None
    assert one.targets == ("q_proj",)


def test_without_peft_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"headway\[lora\]"):
        require_extra("adapter", "lora")
