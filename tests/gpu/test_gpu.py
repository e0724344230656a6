"""What only a GPU can show. `make gpu-proof` shows the same at a useful size, through whole runs."""

from __future__ import annotations

import math
from functools import cache

import pytest

from headway.facts.cluster import probe_cluster
from tests.gpu.jobs import curve, fused_and_plain_adamw, held_curve, held_weights, in_fresh_process, packed_logits

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

# bf16 holds 8 bits: a loss of 4 is good to 1/64, and the mean over some hundred targets is better than one of them.
BF16_LOSS = 0.02
BF16_NORM = 0.05
BF16_LOGIT = 0.03


@cache
def _cluster() -> tuple[str, bool]:
    cluster = probe_cluster()
    return cluster.device, cluster.bf16


@pytest.fixture(autouse=True)
def gpu() -> None:
    device, bf16 = _cluster()
    if device != "cuda":
        pytest.skip("this torch sees no CUDA device")
    if not bf16:
        pytest.skip("this GPU has no bf16")


def largest(left: list[list[float]], right: list[list[float]]) -> float:
    return max(abs(a - b) for rows in zip(left, right, strict=True) for a, b in zip(*rows, strict=True))


@pytest.mark.parametrize("strategy", ["zero-1", "zero-2", "zero-3", "zero-2-offload", "zero-3-offload"])
def test_bf16_engines_take_the_steps_of_fp32(strategy: str) -> None:
    exact = in_fresh_process(curve, "cuda", "single", "fp32")
    found = in_fresh_process(curve, "cuda", strategy, "bf16")
    for mine, other in zip(found["losses"], exact["losses"], strict=True):
        assert abs(mine - other) <= BF16_LOSS
    for mine, other in zip(found["norms"], exact["norms"], strict=True):
        assert math.isclose(mine, other, rel_tol=BF16_NORM)


@pytest.mark.parametrize("strategy", ["single", "zero-1", "zero-2", "zero-2-offload", "zero-3", "zero-3-offload"])
def test_qlora_takes_the_steps_of_fp32(strategy: str) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra `qlora` is not installed")
    exact = in_fresh_process(held_curve, "cuda", "single", "fp32")
    found = in_fresh_process(held_curve, "cuda", strategy, "bf16")
    for mine, other in zip(found["losses"], exact["losses"], strict=True):
        assert abs(mine - other) <= BF16_LOSS


def test_a_gpu_quantises_as_a_cpu_does() -> None:
    """Which the tests hold to transformers' own 4-bit model: scales and values agree but for a rounding in bf16."""
    pytest.importorskip("bitsandbytes", reason="the extra `qlora` is not installed")
    there, here = in_fresh_process(held_weights, "cuda", "bf16"), in_fresh_process(held_weights, "cpu", "bf16")
    assert there.keys() == here.keys()
    for name, (share, *values) in there.items():
        assert share < 0.16, name  # half of NF4's widest gap, 0.304 of a block's largest
        scale = max(map(abs, values))
        moved = [abs(a - b) > 0.01 * scale for a, b in zip(values, here[name][1:], strict=True)]
        assert sum(moved) <= 2, name  # a value that lies between two may go either way


@pytest.mark.parametrize("attention", ["flash", "flex"])
@pytest.mark.parametrize("strategy", ["single", "zero-2"])
def test_packed_kernels_train_as_sdpa_does(attention: str, strategy: str) -> None:
    found = in_fresh_process(curve, "cuda", strategy, "bf16", attention)
    sdpa = in_fresh_process(curve, "cuda", strategy, "bf16", "sdpa")
    assert largest([found["losses"]], [sdpa["losses"]]) <= BF16_LOSS


@pytest.mark.parametrize(("attention", "precision"), [("flash", "bf16"), ("flex", "bf16"), ("sdpa", "fp32")])
def test_a_document_sees_nothing_before_it(attention: str, precision: str) -> None:
    before = in_fresh_process(packed_logits, "cuda", attention, precision, 0)
    after = in_fresh_process(packed_logits, "cuda", attention, precision, 7)
    exact = in_fresh_process(packed_logits, "cuda", "sdpa", "fp32", 0)
    assert largest(before, after) == 0.0
    assert largest(before, exact) <= (BF16_LOGIT if precision == "bf16" else 1e-4)


def test_fused_adamw_is_adamw() -> None:
    assert in_fresh_process(fused_and_plain_adamw, "cuda") <= 1e-6
