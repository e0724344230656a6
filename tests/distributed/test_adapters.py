"""An adapter is the same computation under every strategy, resumes to the bit, and is all that a checkpoint holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headway.plan.schema import Plan
from tests.distributed.adapter_jobs import straight_and_resumed
from tests.distributed.engine_jobs import go_on, train_and_report
from tests.distributed.plans import CONFIG, LORA, tiny_plan
from tests.distributed.ranks import run_ranks
from tests.distributed.test_engines import largest_difference

pytestmark = pytest.mark.distributed

SPREAD = ["ddp", "zero-1", "zero-2", "zero-3"]
STEPS, REFUSED = 5, 3
LOSS_BOUND = 2e-6  # measured: at most 4e-7
WEIGHT_BOUND = 5e-6  # measured: at most 6.3e-7, at a learning rate of 1e-2
PAIRS = 7 * CONFIG["num_hidden_layers"]


def lora_plan(strategy: str, batch: tuple[int, int, int], *, dropout: float = 0.0, **changes: Any) -> Plan:
    """B begins at zero, so gradients begin tiny: with eps = 1e-8 Adam would turn rounding into whole steps."""
    return tiny_plan(strategy, batch, adapter=LORA | {"dropout": dropout}, optimizer={"eps": 1e-5}, **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def reports(folder: Path) -> dict[str, dict[str, Any]]:
    return _Reports(folder)


class _Reports(dict[str, dict[str, Any]]):
    """Filled as tests ask: one launch a strategy, shared by all tests."""

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder

    def __missing__(self, strategy: str) -> dict[str, Any]:
        plan = lora_plan(strategy, (8, 1, 1) if strategy == "single" else (2, 2, 2))
        self[strategy] = run_ranks(train_and_report, plan.launch.processes, self.folder, plan, STEPS, REFUSED)[0]
        return self[strategy]


@pytest.mark.parametrize("strategy", SPREAD)
def test_same_curve_and_adapter_as_one_process(strategy: str, reports: dict[str, dict[str, Any]]) -> None:
    alone, spread = reports["single"], reports[strategy]
    assert spread["losses"] == pytest.approx(alone["losses"], abs=LOSS_BOUND)
    assert spread["norms"] == pytest.approx(alone["norms"], rel=1e-5)
    assert spread["evaluation"] == pytest.approx(alone["evaluation"], abs=LOSS_BOUND)
    assert spread["applied"] == [step != REFUSED for step in range(1, STEPS + 1)]
    assert largest_difference(spread["weights"], alone["weights"]) < WEIGHT_BOUND
    assert largest_difference(spread["state"], alone["state"]) < WEIGHT_BOUND


@pytest.mark.parametrize("strategy", ["single", *SPREAD])
def test_only_the_adapter_is_state(strategy: str, reports: dict[str, dict[str, Any]]) -> None:
    report = reports[strategy]
    assert len(report["weights"]) == 2 * PAIRS
    assert all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in report["weights"])
    assert {kind for _, kind in report["state"]} == {"weight", "exp_avg", "exp_avg_sq"}
    assert report["weights"]["model.layers.3.mlp.down_proj.lora_B.weight"].abs().max() > 0, "it was trained"


@pytest.mark.parametrize("strategy", ["zero-1", "zero-2", "zero-3"])
def test_buckets_are_flushed_and_layers_gathered(strategy: str, reports: dict[str, dict[str, Any]]) -> None:
    counted = reports[strategy]["counted"]
    assert counted["buckets"] >= 3
    if strategy == "zero-3":
        assert counted["gathers"] >= CONFIG["num_hidden_layers"] * STEPS


@pytest.mark.parametrize("strategy", SPREAD)
def test_a_resumed_adapter_is_equal_to_the_bit(strategy: str, folder: Path) -> None:
    """Dropout on, layers recomputed: random states, moments and the frozen base must all be as they were."""
    plan = lora_plan(strategy, (2, 2, 2), dropout=0.2, numerics={"activation_checkpointing": True})
    report = run_ranks(straight_and_resumed, 2, folder, plan, 5, 2)[0]
    assert report["resumed"] == report["straight"][2:]
    straight, resumed = report["straight end"], report["resumed end"]
    assert straight[1] == resumed[1]
    assert straight[0].keys() == resumed[0].keys()
    assert all(torch.equal(straight[0][key], resumed[0][key]) for key in straight[0])
    census = report["census"]
    assert sorted(census["trained"]) == report["stored"]
    assert census["frozen"]["model.layers.0.self_attn.q_proj.weight"] == [32, 32]
    assert census["trained"]["model.layers.0.mlp.down_proj.lora_A.weight"] == [4, 64]
    assert not census["frozen"].keys() & census["trained"].keys()


@pytest.mark.parametrize(
    ("writer", "reader", "batch"),
    [("zero-3", "ddp", (2, 2, 2)), ("ddp", "zero-3", (1, 3, 3)), ("zero-2", "zero-1", (4, 1, 2))],
)
def test_an_adapter_goes_on_under_any_strategy(
    writer: str, reader: str, batch: tuple[int, int, int], folder: Path, reports: dict[str, dict[str, Any]]
) -> None:
    written = reports[writer]
    plan = lora_plan(reader, batch)
    resumed = run_ranks(go_on, batch[2], folder, plan, written["state"], written["scalars"], range(6, 9))[0]
    if "single go on" not in reports:
        alone = reports["single"]
        straight = run_ranks(
            go_on, 1, folder, lora_plan("single", (8, 1, 1)), alone["state"], alone["scalars"], range(6, 9)
        )
        reports["single go on"] = {"losses": straight[0]}
    assert resumed == pytest.approx(reports["single go on"]["losses"], abs=LOSS_BOUND)
