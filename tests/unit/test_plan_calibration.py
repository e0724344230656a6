"""Rates from measured steps: synthetic machines are found again, and terms that nothing shows stay zero."""

from __future__ import annotations

import json

import pytest

from fakes.plans import LAPTOP, SMALL, plan_of
from headway.api import calibrating
from headway.api.calibrating import _ON_CPU, _ON_GPU, cluster_file, reference_plans, setting_plan
from headway.facts.clusterfile import Rates
from headway.facts.wanted import wanted_cluster
from headway.plan.calibrated import measured_times
from headway.plan.calibration import fit_terms, link_rate, terms_of
from headway.plan.work import work_of

# Seconds of a FLOP, a kept byte, a layer, an updated parameter, a step.
MACHINE = (1 / 4e10, 1 / 3e9, 2e-4, 1 / 2e8, 3e-3)
SHARDED = {2: (4e-4, 2e-9, 1e-3), 3: (9e-4, 5e-9, 2e-3)}  # of a layer, a parameter in a large buffer, a step


def test_a_synthetic_machine_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "warm_up", lambda device: None)
    plans = reference_plans(LAPTOP)
    alone = [plan for plan in plans if plan.strategy.kind == "single"]
    amounts = [terms_of(work_of(plan)) for plan in alone]
    seconds = [sum(a * b for a, b in zip(terms, MACHINE, strict=True)) for terms in amounts]
    assert fit_terms(amounts, seconds, seconds) == pytest.approx(MACHINE, rel=1e-3)
    truth = Rates(
        precision="fp32",
        matmul_flops=5e10,
        layer_flops=1 / MACHINE[0],
        stream_bytes_per_second=1 / MACHINE[1],
        layer_seconds=MACHINE[2],
        update_parameters_per_second=1 / MACHINE[3],
        step_seconds=MACHINE[4],
        copy_bytes_per_second=1e10,
        link_bytes_per_second=64 * 2**20 / 0.1,  # two ranks: each byte crosses once
        link_seconds=1e-4,
        disk_bytes_per_second=5e8,
        **{f"stage_{n}_{name}_seconds": unit for n, units in SHARDED.items()
           for name, unit in zip(("layer", "mapped_parameter", "step"), units, strict=True)},
    )  # fmt: skip
    taken = [sum(item.seconds for item in measured_times(plan, truth)) for plan in plans]
    measured = {
        "steps": [{"seconds": one} for one in taken],
        "matmul_flops": 5e10,
        "copy_bytes_per_second": 1e10,
        "link": [[4096, 1e-4], [64 * 2**20, 0.1]],
        "host_bytes_per_second": None,
        "disk_bytes_per_second": 5e8,
    }
    found = cluster_file(LAPTOP, plans, json.loads(json.dumps(measured)), "x").rates
    assert found is not None
    for name, rate in truth.model_dump(exclude={"precision"}, exclude_none=True).items():
        assert getattr(found, name) == pytest.approx(rate, rel=1e-3, abs=1e-12), name
    for plan, seconds in zip(plans, taken, strict=True):
        assert sum(item.seconds for item in measured_times(plan, found)) == pytest.approx(seconds, rel=1e-3)


def test_a_term_that_nothing_shows_is_zero_and_none_is_negative() -> None:
    amounts = [terms_of(work_of(setting_plan(LAPTOP, setting))) for setting in _ON_CPU]
    flops_only = [terms[0] / 1e10 for terms in amounts]
    found = fit_terms(amounts, flops_only, flops_only)
    assert found[0] == pytest.approx(1e-10, rel=1e-6)
    assert found[1:] == pytest.approx([0] * 4, abs=1e-12)
    noisy = [taken * factor for taken, factor in zip(flops_only, (1.2, 0.8, 1.1, 0.7, 1.3, 0.9, 1.1, 0.8), strict=True)]
    assert min(fit_terms(amounts, noisy, noisy)) >= 0
    faster = [-taken for taken in flops_only]  # than what is known already: nothing is left to explain
    assert fit_terms(amounts, faster, flops_only) == [0.0] * 5


def test_the_settings_for_gpus_are_legal_plans_of_one_process_a_gpu() -> None:
    for setting in _ON_GPU:
        plan = setting_plan(wanted_cluster("4xA100-80GB").facts, setting)
        assert (plan.launch.processes, plan.launch.backend, plan.numerics.precision) == (4, "nccl", "bf16")


def test_a_ring_moves_twice_a_message_less_the_own_part() -> None:
    assert link_rate([(8, 1e-5), (1000, 1.0)], 4) == (1500.0, 1e-5)
    assert link_rate([(8, 3e-5), (64, 1e-5), (1000, 1.0)], 4)[1] == 1e-5  # the first was disturbed


def test_work_grows_with_what_it_is_made_of() -> None:
    plan = plan_of(SMALL, LAPTOP)
    rates = Rates(precision="fp32", matmul_flops=1e10, layer_flops=1e10, copy_bytes_per_second=1e9,
                  link_bytes_per_second=1e8, stream_bytes_per_second=1e9)  # fmt: skip
    base = work_of(plan)
    again = work_of(plan_of(SMALL, LAPTOP, "train.activation_checkpointing=true"))
    assert base.flops < again.flops < base.flops * 4 / 3 + 1
    alone = work_of(plan_of(SMALL, LAPTOP, "strategy=single", "launch.processes=1"))
    assert (alone.reduced_bytes, alone.gathered_bytes) == (0, 0)
    third = work_of(plan_of(SMALL, LAPTOP, "strategy=zero-3"))
    assert third.gathered_bytes > base.gathered_bytes > 0
    names = [item.name for item in measured_times(plan, rates)]
    assert names == ["matrix products", "memory traffic", "communication"]
