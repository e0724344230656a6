"""A base in 4 bits in the plan: bytes by hand, the rungs that it leaves, what is refused and why, what is said."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import pytest

from fakes.plans import A100_8, LAPTOP, data_facts, run_of
from headway.certify.shrink import shrink
from headway.errors import MissingExtra, PlanError
from headway.facts.adapters import with_adapter
from headway.facts.model_config import scratch_config
from headway.facts.schema import ClusterFacts
from headway.facts.shape import shape_of
from headway.plan.explain import summary_rows
from headway.plan.make import AllFacts, make_plan
from headway.plan.memory import model_states
from headway.plan.quantizing import scale_bits
from headway.plan.schema import Plan
from headway.plan.work import request_of
from headway.registry import require_extra

FILE: dict[str, Any] = {
    "model": {"from": "./base"},
    "data": {"train": ["chats.jsonl"]},
    "train": {"length": "100 steps", "sequence": 1024, "global_batch": "64 sequences"},
    "optimizer": {"lr": 2e-4},
}
SEVENTY_B = {"arch": "llama", "hidden": 8192, "layers": 80, "heads": 64, "kv_heads": 8, "ffn": 28672}
LINEAR = 80 * (8192 * (8192 + 1024 + 1024 + 8192) + 3 * 8192 * 28672)  # of every block; the head is none of them


def plan_with(adapter: dict[str, Any], *overrides: str, cluster: ClusterFacts = A100_8) -> Plan:
    from headway.config.schema import ModelArch

    config = scratch_config(ModelArch.model_validate(SEVENTY_B), vocab=32000, sequence=4096)
    run = run_of(FILE | {"adapter": adapter}, *overrides)
    assert run.config.adapter is not None
    shape = with_adapter(shape_of(config), config, run.config.adapter.rank, run.config.adapter.targets)
    facts = AllFacts(cluster, shape, data_facts(1024, 32000), config, "a-run", "/base", None, (), "0123456789abcdef")
    return make_plan(run, facts)


def test_scales_are_what_the_paper_says() -> None:
    assert scale_bits(double=False) == 0.5
    assert scale_bits(double=True) == pytest.approx(0.127, abs=5e-4)  # Dettmers et al. 2023, section 3


@pytest.mark.parametrize(("double", "bits"), [(True, 4 + 8 / 64 + 32 / (64 * 256)), (False, 4.5)])
def test_the_memory_of_the_base_by_hand(double: bool, bits: float) -> None:
    """bf16 under ZeRO-2: embeddings, norms and the adapter in 2 bytes, the linear layers in their bits."""
    plan = plan_with({"kind": "qlora", "double_quantization": double}, "strategy=zero-2")
    assert plan.shape.adapter is not None
    assert plan.shape.adapter.linear_parameters == LINEAR
    others = plan.shape.parameters - LINEAR
    items = {item.name: item.device_bytes for item in plan.memory.items}
    assert items["parameters"] == pytest.approx(LINEAR * bits / 8 + 2 * others, rel=1e-6)
    assert items["dequantised matrix"] == 2 * 8192 * 28672
    on_host = {i.name: i.device_bytes for i in model_states(replace(request_of(plan), cluster=LAPTOP))}
    assert on_host["parameters"] == pytest.approx(items["parameters"], rel=1e-6)
    lora = {item.name: item.device_bytes for item in plan_with({"kind": "lora"}, "strategy=zero-2").memory.items}
    assert lora["parameters"] == pytest.approx(2 * plan.shape.parameters, rel=1e-6)
    assert "dequantised matrix" not in lora


def test_under_ddp_autocast_copies_only_what_is_not_quantised() -> None:
    plan = plan_with({"kind": "qlora"}, "strategy=ddp")
    items = {item.name: item.device_bytes for item in plan.memory.items}
    assert items["16-bit copies of the weights"] == pytest.approx(2 * (plan.shape.parameters - LINEAR), rel=1e-6)


def test_a_base_of_70b_fits_without_sharding_and_no_rung_shards_it() -> None:
    plan = plan_with({"kind": "qlora"})
    assert plan.strategy.stage < 3
    assert not any(key.startswith("strategy.rejected.zero-3") for key in plan.reasons)
    assert plan_with({"kind": "lora"}).strategy.stage == 3
    with pytest.raises(PlanError) as caught:
        plan_with({"kind": "qlora"}, "train.micro_batch=64", "train.sequence=65536")
    assert "zero-3" not in str(caught.value)


def test_the_plan_says_how_the_base_is_held() -> None:
    row = next(row for row in summary_rows(plan_with({"kind": "qlora", "rank": 8})) if row[0] == "adapter")
    assert row[1] == "qlora, rank 8, alpha 16, all-linear, base in nf4, scales in 8 bits"
    assert row[2].endswith("frozen weights in 4.13 bits each")
    plain = plan_with({"kind": "qlora", "quantization": "fp4", "double_quantization": False}).adapter
    assert plain is not None
    assert (plain.quantization, plain.double_quantization) == ("fp4", False)
    assert plan_with({"kind": "lora"}).adapter == plain.model_copy(update={"kind": "lora", "quantization": None})


def test_on_a_cpu_and_under_stage_3_it_is_refused_with_all_reasons_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        plan_with({"kind": "qlora"}, "strategy=zero-3", "launch.processes=2", cluster=LAPTOP)
    problems = {problem.key: problem for problem in caught.value.problems}
    assert problems["adapter.kind"].value == "qlora"
    assert "is for GPUs only" in problems["adapter.kind"].rule
    assert "kind: lora" in problems["adapter.kind"].fix
    assert "does not partition" in problems["strategy.stage"].rule
    assert "zero-2" in problems["strategy.stage"].fix
    with pytest.raises(PlanError, match=r"strategy\.offload\.parameters.*does not partition"):
        plan_with({"kind": "qlora"}, "strategy={kind: deepspeed, stage: 3, offload: {parameters: cpu}}")


def test_it_is_certified_as_lora_and_says_so() -> None:
    small = shrink(plan_with({"kind": "qlora"}, "strategy=zero-2"), 1)
    assert small.plan.adapter is not None
    assert (small.plan.adapter.kind, small.plan.adapter.quantization) == ("lora", None)
    assert any("LoRA in place of QLoRA" in text for text in small.substitutions)


@pytest.mark.parametrize("absent", ["bitsandbytes", "peft"])
def test_without_a_package_the_extra_is_named(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else object())
    with pytest.raises(MissingExtra, match=rf"(?s){absent}.*headway\[qlora\]"):
        require_extra("adapter", "qlora")
