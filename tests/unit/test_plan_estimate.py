"""Estimates of one setting: they move with what they depend on, and their parts add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.profiler import profile

from fakes.allocated import most_bytes
from fakes.plans import shape
from headway.errors import PlanError
from headway.facts.hardware import Machine, require_device
from headway.facts.schema import AdapterShape
from headway.facts.wanted import wanted_cluster
from headway.plan.estimate import estimate
from headway.plan.footprint import logits_bytes
from headway.plan.setting import Degrees, EstimateRequest, LossKind, Software

GIB = 1024**3
HOST = Machine(require_device("H100"), 8, host_memory_bytes=1000 * GIB)
BASE = EstimateRequest(shape(8_000_000_000), HOST, Degrees(data=8), "deepspeed", 3, accumulation=4)


def test_parts_add_up() -> None:
    made = estimate(BASE)
    assert sum(item.device_bytes for item in made.items) == pytest.approx(made.device_bytes, abs=100)
    assert sum(part.seconds for part in made.times) == pytest.approx(made.step_seconds)
    assert made.allocated_bytes < made.reserved_bytes < made.device_bytes
    assert made.low_bytes < made.device_bytes < made.high_bytes
    assert made.tokens_per_second == pytest.approx(2048 * 4 * 8 / made.step_seconds)
    assert 0 < made.mfu < 1


def test_what_saves_memory_saves_memory() -> None:
    def needed(**changes: object) -> int:
        return estimate(replace(BASE, **changes)).device_bytes  # pyright: ignore[reportArgumentType]

    assert [needed(stage=stage) for stage in range(4)] == sorted(needed(stage=stage) for stage in range(4))[::-1]
    assert needed(checkpointing="full") < needed(checkpointing="selective") < needed()
    assert needed(software=Software(kernels="fused")) < needed()
    small = 10_000_000  # buckets of DeepSpeed's default size are larger than these logits
    losses = [
        needed(software=Software(loss=kind), reduce_bucket_elements=small) for kind in ("chunked", "fused", "whole")
    ]
    assert losses == sorted(losses)
    assert len(set(losses)) == 3
    assert needed(offload_optimizer=True) < needed()
    assert needed(degrees=Degrees(data=4, tensor=2)) < needed(degrees=Degrees(data=8))


def item(request: EstimateRequest, name: str) -> int:
    return next((item.device_bytes for item in estimate(request).items if item.name == name), 0)


def test_ddp_keeps_buckets_beside_gradients_that_accumulate() -> None:
    """As torch's reducer: with gradient_as_bucket_view the buckets are the gradients, until a step has several."""
    one = replace(BASE, engine="ddp", stage=0, accumulation=1)
    assert item(one, "communication buckets") == 0
    assert item(one, "gradients") == 4 * 8e9
    assert item(replace(one, accumulation=2), "communication buckets") == 4 * 8e9
    assert item(replace(one, bucket_view=False), "communication buckets") == 4 * 8e9
    alone = Machine(require_device("H100"), 1)
    assert item(replace(one, accumulation=2, degrees=Degrees(), machine=alone), "communication buckets") == 0


def test_what_stage_3_holds_gathered_and_in_its_bucket() -> None:
    """partitioned_param_coordinator.py: prefetching adds a matrix as long as less than its bound is there; the groups
    that come together are copied out of one buffer. stage3.py makes the bucket with the engine, whole."""
    large = replace(BASE, shape=shape(100_000_000_000))
    matrix = large.shape.hidden * max(large.shape.vocab, large.shape.ffn)
    assert item(large, "gathered parameters") == 2 * (10**9 + matrix + 50_000_000 + matrix)
    trained = large.shape.model_copy(update={"trainable_parameters": 10_000_000})
    for each in (large, replace(large, shape=trained)):
        assert item(each, "communication buckets") == 2 * 500_000_000


def test_dropout_of_an_adapter_keeps_its_inputs_and_a_byte_for_each() -> None:
    added = AdapterShape(parameters=10**7, layers=7 * 32, rank=8, inputs=7 * 32 * 4096)
    plain = replace(BASE, shape=BASE.shape.model_copy(update={"adapter": added}), micro_batch=8)
    dropping = replace(plain, adapter_dropout=True)
    grown = item(dropping, "activations") - item(plain, "activations")
    assert grown == pytest.approx(8 * 2048 * added.inputs * (2 + 1), abs=2)


