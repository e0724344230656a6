"""The fitted numbers of the GPU estimates: what each means, its value, and what it was fitted on.

`bench/planner/fit.py` fits the times by least squares of logarithms over the published measurements; memory has almost
no fitted number, its counts follow from what the software keeps. `docs/planner-accuracy.md` reports the errors, with
whole sources left out of the fit.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryConstants:
    """Bytes, shares and counts of the memory estimate."""

    # Of activations and logits: blocks that the caching allocator holds and cannot use again.
    fragmentation: float = 0.07
    # CUDA context, cuBLAS and NCCL, outside of the allocator.
    context_bytes: float = 1.0 * 2**30
    # Kept bytes of one logit beside the 16-bit one: fp32 copy, log-softmax and its gradient.
    whole_logit_bytes: float = 12.0
    # torch.compile fuses the fp32 copy and the log-softmax away.
    compiled_logit_bytes: float = 4.0
    # By pieces, an eighth each: the piece's 16-bit gradient; without torch.compile three fp32 copies of it too.
    piece_logit_bytes: float = 0.4
    # Nine in ten measured peaks of data-parallel runs, of all three tables, lie within it (docs/planner-accuracy.md).
    band: float = 0.22


@dataclass(frozen=True)
class TimeConstants:
    """Shares of published rates and fixed times of the time estimate."""

    # Share of a device's best measured matrix product that the products of a layer reach, large and back to back.
    matmul: float = 0.835
    # The same for fp8, whose operands are scaled and cast on the way.
    matmul_fp8: float = 0.95
    # Of that, what is left where a dimension is no multiple of 64: the matrix units' tiles stand partly empty.
    misaligned: float = 0.6
    # Waves of tiles that stand half empty at the end of a product.
    tail_waves: float = 0.63
    # Attention kernels on long sequences, forward and backward together, as a share of the best matrix product: the
    # first flash kernel, the second, the second on Hopper and later (which it was not written for), the third.
    flash1: float = 0.395
    flash: float = 0.8
    flash_on_hopper: float = 0.38
    flash3: float = 0.8
    # Sequence at which an attention kernel reaches half of that.
    attention_half_tokens: float = 235.0
    # Of the memory bandwidth, in norms, activations, the loss and the optimizer.
    bandwidth: float = 0.92
    # Traffic over the least that the norms, sums, positions and activations of a layer need in each way to write them.
    eager_passes: float = 1.4
    fused_passes: float = 2.0
    compiled_passes: float = 1.3
    # Passes over the operands of products that are scaled and cast to fp8, where torch.compile fuses these; written
    # out they are four times as many, in Transformer Engine's kernels a fourth.
    cast_passes: float = 0.74
    # Host time to start one operation, and operations of one layer's forward pass.
    launch_seconds: float = 1e-05
    eager_operations: float = 80.0
    fused_operations: float = 30.0
    # Of one adapted matrix more: dropout, two products, casts of input and factors, scaling, sum.
    adapter_operations: float = 8.0
    # Host time of ZeRO-3's hooks in one layer and pass: nine modules that fetch and release, a tenth of a ms each.
    hook_seconds: float = 0.0018
    # Of a link's or a network's rate, in collectives of many megabytes.
    link: float = 0.46
    network: float = 0.95
    # Start of a collective within a host, for each doubling of its ring; and its way from one host to the next.
    collective_seconds: float = 1.1e-05
    hop_seconds: float = 0.0001
    # Of the computation, behind which communication can be hidden.
    overlap: float = 0.85
    # Of hidden communication, what it takes from the computation beside it (memory and multiprocessors).
    contention: float = 0.11
    # Bytes moved to update one parameter: gradient read, master, two moments read and written, weight written.
    optimizer_bytes: float = 18.0
    # Host memory traffic that the CPU optimizer reaches, of the host's bandwidth.
    host_bandwidth: float = 0.23
    # Fixed time of a step: loader, metrics, gradient norm, synchronisation.
    step_seconds: float = 0.0057


MEMORY = MemoryConstants()
TIME = TimeConstants()
