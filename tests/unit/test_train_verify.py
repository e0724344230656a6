"""The built engine is read back: a contradiction stops the run, an option that shows nowhere is said."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.distributed.plans import tiny_plan
from torch import nn

from fakes.plans import LAPTOP, SMALL, facts_of, run_of
from headway.api.preparing import judged
from headway.certify.judge import _read_back
from headway.check.checks import require_checks
from headway.errors import CheckFailed, UserError
from headway.plan.live import FORCE_NAMES, LIVE_FINDINGS, expected_settings
from headway.plan.make import make_plan
from headway.plan.schema import CompressionPlan, Plan
from headway.run.record import describe_plan
from headway.train.verify import verify


class Inner:
    """What Headway asks of a DeepSpeed engine, answered as the plan would have it; attributes differ on demand."""

    def __init__(self, plan: Plan, **changes: Any):
        told = expected_settings(plan) | changes
        self.dp_world_size = told["world"]
        self._told = told

    def zero_optimization_stage(self) -> int:
        return self._told["stage"]

    def gradient_clipping(self) -> float:
        return self._told["clip"]

    def gradient_accumulation_steps(self) -> int:
        return self._told["accumulation"]

    def train_micro_batch_size_per_gpu(self) -> int:
        return self._told["micro_batch"]

    def zero_offload_optimizer(self) -> Any:
        return SimpleNamespace(device="cpu") if self._told["offload_optimizer"] else None

    def zero_offload_param(self) -> Any:
        return SimpleNamespace(device="cpu") if self._told["offload_parameters"] else None


def engine(plan: Plan, *, dtype: torch.dtype = torch.float32, kind: type = torch.optim.AdamW, **changes: Any) -> Any:
    """A small module with a real optimizer that has made its state, in a DeepSpeed engine's place."""
    module = nn.Linear(4, 4).to(dtype)
    optimizer = kind(module.parameters(), lr=0.1)
    module(torch.ones(1, 4, dtype=dtype)).sum().backward()
    optimizer.step()
    return SimpleNamespace(
        engine=Inner(plan, **changes), module=module, partition=SimpleNamespace(torch_optimizer=optimizer)
    )


PLAN = tiny_plan("zero-2", (2, 2, 2))


def test_an_engine_that_is_as_planned_passes() -> None:
    assert verify(engine(PLAN), PLAN) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"stage": 0}, "live-stage"),
        ({"clip": 0.0}, "live-clip"),
        ({"accumulation": 1}, "live-accumulation"),
        ({"micro_batch": 1}, "live-micro-batch"),
        ({"world": 4}, "live-world-size"),
        ({"offload_optimizer": True}, "live-offload"),
        ({"dtype": torch.bfloat16}, "live-dtype"),
        ({"kind": torch.optim.Adam}, "live-optimizer"),
    ],
)
def test_a_contradiction_stops_the_run_and_can_be_passed_by_name(change: dict[str, Any], name: str) -> None:
    built = engine(PLAN, **change)
    with pytest.raises(CheckFailed) as caught:
        verify(built, PLAN)
    assert [problem.key for problem in caught.value.problems] == [name]
    assert f"--force {name}" in str(caught.value)
    forced = PLAN.model_copy(update={"forced": (name,)})
    (said,) = verify(built, forced)
    assert "passed by --force" in said


def test_two_settings_of_one_name_are_one_finding() -> None:
    built = engine(PLAN, offload_optimizer=True, offload_parameters=True)
    with pytest.raises(CheckFailed) as caught:
        verify(built, PLAN)
    (problem,) = caught.value.problems
    assert problem.key == "live-offload"
    assert "offload_optimizer: the engine was built with True" in problem.rule
    assert "offload_parameters: the engine was built with True" in problem.rule
    assert str(caught.value).count("--force") == 1
    (said,) = verify(built, PLAN.model_copy(update={"forced": ("live-offload",)}))
    assert said.count("passed by --force") == 1


def test_every_name_can_be_forced_and_no_other() -> None:
    require_checks(LIVE_FINDINGS)
    assert set(FORCE_NAMES) >= set(expected_settings(PLAN))
    with pytest.raises(UserError, match="did you mean live-stage"):
        require_checks(["live-stag"])


def test_the_certificate_reads_back_the_same_settings() -> None:
    measures = _read_back({**expected_settings(PLAN), "stage": 0}, PLAN)
    assert len(measures) == len(expected_settings(PLAN))
    assert [measure.what for measure in measures if not measure.holds] == ["stage is 0"]


@pytest.mark.parametrize(
    ("section", "update", "said"),
    [
        ("numerics", {"activation_checkpointing": True}, "train.activation_checkpointing has no effect"),
        ("numerics", {"compile": True}, "train.compile has no effect"),
    ],
)
def test_an_option_of_which_the_model_shows_nothing_is_said(section: str, update: dict[str, Any], said: str) -> None:
    plan = PLAN.model_copy(update={section: getattr(PLAN, section).model_copy(update=update)})
    (text,) = verify(engine(plan), plan)
    assert text.startswith(said)
    built = engine(plan)
    built.module.gradient_checkpointing = True
    built.module.compile(backend="eager")
    assert verify(built, plan) == []


def test_attention_offload_and_compression_are_looked_at_too() -> None:
    flash = PLAN.model_copy(update={"model": PLAN.model.model_copy(update={"attention": "flash"})})
    built = engine(flash)
    built.module.config = SimpleNamespace(_attn_implementation="sdpa")
    (text,) = verify(built, flash)
    assert "model.attention = flash has no effect: the built model attends by 'sdpa'" in text
    built.module.config._attn_implementation = "headway_flash"
    assert verify(built, flash) == []
    offload = tiny_plan("zero-2-offload", (2, 2, 2))
    (text,) = verify(engine(offload), offload)
    assert "strategy.offload (optimizer) has no effect on a CPU" in text
    told = CompressionPlan(kind="bf16", rank=1, start_step=2, error_feedback=True)
    alone = tiny_plan("ddp", (8, 1, 1))
    alone = alone.model_copy(update={"strategy": alone.strategy.model_copy(update={"compression": told})})
    built = engine(PLAN)
    single = SimpleNamespace(module=built.module, optimizer=built.partition.torch_optimizer)
    (text,) = verify(single, alone)  # pyright: ignore[reportArgumentType]
    assert "one process sends no gradients" in text


def test_a_forced_name_stands_in_the_plan_and_the_record(tmp_path: Path) -> None:
    run = run_of(SMALL)
    planned = judged(make_plan(run, facts_of(run, LAPTOP)), run, tmp_path, ["live-stage"])
    assert "live-stage" in planned.plan.forced
    assert "live-stage" in describe_plan(planned.plan)["forced"]