def test_autocast_frees_its_copies_before_the_update() -> None:
    """As its cache does when it ends, before the backward pass; what autograd keeps for itself stays."""
    one = replace(BASE, engine="ddp", stage=0, accumulation=1, micro_batch=1, sequence=64)
    assert estimate(one).allocated_bytes == pytest.approx((4 + 4 + 8 + 2) * 8e9, rel=0.02)  # the forward pass
    long = replace(one, checkpointing="full", sequence=131072, software=Software(loss_chunk_tokens=1024))
    assert item(one, "16-bit copies of the weights") == pytest.approx(2 * 8e9, rel=0.01)
    assert item(long, "16-bit copies of the weights") == 0
    listed = replace(one, software=Software(fused_optimizer=False))
    assert estimate(listed).allocated_bytes == pytest.approx((4 + 4 + 8 + 4) * 8e9, rel=0.02)  # torch's lists


@pytest.mark.parametrize("held", [0, 2, 4])
def test_what_a_cross_entropy_of_all_tokens_holds(held: int) -> None:
    """The planner's count beside the peak of torch's own, with no logits held behind the forward pass, those in 16 bits
    or those that were cast."""
    tokens, hidden, vocab = 256, 16, 4096
    head = torch.nn.Linear(hidden, vocab, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    inputs = torch.randn(tokens, hidden, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, vocab, (tokens,))

    def loss_of() -> tuple[torch.Tensor, torch.Tensor | None]:
        logits = head(inputs)
        cast = logits.float()
        return torch.nn.functional.cross_entropy(cast, labels), {0: None, 2: logits, 4: cast}[held]

    with profile(profile_memory=True) as profiled:
        loss, kept = loss_of()
        loss.backward()
    del kept
    assert most_bytes(profiled) == pytest.approx((12 + held) * tokens * vocab, rel=0.02)
    adapted = shape(8_000_000_000)  # no gradient of a frozen head
    adapted = adapted.model_copy(update={"adapter": AdapterShape(parameters=1, layers=1, rank=1, inputs=1)})
    software = Software(loss="whole", held_logit_bytes=held)
    one = replace(BASE, shape=adapted, engine="single", degrees=Degrees(), software=software, micro_batch=8)
    assert logits_bytes(one) == (12 + held) * one.tokens * adapted.vocab


def test_whole_gradients_while_fsdp_does_not_exchange_them() -> None:
    sharded = replace(BASE, engine="fsdp")
    whole = replace(sharded, software=Software(whole_accumulation=True))
    assert item(whole, "gradients") - item(sharded, "gradients") == pytest.approx(2 * 8e9, rel=1e-3)
    assert estimate(whole).step_seconds <= estimate(sharded).step_seconds


def test_stage_3_copies_one_sub_group_of_gradients() -> None:
    """DeepSpeed's stage 3 steps by sub-groups of 10^9 elements, stage 2 all at once (stage3.py, stage_1_and_2.py)."""

    def peak(count: int, stage: int) -> int:
        return estimate(
            replace(BASE, shape=shape(count), stage=stage, degrees=Degrees(data=1), micro_batch=1, sequence=64)
        ).allocated_bytes

    grown = peak(12_000_000_000, 3) - peak(8_000_000_000, 3)
    assert grown == pytest.approx(16 * 4e9, rel=0.03)  # 2 + 2 + 12 bytes a parameter, and no fp32 gradient more
    assert peak(12_000_000_000, 2) - peak(8_000_000_000, 2) == pytest.approx(20 * 4e9, rel=0.03)


def test_quantised_weights_travel_in_their_bits_and_are_written_out() -> None:
    sharded = replace(BASE, engine="fsdp", master=False, machine=Machine(require_device("RTX 3090"), 8))
    packed = replace(sharded, base_bits=4)

    def seconds(request: EstimateRequest, name: str) -> float:
        part = next((part for part in estimate(request).times if part.name == name), None)
        return part.seconds + part.hidden_seconds if part else 0.0

    assert seconds(packed, "data parallel") < 0.75 * seconds(sharded, "data parallel")
    assert seconds(packed, "dequantising") > 0 == seconds(sharded, "dequantising")


def test_the_host_waits_longer_for_adapters_and_for_hooks() -> None:
    short = replace(BASE, sequence=128, micro_batch=1, degrees=Degrees(data=1), engine="ddp", stage=0)
    adapted = short.shape.model_copy(
        update={"adapter": AdapterShape(parameters=10**7, layers=7 * 32, rank=8, inputs=7 * 32 * 4096)}
    )

    def waits(request: EstimateRequest) -> float:
        return sum(part.seconds for part in estimate(request).times if part.name == "waiting for the host")

    assert waits(replace(short, shape=adapted)) > waits(short)
    assert waits(replace(short, engine="deepspeed", stage=3)) > waits(replace(short, engine="deepspeed", stage=2))


def test_a_linear_loss_does_not_grow_with_the_logits() -> None:
    def needed(micro: int, loss: LossKind) -> int:
        software = Software(loss=loss, loss_chunk_tokens=1024)
        request = replace(BASE, micro_batch=micro, software=software, checkpointing="full")
        return next(i.device_bytes for i in estimate(request).items if i.name == "logits and loss")

    assert needed(16, "linear") < needed(16, "chunked") / 2
    assert needed(16, "chunked") > 3 * needed(4, "chunked")


def test_offload_fills_the_host() -> None:
    made = estimate(replace(BASE, offload_optimizer=True))
    assert made.host_bytes == pytest.approx((12 + 4 + 2) * 8e9, rel=0.01)
    assert estimate(BASE).host_bytes == 0
    slow = {part.name: part.seconds for part in made.times}
    assert slow["optimizer on the host"] > 0
    assert slow["offload transfers"] > 0


def test_bubble_and_links() -> None:
    def named(name: str, **changes: object) -> float:
        made = estimate(replace(BASE, **changes))  # pyright: ignore[reportArgumentType]
        return {part.name: part.seconds for part in made.times}.get(name, 0.0)

    pipeline = Degrees(data=2, pipeline=4)
    assert named("pipeline bubble", degrees=pipeline, stage=1) > named(
        "pipeline bubble", degrees=pipeline, stage=1, accumulation=4, software=Software(virtual_stages=4)
    )
    assert named("tensor parallel", degrees=Degrees(data=4, tensor=2)) > 0
    many = replace(HOST, hosts=8, network_bytes_per_second=1e9)
    near = named("data parallel", degrees=Degrees(data=64), machine=replace(HOST, hosts=8))
    assert named("data parallel", degrees=Degrees(data=64), machine=many) > 5 * near


@pytest.mark.parametrize("device", ["V100", "T4", "MI300X", "RTX 4090", "GB200"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp8"])
def test_every_device_at_every_precision(device: str, precision: Any) -> None:
    """Also those that a device cannot do: they are planned at the next rate that it has."""
    made = estimate(replace(BASE, machine=Machine(require_device(device), 8), precision=precision))
    assert made.step_seconds > 0
    assert 0 < made.mfu < 1


def test_hybrid_sharding_keeps_more_and_waits_less() -> None:
    wide = replace(BASE, engine="fsdp", machine=replace(HOST, hosts=64), degrees=Degrees(data=512))
    grouped = replace(wide, shard_group=8)
    assert estimate(grouped).device_bytes > estimate(wide).device_bytes
    waits = [{part.name: part.seconds for part in estimate(r).times}["data parallel"] for r in (grouped, wide)]
    assert waits[0] < waits[1]


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("H100-80GB", "H100-SXM5-80GB"),
        ("H100-85GB", "H100-SXM5-80GB"),  # 79.1 GiB are 84.9 GB
        ("H100-94GB", "H100-NVL-94GB"),
        ("A100-40GB", "A100-SXM4-40GB"),
        ("A100-80GB", "A100-SXM4-80GB"),
        ("H200-141GB", "H200-SXM-141GB"),
        ("H200-144GB", "H200-SXM-141GB"),
        ("B200-192GB", "B200-SXM-180GB"),
        ("T4-16GB", "T4"),
        ("L40S-48GB", "L40S"),
    ],
)
def test_a_size_is_the_makers_or_what_is_seen_of_it(name: str, taken: str) -> None:
    assert require_device(name).name == taken


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("H100-90GB", "H100-NVL-94GB (93 GiB), H100-SXM-96GB (95 GiB), H100-PCIe-80GB (79 GiB)"),
        ("A100-64GB", "A100-PCIe-80GB (79 GiB), A100-SXM4-80GB (79 GiB), A100-PCIe-40GB (39 GiB)"),
        ("H200-120GB", "H200-SXM-141GB (140 GiB)"),
        ("RTX 3080-12GB", "RTX 3080 Ti (12 GiB), RTX 3080-10GB (10 GiB)"),
        ("H100-0GB", "H100-SXM5-80GB"),
    ],
)
def test_a_size_that_no_card_has_names_the_cards(name: str, near: str) -> None:
    with pytest.raises(PlanError, match="another memory") as caught:
        require_device(name)
    assert near in caught.value.problems[0].fix


