"""Memory of compressed gradients on their way: what PyTorch's communication hooks keep beside DDP's buckets."""

from __future__ import annotations

from headway.facts.schema import ModelShape
from headway.plan.schema import CompressionPlan

_BUCKET_BYTES = 25 * 2**20  # DDP's bucket_cap_mb; a larger parameter has a bucket of its own


def compression_bytes(compression: CompressionPlan, shape: ModelShape) -> int:
    """What one rank holds at the peak of its backward pass, in bytes.

    fp16 and bf16 cast each bucket, and all of them may be on their way at once. PowerSGD keeps its state between the
    steps, and with error feedback copies the bucket that it works on.
    """
    trained = shape.trainable_parameters
    if compression.kind != "powersgd":
        return 2 * trained
    bucket = min(4 * trained, max(_BUCKET_BYTES, 4 * shape.vocab * shape.hidden))
    return powersgd_state_bytes(compression, shape) + (bucket if compression.error_feedback else 0)


def powersgd_state_bytes(compression: CompressionPlan, shape: ModelShape) -> int:
    """What stays between steps: an fp32 number a gradient (error feedback), and two thin fp32 matrices a weight matrix.

    Vogels et al. 2019, algorithm 1 and 2: of a matrix of n x m, P of n x rank and Q of m x rank.
    """
    hidden, queries, keys = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    block = 2 * (hidden + queries) + 2 * (hidden + keys) + (3 if shape.gated else 2) * (hidden + shape.ffn)
    ends = (1 if shape.tied else 2) * (shape.vocab + hidden)
    thin = 4 * compression.rank * (shape.layers * block + ends)
    return thin + (4 * shape.trainable_parameters if compression.error_feedback else 0)
