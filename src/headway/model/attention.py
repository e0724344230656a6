"""Attention that stays inside of a document, over windows that hold several.

The model is called with a 4-D `attention_mask`, which transformers hands through untouched to the attention function
of its config. Here it is not a mask but the borders of the documents, int32 [1, 1, 1, fragments + 1]: positions of the
flattened batch, as flash attention's `cu_seqlens`. So no [length, length] mask is made where none is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

# The plan's words -> transformers' names.
IMPLEMENTATIONS = {"sdpa": "headway_sdpa", "flash": "headway_flash", "eager": "eager", "flex": "flex_attention"}

# One more SDPA call takes as long on a CPU core as 4096 more pairs of positions (0.11 ms; 8 layers of hidden 256).
_PAIRS_A_CALL = 4096


def attention_inputs(
    inputs: Mapping[str, torch.Tensor], implementation: str, *, static_shapes: bool = False
) -> dict[str, torch.Tensor]:
    """Keyword arguments that keep a model's attention inside of each document.

    Args:
        inputs: `position_ids` [rows, length], restarting at each document; `borders` [fragments + 1] int32, where
            fragments of the flattened batch begin, and its length.
        implementation: the plan's word: sdpa, flash, eager or flex.
        static_shapes: a boolean mask in place of the borders, whose number changes from batch to batch (torch.compile).
    """
    positions, borders = inputs["position_ids"], inputs["borders"]
    rows, length = positions.shape
    arguments = {"position_ids": positions}
    if borders.shape[0] - 1 == rows or implementation in ("eager", "flex"):
        return arguments  # causal is enough; or transformers makes the mask from the positions
    if static_shapes:
        return arguments | {"attention_mask": document_mask(borders, rows, length)}
    return arguments | {"attention_mask": borders.view(1, 1, 1, -1)}


def document_mask(borders: torch.Tensor, rows: int, length: int, window: int | None = None) -> torch.Tensor:
    """bool [rows, 1, length, length], True where a position may attend: causal, inside of its document and window."""
    places = torch.arange(rows * length, device=borders.device)
    fragment = torch.bucketize(places, borders, right=True).view(rows, 1, length)
    mask = (fragment[..., :, None] == fragment[..., None, :]) & causal_mask(length, window, borders.device)
    return mask.view(rows, 1, length, length)


def causal_mask(length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """bool [length, length]: the position itself and those before it, at most `window` of them together."""
    place = torch.arange(length, device=device)
    distance = place[:, None] - place[None, :]
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)


def packed_sdpa(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' SDPA, which also takes borders: query [rows, heads, length, head_dim] to [rows, length, heads, _].

    On a CPU each fragment is its own causal call where that is less work than one call under a mask: at length 1024,
    30 % less time for forward and backward of the whole model with documents of 200 tokens, at length 256 up to 4 %.
    """
    rows, _, length, _ = query.shape
    if attention_mask is not None and attention_mask.dtype == torch.int32:
        borders = attention_mask.flatten()
        if query.device.type == "cpu" and not torch.compiler.is_compiling():
            sizes = borders.diff().tolist()
            if len(sizes) * _PAIRS_A_CALL + sum(n * n for n in sizes) < rows * length * length:
                return _by_fragment((query, key, value), sizes, dropout, scaling, sliding_window), None
        attention_mask = document_mask(borders, rows, length, sliding_window)
    elif attention_mask is not None and attention_mask.dtype == torch.bool and sliding_window is not None:
        attention_mask = attention_mask & causal_mask(length, sliding_window, query.device)
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)


def _by_fragment(
    states: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    sizes: list[int],
    dropout: float,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    rows, heads, length, _ = states[0].shape
    # Split the tokens, not the padded batch: the gradient of a split is one concatenation, of slices many sums.
    parts = [state.transpose(1, 2).flatten(0, 1).split(sizes) for state in states]
    outputs = []
    for query, key, value in zip(*(map(_to_heads, part) for part in parts), strict=True):
        size = query.shape[2]
        banded = window is not None and size > window
        output = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=causal_mask(size, window, query.device) if banded else None,
            is_causal=not banded,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=key.shape[1] != heads,
        )
        outputs.append(output.squeeze(0).transpose(0, 1))
    return torch.cat(outputs).view(rows, length, heads, -1)


def _to_heads(tokens: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, head_dim] to [1, heads, tokens, head_dim]."""
    return tokens.transpose(0, 1).unsqueeze(0)


def packed_flash(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """torch's variable-length flash attention over the fragments (CUDA, bf16 or fp16; no dropout)."""
    from torch.nn.attention.varlen import varlen_attn

    if dropout:
        raise ValueError("variable-length flash attention has no dropout: set the model's attention dropout to 0")
    rows, heads, length, _ = query.shape
    if attention_mask is None:
        borders = torch.arange(0, (rows + 1) * length, length, dtype=torch.int32, device=query.device)
    else:
        borders = attention_mask.flatten()
    tokens = [state.transpose(1, 2).flatten(0, 1) for state in (query, key, value)]
    output: Any = varlen_attn(
        tokens[0],
        tokens[1],
        tokens[2],
        borders,
        borders,
        length,
        length,
        scale=scaling,
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
        enable_gqa=key.shape[1] != heads,
    )
    return output.view(rows, length, heads, -1), None


AttentionInterface.register("headway_sdpa", packed_sdpa)
AttentionMaskInterface.register("headway_sdpa", sdpa_mask)  # for all that is not packed: padding, encoders, windows
AttentionInterface.register("headway_flash", packed_flash)  # no mask function: transformers then makes none