def test_another_make_of_a_card_is_said() -> None:
    assert wanted_cluster("8xH100 NVL 80GB").assumed[0] == "H100-SXM5-80GB (79 GiB) for H100 NVL 80GB"
    assert not any("H100" in said for said in wanted_cluster("8xH100-SXM-80GB").assumed)
    assert not any("A100" in said for said in wanted_cluster("8xA100-SXM4-80GB").assumed)


def test_an_unknown_device_names_the_near_ones() -> None:
    with pytest.raises(PlanError, match="H100-SXM5-80GB"):
        require_device("H1000")


def seconds(request: EstimateRequest, name: str) -> float:
    return next((part.seconds for part in estimate(request).times if part.name == name), 0.0)


def test_autocast_casts_weights_whatever_the_tokens() -> None:
    """6 bytes a weight and a gradient each, 12 to add it to the micro batches before; none under DeepSpeed."""
    name, ddp = "casts of weights and gradients", replace(BASE, engine="ddp", stage=0, accumulation=1)
    once = seconds(ddp, name)
    assert once == pytest.approx(12 * 8e9 / 3.35e12, rel=0.15)
    assert seconds(replace(ddp, micro_batch=4), name) == once
    assert seconds(replace(ddp, accumulation=4), name) == pytest.approx(4 * once + 3 * once)
    assert seconds(replace(ddp, precision="fp32"), name) == seconds(BASE, name) == 0


