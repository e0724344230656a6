"""Tasks that are no plain language model in memory and time: pairs, labels; and the passes beside the steps."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.plans import A100_8, LAPTOP, plan_of
from headway.facts.clusterfile import Rates
from headway.facts.hardware import machine_of
from headway.facts.prices import read_prices
from headway.facts.schema import ClusterFacts
from headway.facts.shape import shape_of
from headway.plan.forecast import Basis, Forecast, forecast
from headway.plan.passes import REFERENCE_BYTES, evaluations, reference_bytes
from headway.plan.schema import Plan
from headway.plan.storage import storage_of
from headway.plan.work import flops_per_token, work_of

RATES = Rates(
    precision="fp32",
    matmul_flops=6e10,
    layer_flops=5e10,
    stream_bytes_per_second=4e9,
    update_parameters_per_second=2e8,
    layer_seconds=1e-3,
    step_seconds=2e-3,
    copy_bytes_per_second=1e10,
    link_bytes_per_second=1e9,
    link_seconds=1e-4,
)
RUN: dict[str, Any] = {
    "model": {"config": {"arch": "llama", "hidden": 512, "layers": 6, "heads": 8, "vocab": 8000}},
    "data": {"train": ["x.jsonl"], "eval": "5%"},
    "train": {"length": "100 steps", "sequence": 128, "global_batch": "32 sequences", "micro_batch": 2},
    "optimizer": {"lr": 1e-5},
    "strategy": "zero-3",
}
RUN["model"]["tokenizer"] = {"train": "8k"}
MACHINES = {"cpu": LAPTOP, "cuda": A100_8}


def planned(task: str, cluster: ClusterFacts, *overrides: str) -> tuple[Plan, Forecast]:
    extra = ["launch.processes=2"] if cluster.device == "cpu" else []
    plan = plan_of({**RUN, "task": {"kind": task}}, cluster, *extra, *overrides, vocab=8000)
    rates = RATES if cluster.device == "cpu" else None
    return plan, forecast(plan, Basis(machine_of(cluster), read_prices(), rates=rates))


@pytest.mark.parametrize("device", MACHINES)
@pytest.mark.parametrize("task", ["causal_lm", "preference", "classification"])
def test_the_forecast_shows_the_memory_that_was_planned(task: str, device: str) -> None:
    plan, found = planned(task, MACHINES[device])
    assert found.device_bytes == plan.memory.device_bytes
    assert found.limit_bytes == pytest.approx(plan.memory.device_limit_bytes, rel=1e-6)


def test_the_forecast_shows_what_compressed_gradients_keep() -> None:
    compressed = "strategy={kind: ddp, gradient_compression: {kind: powersgd, rank: 2}}"
    plan, found = planned("causal_lm", A100_8, compressed)
    assert any(item.name == "gradient compression" for item in found.items)
    assert found.device_bytes == plan.memory.device_bytes == sum(item.device_bytes for item in found.items)


@pytest.mark.parametrize("device", MACHINES)
def test_a_pair_computes_both_answers(device: str) -> None:
    plan, pairs = planned("preference", MACHINES[device])
    _, whole = planned("causal_lm", MACHINES[device])
    # Of so small a model's products a GPU takes as long whatever the rows.
    busy = {"memory traffic", "norms and activations", "attention", "logits and loss"}

    def of(found: Forecast) -> float:
        return sum(item.seconds for item in found.times if item.name in busy)

    assert 1.7 * of(whole) < of(pairs) < 2.6 * of(whole)
    assert pairs.tokens_per_second == pytest.approx(plan.batch.slots * plan.data.sequence / pairs.step_seconds)


@pytest.mark.parametrize("device", MACHINES)
def test_a_head_of_labels_has_no_logits_of_a_vocabulary(device: str) -> None:
    plan, labels = planned("classification", MACHINES[device])
    whole_plan, whole = planned("causal_lm", MACHINES[device])
    assert labels.step_seconds < whole.step_seconds
    assert not any(item.name == "logits and loss" and item.seconds for item in labels.times)
    counted = plan.model_copy(update={"shape": shape_of(plan.model.config, "classification")})
    head = 6 * plan.shape.vocab * plan.shape.hidden
    assert flops_per_token(whole_plan) - flops_per_token(counted) == pytest.approx(head, rel=0.01)


@pytest.mark.parametrize("device", MACHINES)
def test_the_reference_is_asked_once_of_every_pair(device: str) -> None:
    plan, found = planned("preference", MACHINES[device], "train.eval_every=null")
    [reference] = found.passes
    pairs = plan.facts.train_windows + plan.facts.eval_windows
    assert (reference.name, str(pairs) in reference.words) == ("reference", True)
    # A forward pass is about a third of training on the same pairs, without exchange of gradients and update.
    once = found.step_seconds * pairs / plan.batch.global_sequences
    assert 0.1 * once < reference.seconds < 0.5 * once
    steps = plan.schedule.steps
    assert found.run_seconds(steps) == pytest.approx(steps * found.step_seconds + reference.seconds)
    assert reference_bytes(plan) == REFERENCE_BYTES * pairs
    plain = storage_of(planned("causal_lm", MACHINES[device])[0], None)
    assert storage_of(plan, None).disk_bytes == plain.disk_bytes + reference_bytes(plan)


def test_evaluations_are_counted_as_the_loop_makes_them() -> None:
    plan, found = planned("causal_lm", LAPTOP, "train.eval_every=30 steps")
    assert evaluations(plan, found.step_seconds) == 4  # after steps 30, 60, 90 and the last
    assert [each.name for each in found.passes] == ["evaluation"]
    never, alone = planned("causal_lm", LAPTOP, "train.eval_every=null")
    assert (evaluations(never, 1.0), alone.passes) == (0, ())
    assert evaluations(planned("causal_lm", LAPTOP, "train.eval_every=50 s")[0], 1.0) == 2


def test_work_of_a_pair_is_that_of_twice_the_sequences() -> None:
    pairs, whole = work_of(planned("preference", LAPTOP)[0]), work_of(planned("causal_lm", LAPTOP)[0])
    assert pairs.flops == pytest.approx(2 * whole.flops)
    assert pairs.stream_bytes > 1.8 * whole.stream_bytes
    assert pairs.updated_parameters == whole.updated_parameters
