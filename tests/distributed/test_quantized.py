"""QLoRA under every strategy that it has, on bitsandbytes' CPU kernels: one curve, exact resume, the adapter alone.

A run file asks for a GPU; the plans here are made without one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headway.plan.schema import Plan
from tests.distributed.adapter_jobs import curves_and_resumed
from tests.distributed.engine_jobs import train_and_report
from tests.distributed.plans import CONFIG, LORA, tiny_plan
from tests.distributed.ranks import run_ranks
from tests.distributed.test_engines import largest_difference

pytest.importorskip("bitsandbytes", reason="the extra `qlora` is not installed")
pytestmark = pytest.mark.distributed

WIDE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}  # rows of whole blocks
HELD = {"kind": "qlora", "quantization": "nf4", "double_quantization": True}
STEPS = 3
LOSS_BOUND, WEIGHT_BOUND = 2e-6, 5e-6  # as LoRA's: sums in another order
NONE_STAYS = {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
BF16_LOSS = 0.02  # 8 bits of a loss of 4, averaged over some hundred targets


def held_plan(strategy: str, batch: tuple[int, int, int], *, dropout: float = 0.0, **changes: Any) -> Plan:
    sections = {"model": {"config": CONFIG | WIDE}, "adapter": LORA | HELD | {"dropout": dropout}}
    return tiny_plan(strategy, batch, **sections, optimizer={"eps": 1e-5}, **changes)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("quantized")
    plans = [held_plan(strategy, (2, 2, 2)) for strategy in ("ddp", "zero-1", "zero-2")]
    plans.append(held_plan("zero-2", (2, 2, 2), numerics={"precision": "bf16"}))
    resumed = held_plan("zero-2", (2, 2, 2), dropout=0.2, numerics={"activation_checkpointing": True})
    report = run_ranks(curves_and_resumed, 2, folder, plans, STEPS, resumed)[0]
    report["alone"] = run_ranks(train_and_report, 1, folder, held_plan("single", (8, 1, 1)), STEPS)[0]
    return report


def test_same_curve_and_adapter_as_one_process(found: dict[str, Any]) -> None:
    alone = found["alone"]
    for spread in found["reports"][:3]:
        assert spread["losses"] == pytest.approx(alone["losses"], abs=LOSS_BOUND)
        assert spread["norms"] == pytest.approx(alone["norms"], rel=1e-5)
        assert largest_difference(spread["weights"], alone["weights"]) < WEIGHT_BOUND
        assert largest_difference(spread["state"], alone["state"]) < WEIGHT_BOUND
    assert alone["weights"]["model.layers.3.mlp.down_proj.lora_B.weight"].abs().max() > 0, "it was trained"


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Under ZeRO-3, with the weights on the device, on the host, and in bf16; in the first no layer stays gathered."""
    plans = [held_plan(strategy, (2, 2, 2)) for strategy in ("zero-3", "zero-3-offload")]
    let_go = plans[0].strategy.model_copy(update={"engine": {"zero_optimization": NONE_STAYS}})
    plans[0] = plans[0].model_copy(update={"strategy": let_go})
    plans.append(held_plan("zero-3", (2, 2, 2), numerics={"precision": "bf16"}))
    resumed = held_plan("zero-3", (2, 2, 2), dropout=0.2, numerics={"activation_checkpointing": True})
    return run_ranks(curves_and_resumed, 2, tmp_path_factory.mktemp("spread"), plans, STEPS, resumed)[0]


def test_a_partitioned_base_takes_the_steps_of_a_whole_one(spread: dict[str, Any], found: dict[str, Any]) -> None:
    """The moments, which begin as the adapter's gradients, are part of the state."""
    ddp = found["reports"][0]
    for report in spread["reports"][:2]:
        assert report["losses"] == pytest.approx(ddp["losses"], abs=LOSS_BOUND)
        assert report["norms"] == pytest.approx(ddp["norms"], rel=1e-5)
        assert largest_difference(report["weights"], ddp["weights"]) < WEIGHT_BOUND
        assert largest_difference(report["state"], ddp["state"]) < WEIGHT_BOUND
        assert report["counted"]["gathers"] > STEPS * CONFIG["num_hidden_layers"]
    assert spread["reports"][2]["losses"] == pytest.approx(found["reports"][3]["losses"], abs=BF16_LOSS)


def test_each_rank_holds_its_part_of_the_packed_weights_and_gathers_the_same_bits(
    spread: dict[str, Any], found: dict[str, Any]
) -> None:
    fp32, bf16 = found["reports"][0]["seen"], found["reports"][3]["seen"]
    for report, whole in zip(spread["reports"], (fp32, fp32, bf16), strict=True):
        assert report["seen"]["bits"] == whole["bits"]
        assert report["seen"]["shares"] == whole["shares"] / 2


def test_bf16_takes_the_same_steps_but_for_rounding(found: dict[str, Any]) -> None:
    bf16 = found["reports"][3]
    assert bf16["losses"] == pytest.approx(found["alone"]["losses"], abs=BF16_LOSS)
    assert bf16["losses"] != found["alone"]["losses"]


@pytest.mark.parametrize("which", ["found", "spread"])
def test_a_resumed_run_quantises_the_same_base_anew(which: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(which)
    assert found["resumed"] == found["straight"][2:]
    straight, resumed = found["straight end"], found["resumed end"]
    assert straight[1] == resumed[1]
    assert straight[0].keys() == resumed[0].keys()
    assert all(torch.equal(straight[0][key], resumed[0][key]) for key in straight[0])


@pytest.mark.parametrize("which", ["found", "spread"])
def test_only_the_adapter_is_stored(which: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue(which)
    census = found["census"]
    assert sorted(census["trained"]) == found["stored"]
    assert len(found["stored"]) == 2 * 7 * CONFIG["num_hidden_layers"]
    assert all(name.endswith((".lora_A.weight", ".lora_B.weight")) for name in found["stored"])
    assert census["frozen"]["model.layers.0.mlp.down_proj.weight"] == [64, 128], "the base's own shape"