def test_a_written_out_gelu_costs_most_under_autocast() -> None:
    """GPT-2's power is fp32 there; torch.compile fuses it, and weights in 16 bits need no autocast."""
    gpt2 = shape(124_000_000).model_copy(update={"arch": "gpt2", "gated": False, "layer_norm": True})
    one, eager = replace(BASE, shape=gpt2, engine="ddp", stage=0), Software(kernels="eager")
    autocast, pure = replace(one, software=eager), replace(one, software=eager, engine="deepspeed", stage=1)
    compiled = replace(one, software=Software(kernels="compiled"))
    assert seconds(autocast, "norms and activations") > 1.5 * seconds(pure, "norms and activations")
    assert seconds(pure, "norms and activations") > 2 * seconds(compiled, "norms and activations")
    assert item(autocast, "activations") > item(compiled, "activations")


def test_zero_redundancy_spreads_the_states_alone() -> None:
    """torch's ZeroRedundancyOptimizer: DDP whose optimizer states are spread."""
    ddp = replace(BASE, engine="ddp", stage=0)
    spread = replace(ddp, stage=1)
    assert item(spread, "optimizer states") == pytest.approx(item(ddp, "optimizer states") / 8)
    assert [item(spread, name) for name in ("parameters", "gradients")] == [
        item(ddp, name) for name in ("parameters", "gradients")
    ]
    assert seconds(spread, "optimizer") == pytest.approx(seconds(ddp, "optimizer") / 8)
