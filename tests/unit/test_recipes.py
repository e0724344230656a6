"""Every run file in the tree is read and planned, on the machines that it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.plans import A100_8, LAPTOP, facts_of
from headway.config.load import load_run
from headway.facts.schema import ClusterFacts
from headway.plan.make import make_plan
from headway.plan.schema import Plan

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
ONE_GPU = A100_8.model_copy(update={"devices_per_host": 1})
ONE_CORE = LAPTOP.model_copy(update={"devices_per_host": 1})


def planned(path: Path, cluster: ClusterFacts) -> Plan:
    run = load_run(path)
    return make_plan(run, facts_of(run, cluster))


def test_there_are_recipes() -> None:
    assert [path.stem for path in RECIPES] == ["quickstart"]


@pytest.mark.parametrize(
    ("cluster", "processes", "precision"),
    [(LAPTOP, 2, "fp32"), (ONE_CORE, 1, "fp32"), (ONE_GPU, 1, "bf16"), (A100_8, 8, "bf16")],
)
def test_the_quickstart_fits_every_machine(cluster: ClusterFacts, processes: int, precision: str) -> None:
    """Two processes on a CPU, or every GPU that there is."""
    plan = planned(RECIPES[0], cluster)
    assert plan.strategy.label == "zero-2"
    assert (plan.launch.processes, plan.launch.device, plan.numerics.precision) == (
        processes,
        cluster.device,
        precision,
    )
    assert plan.batch.global_sequences == 16
