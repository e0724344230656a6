"""Estimates of one setting: they move with what they depend on, and their parts add up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fakes.plans import shape
from headway.errors import PlanError
from headway.facts.hardware import Machine, require_device
from headway.plan.estimate import estimate
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
    assert needed(software=Software(loss="chunked")) < needed(software=Software(loss="whole"))
    assert needed(offload_optimizer=True) < needed()
    assert needed(degrees=Degrees(data=4, tensor=2)) < needed(degrees=Degrees(data=8))


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


def test_an_unknown_device_names_the_near_ones() -> None:
    with pytest.raises(PlanError, match="H100-SXM5-80GB"):
        require_device("H1000")
