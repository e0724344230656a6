"""A base in 4 bits in the plan: bytes by hand, the rungs that it leaves, what is refused and why, what is said."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.plans import A100_8, GIB, LAPTOP, data_facts, run_of
from headway.certify.shrink import shrink
from headway.errors import MissingExtra, PlanError
from headway.facts.adapters import with_adapter
from headway.facts.hardware import machine_of
from headway.facts.model_config import scratch_config
from headway.facts.prices import read_prices
from headway.facts.schema import ClusterFacts
from headway.facts.shape import shape_of
from headway.plan.constants import TIME
from headway.plan.explain import summary_rows
from headway.plan.forecast import Basis, forecast
from headway.plan.make import AllFacts, make_plan
from headway.plan.memory import LIVE_NUMBERS, model_states
from headway.plan.quantizing import gathered_numbers, planned_bits, scale_bits
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
    plan = plan_with({"kind": "qlora"}, "strategy=ddp", "train.activation_checkpointing=false")
    items = {item.name: item.device_bytes for item in plan.memory.items}
    assert items["16-bit copies of the weights"] == pytest.approx(2 * (plan.shape.parameters - LINEAR), rel=1e-6)


@pytest.mark.parametrize(("precision", "weight"), [("bf16", 2), ("fp32", 4)])
def test_zero_3_spreads_the_weights_and_not_their_scales(precision: str, weight: int) -> None:
    held, words = {"kind": "qlora", "double_quantization": False}, f"train.precision={precision}"
    plan = plan_with(held, "strategy=zero-3", words)
    others = plan.shape.parameters - LINEAR
    spread, scales = (LINEAR / 2 + weight * others) / 8, LINEAR / 16
    items = {item.name: item.device_bytes for item in plan.memory.items}
    assert items["parameters"] == pytest.approx(spread + scales, rel=1e-6)
    numbers, layer = gathered_numbers(plan.shape, planned_bits(plan.adapter), weight)
    assert numbers * weight == pytest.approx(8 * spread, rel=1e-6)
    assert layer == 32000 * 8192, "the embedding is larger than a packed layer"
    # DeepSpeed counts packed numbers; prefetching passes the bound by a matrix, here the embedding
    live = LIVE_NUMBERS + 2 * layer + plan.strategy.prefetch_bucket_elements
    assert items["gathered parameters"] == pytest.approx(weight * live, rel=1e-6)
    away = plan_with(held, "strategy={kind: deepspeed, stage: 3, offload: {parameters: cpu}}", words).memory.items
    assert {i.name: i.device_bytes for i in away}["parameters"] == pytest.approx(scales, rel=1e-6)
    assert {i.name: i.host_bytes for i in away}["offloaded parameters"] == pytest.approx(spread, rel=1e-6)


def test_zero_3_is_planned_where_nothing_simpler_fits() -> None:
    assert plan_with({"kind": "qlora"}).strategy.stage < 3
    assert plan_with({"kind": "lora"}).strategy.stage == 3
    small = A100_8.model_copy(update={"device_memory_bytes": 40 * GIB})
    assert plan_with({"kind": "qlora"}, cluster=small).strategy.label == "zero-3"


def test_dequantising_takes_its_way_through_memory_with_each_product() -> None:
    """Forward, recomputed, and backward for the input's gradient."""
    plan = plan_with({"kind": "qlora"}, "strategy=zero-2", "train.activation_checkpointing=true")
    bits = planned_bits(plan.adapter)
    assert bits is not None
    machine = machine_of(A100_8)
    rate = machine.device.bandwidth_bytes_per_second * TIME.bandwidth
    times = {item.name: item.seconds for item in forecast(plan, Basis(machine, read_prices())).times}
    once = LINEAR * (bits / 8 + 2) / rate
    assert times["dequantising"] == pytest.approx(3 * plan.batch.accumulation * once, rel=1e-3)
    lora = forecast(plan_with({"kind": "lora"}, "strategy=zero-3"), Basis(machine, read_prices()))
    assert not any(item.name == "dequantising" for item in lora.times)


def test_the_plan_says_how_the_base_is_held() -> None:
    row = next(row for row in summary_rows(plan_with({"kind": "qlora", "rank": 8})) if row[0] == "adapter")
    assert row[1] == "qlora, rank 8, alpha 16, all-linear, base in nf4, scales in 8 bits"
    assert row[2].endswith("frozen weights in 4.13 bits each")
    plain = plan_with({"kind": "qlora", "quantization": "fp4", "double_quantization": False}).adapter
    assert plain is not None
    assert (plain.quantization, plain.double_quantization) == ("fp4", False)
    assert plan_with({"kind": "lora"}).adapter == plain.model_copy(update={"kind": "lora", "quantization": None})


def test_on_a_cpu_and_where_its_packed_weights_would_be_computed_with_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        plan_with({"kind": "qlora"}, "strategy.kind=zero-3", "strategy.quantized_weights=true", cluster=LAPTOP)
    problems = {problem.key: problem for problem in caught.value.problems}
    assert problems["adapter.kind"].value == "qlora"
    assert "is for GPUs only" in problems["adapter.kind"].rule
    assert "kind: lora" in problems["adapter.kind"].fix
    with pytest.raises(PlanError, match=r"(?s)strategy\.quantized_weights.*in 8 bits rounds the numbers"):
        plan_with({"kind": "qlora"}, "strategy.kind=zero-3", "strategy.quantized_weights=true")
    summed = {"zero_optimization": {"stage": 3, "stage3_use_all_reduce_for_fetch_params": True}}
    (tmp_path / "ds.json").write_text(json.dumps(summed))
    with pytest.raises(PlanError, match=r"ds\.json:1: .*fetch_params.*a sum over ranks"):
        plan_with({"kind": "qlora"}, f"strategy={{kind: deepspeed, config: {tmp_path / 'ds.json'}}}")


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
