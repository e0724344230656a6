"""What autograd keeps of one token in one layer, where transformers writes its operations out, by architecture.

`tests/unit/test_plan_activations.py` holds the counts to what autograd saves.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.facts.schema import ModelShape


@dataclass(frozen=True)
class Numbers:
    """Bytes of a number of the residual stream and of the products' operands; autocast casts for each product anew."""

    stream_bytes: int
    element_bytes: int
    autocast: bool = False


@dataclass(frozen=True)
class LayerKind:
    """What autograd keeps in one layer beside the arithmetic of its dimensions.

    readers: matrix products that read each norm's output (autocast casts it once for each of them).
    extra_norms: norms whose output goes back to the stream. attention: kept numbers of a token, in widths of all
    query heads. mlp: kept numbers of a token, in widths of the MLP. cubed: GELU is written out with a power, which
    autocast computes in fp32 on a GPU, and with it three of five kept tensors: input, tanh, and one more than that.
    """

    rms: bool = True
    readers: tuple[int, ...] = (3, 2)
    extra_norms: int = 0
    attention: int = 4  # query, key, value, output
    mlp: int = 4  # gate, its activation, up, their product
    cubed: bool = False
    fp32_normed: bool = False
    shared_input: bool = False
    dropouts: int = 2  # of attention's output and of the MLP's, where the model drops any


_GATED = LayerKind()
_PLAIN = LayerKind(rms=False, readers=(1, 1), mlp=2)  # layer norms, and an MLP of two matrices
_LAYER_KINDS = {
    "gemma": LayerKind(fp32_normed=True),
    "gemma2": LayerKind(fp32_normed=True, extra_norms=2),
    # of GELU: its input, tanh, one more than that, half the input, its output
    "gpt2": LayerKind(rms=False, readers=(1, 1), mlp=5, cubed=True),
    # partial rotary positions: the output is copied for the next product; one norm for attention and MLP
    "phi": LayerKind(rms=False, readers=(4,), attention=5, mlp=5, cubed=True, dropouts=1),
    # as phi; the value is a view that keeps the fused product alive; both norms read the same input
    "gpt_neox": LayerKind(rms=False, readers=(1, 1), attention=7, mlp=2, shared_input=True),
    "bert": LayerKind(rms=False, readers=(3, 1), mlp=2),
}


def kind_of(shape: ModelShape) -> LayerKind:
    """The architecture's row, or that of its norms and its MLP."""
    return _LAYER_KINDS.get(shape.arch, _PLAIN if shape.layer_norm and not shape.gated else _GATED)


def norm_bytes(kind: LayerKind, numbers: Numbers) -> int:
    """Bytes kept of one element of the stream by all norms of a layer and the products behind them.

    An RMS norm is written out: it keeps an fp32 input and the normalised value before the weight. A layer norm is one
    operation and keeps its input, which autocast casts to fp32.
    """
    stream, e = numbers.stream_bytes, numbers.element_bytes
    kept = 4 + (4 if kind.fp32_normed else stream) if kind.rms else 4 if numbers.autocast else stream
    outputs = sum(kind.readers) * e if numbers.autocast else len(kind.readers) * e
    inputs = kept * (len(kind.readers) + kind.extra_norms)
    return inputs + outputs - (stream if kind.shared_input else 0)


# Of a written-out GELU, bytes through memory backward over forward: 118 to 76 under autocast, 28 numbers to 18 without.
GELU_BACKWARD = 1.55


def gelu_bytes(kind: LayerKind, numbers: Numbers) -> int:
    """Bytes through memory of one element of a written-out GELU, forward: eight operations, each read and written.

    Under autocast on a GPU six of them read and write fp32, beside the casts of input and output.
    """
    if not kind.cubed:
        return 0
    return 76 if numbers.autocast else 18 * numbers.element_bytes


def mlp_bytes(kind: LayerKind, numbers: Numbers) -> int:
    """Bytes kept of one element of the MLP's width, on a GPU."""
    in_fp32 = 3 if kind.cubed and numbers.autocast else 0
    return kind.mlp * numbers.element_bytes + in_fp32 * (4 - numbers.element_bytes)


def attention_bytes(shape: ModelShape, kind: LayerKind, numbers: Numbers, *, repeated: bool) -> int:
    """Bytes kept of one token by attention, without score matrices. repeated: a key and a value for every head."""
    e, query = numbers.element_bytes, shape.heads * shape.head_dim
    key = query if repeated else shape.kv_heads * shape.head_dim
    kept = ((kind.attention - 2) * query + 2 * key) * e
    if shape.arch == "qwen3":  # norms of query and key: fp32 input and normalised value
        kept += (4 + e) * (query + shape.kv_heads * shape.head_dim)
    return kept
