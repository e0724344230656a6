"""The worked examples of docs/planner-examples.md are what the planner says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.facts.hardware import Machine, require_device
from headway.facts.schema import ModelShape
from headway.facts.shape import shape_of
from headway.plan.estimate import estimate
from headway.plan.setting import Degrees, Estimate, EstimateRequest, Software

PAGE = Path(__file__).parents[2] / "docs" / "planner-examples.md"
GIB = 1024**3
LOSS = Software(loss="linear", loss_chunk_tokens=1024)


def gpt(layers: int, hidden: int) -> ModelShape:
    config = {"model_type": "gpt2", "vocab_size": 50257, "n_positions": 2048, "n_head": hidden // 128}
    return shape_of({**config, "n_layer": layers, "n_embd": hidden})


TEN = gpt(50, 4096)


def states(made: Estimate) -> tuple[float, float]:
    """GB (1e9 bytes) of (optimizer states, all model states), wherever they stand."""
    held = {item.name.removeprefix("offloaded "): item.device_bytes + item.host_bytes for item in made.items}
    optimizer = held["optimizer states"]
    return optimizer / 1e9, (optimizer + held["parameters"] + held["gradients"]) / 1e9


def ten(**changes: object) -> EstimateRequest:
    machine = Machine(require_device("A100-80GB"), 8, host_memory_bytes=2000 * GIB)
    base = EstimateRequest(TEN, machine, Degrees(data=8), "deepspeed", 0, checkpointing="full", software=LOSS)
    return replace(base, **changes)  # pyright: ignore[reportArgumentType]


def on_v100(layers: int, hidden: int, stage: int) -> EstimateRequest:
    """fp16, one device of 16 GB, a host of 512 GiB; stage 0: nothing is offloaded, 3: parameters too."""
    return EstimateRequest(
        shape=gpt(layers, hidden),
        machine=Machine(require_device("V100-SXM2-16GB"), 1, host_memory_bytes=512 * GIB),
        degrees=Degrees(),
        engine="deepspeed",
        stage=stage,
        sequence=1024,
        accumulation=16,
        precision="fp16",
        checkpointing="full",
        offload_optimizer=stage > 0,
        offload_parameters=stage == 3,
        software=replace(LOSS, attention="eager"),
    )


def memory(made: Estimate) -> str:
    verdict = "fits" if made.fits else "does not fit"
    figures = f"{made.device_bytes / GIB:.1f} of {made.limit_bytes / GIB:.1f} GiB"
    return f"{figures} | {made.host_bytes / GIB:.0f} GiB | {verdict}"


def lines() -> list[str]:
    said: list[str] = []
    for name, changes in (
        ("no ZeRO", {}),
        ("ZeRO-1", {"stage": 1}),
        ("ZeRO-2", {"stage": 2}),
        ("ZeRO-3", {"stage": 3}),
        ("ZeRO-2, optimizer on the host", {"stage": 2, "offload_optimizer": True}),
    ):
        said.append(f"| {name} | {memory(estimate(ten(**changes)))} |")
    for layers, hidden in ((25, 1920), (45, 2560), (65, 4096)):
        for name, stage in (("nothing offloaded", 0), ("optimizer on the host", 2), ("and parameters", 3)):
            made = estimate(on_v100(layers, hidden, stage))
            billions = gpt(layers, hidden).parameters / 1e9
            said.append(f"| {billions:.1f} B | {name} | {memory(made)} |")
    return said


def test_the_page_says_what_the_planner_says() -> None:
    page = PAGE.read_text(encoding="utf-8")
    missing = [line for line in lines() if line not in page]
    assert not missing, "\n".join(missing)


def test_ten_billion_have_over_100_gb_of_optimizer_states() -> None:
    optimizer, together = states(estimate(ten()))
    assert optimizer == pytest.approx(12 * TEN.parameters / 1e9, rel=1e-6)
    assert optimizer > 100
    assert together == pytest.approx(16 * TEN.parameters / 1e9, rel=1e-6)
    assert f"{optimizer:.0f} GB" in PAGE.read_text(encoding="utf-8")
    assert f"{together:.0f} GB" in PAGE.read_text(encoding="utf-8")
