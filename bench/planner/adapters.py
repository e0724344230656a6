"""The adapter that a row states: beside which matrices it stands, of which rank, and whether it drops inputs."""

from __future__ import annotations

import re

from doubt import Row
from software import Defaults
from words import said, stated

from headway.facts.schema import AdapterShape, ModelShape

_ATTENTION, _MLP = ("q", "k", "v", "o"), ("gate", "up", "down")
# A matrix by the names that models give it.
_NAMED = (
    (r"\bqkv\b|\bw?qkv_proj\b|\bwqkv\b|\bc_attn\b|\bquery_key_value\b", ("qkv",)),
    (r"\bc_proj\b", ("o", "down")),
    (r"\bc_fc\b|\bfc1\b|\bdense_h_to_4h\b", ("up",)),
    (r"\bfc2\b|\bdense_4h_to_h\b", ("down",)),
    (r"\bout_proj\b|\bo_proj\b", ("o",)),
    (r"\b(?:output|lm)[-_ ]?head\b", ("head",)),
    *((rf"\b{name}_proj\b", (name,)) for name in (*_ATTENTION[:3], *_MLP)),
)
_PART = r"(?:q|k|v|o|gate|up|down|mlp)\b"
_LIST = rf"(?<![\w-])((?:q|k|v|o)\b(?:\s*(?:,|\+|/|&|\band\b)+\s*(?:and )?{_PART})+)"


def targets(text: str) -> tuple[str, ...]:
    """Names of the adapted matrices; all linear ones of a block where none are named."""
    found: set[str] = set()
    for listed in re.findall(_LIST, text):
        found.update(re.findall(_PART, listed))
    for pattern, names in _NAMED:
        if re.search(pattern, text):
            found.update(names)
    if "mlp" in found:
        found.update(_MLP)
    if re.search(r"\battention (?:layers|matrices|projections)\b|\battention only\b", text) and not found:
        found.update(_ATTENTION)
    if re.search(r"all[- ](?:the )?linear", text) or not found - {"head"}:
        found.update((*_ATTENTION, *_MLP))
    return tuple(name for name in (*_ATTENTION, "qkv", *_MLP, "head") if name in found)


def adapted(shape: ModelShape, row: Row, known: Defaults) -> ModelShape:
    """With a LoRA, where the row has one: rank 8 on all linear layers unless it says otherwise."""
    if "lora" not in said(row, "model", "strategy", "precision"):
        return shape
    text = stated(row)
    rank = int(m[1] or m[2]) if (m := re.search(r"\br ?=? ?(\d+)\b|rank ?=? ?(\d+)", text)) else 8
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = {
        "q": (shape.hidden, query),
        "k": (shape.hidden, key),
        "v": (shape.hidden, key),
        "qkv": (shape.hidden, query + 2 * key),
        "o": (query, shape.hidden),
        "up": (shape.hidden, shape.ffn),
        "down": (shape.ffn, shape.hidden),
    }
    if shape.gated:
        sizes["gate"] = sizes["up"]
    names = targets(text)
    pairs = [sizes[name] for name in names if name in sizes]
    shared = shape.hidden * max(0, len({"q", "k", "v"} & set(names)) - 1) if known.fused_inputs else 0
    trained = rank * shape.layers * sum(a + b for a, b in pairs)
    inputs = shape.layers * (sum(a for a, _ in pairs) - shared)
    if "head" in names:
        trained, inputs = trained + rank * (shape.hidden + shape.vocab), inputs + shape.hidden
    added = AdapterShape(
        parameters=trained,
        layers=len(pairs) * shape.layers + ("head" in names),
        rank=rank,
        inputs=inputs,
    )
    return shape.model_copy(
        update={
            "parameters": shape.parameters + trained,
            "trainable_parameters": trained,
            "adapter": added,
        }
    )


def drops_inputs(row: Row, known: Defaults) -> bool:
    """Whether the adapter has dropout: stated (`dropout 0.05`), else by its software's default."""
    if found := re.search(r"dropout ?(?:=|of|:)? ?(\d*\.?\d+)", said(row, "strategy", "notes", "optimizer")):
        return float(found[1]) > 0
    return known.adapter_dropout
