"""Does an architecture keep packed documents apart? It is asked, on the meta device, before anything is trained.

transformers hands a 4-D mask or the positions to most architectures' attention, but not to all of them: gpt_oss makes
its masks without the positions, and documents would silently see each other.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, masking_utils
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headway.model.attention import attention_inputs

_MIXERS = (nn.Conv1d, nn.RNNBase)  # they carry values from one position to the next, whatever the attention does


def why_documents_mix(skeleton: PreTrainedModel, implementation: str) -> str:
    """Why this architecture would carry values across the borders of documents; empty where it does not.

    Args:
        implementation: the plan's word for the attention (sdpa, flash, eager, flex), already set in the config.
    """
    kind = type(skeleton)
    mixers = sorted({type(part).__name__ for part in skeleton.modules() if isinstance(part, _MIXERS)})
    if mixers or kind._is_stateful:
        return f"its layers carry values from position to position ({', '.join(mixers) or 'a running state'})"
    if not kind._supports_attention_backend:
        return "its attention cannot be told where documents begin"
    if not _is_told(skeleton, implementation):
        return f"its {implementation} attention is not told where documents begin"
    return ""


@torch.no_grad()
def _is_told(skeleton: PreTrainedModel, implementation: str) -> bool:
    """Run the body without values and see whether every attention hears of the borders."""
    body: Any = copy.deepcopy(getattr(skeleton, skeleton.base_model_prefix)).to("meta").eval()
    tokens = {name: torch.zeros(1, 6, dtype=torch.int64, device="meta") for name in ("input_ids", "position_ids")}
    borders = torch.zeros(4, dtype=torch.int32, device="meta")
    arguments = attention_inputs({**tokens, "borders": borders}, implementation)
    listen = _positions_asked_for if implementation in ("eager", "flex") else _masks_received
    with listen(skeleton.config._attn_implementation or "") as heard:
        try:
            body(input_ids=tokens["input_ids"], use_cache=False, **arguments)
        except Exception as error:  # without values a layer may not run to its end (experts); what was heard counts
            if not heard:
                heard.append(isinstance(error, _Heard))
    return bool(heard) and all(heard)


class _Heard(Exception):
    """The question is answered; the rest of the forward pass needs values."""


@contextmanager
def _positions_asked_for(_: str) -> Iterator[list[bool]]:
    """Yields [] that stays empty unless the positions are used to make the mask, which raises _Heard."""
    find = masking_utils.find_packed_sequence_indices

    def found(*_: Any) -> None:
        raise _Heard

    masking_utils.find_packed_sequence_indices = found
    try:
        yield []
    finally:
        masking_utils.find_packed_sequence_indices = find


@contextmanager
def _masks_received(name: str) -> Iterator[list[bool]]:
    """Yields a list to which every call of the attention `name` adds whether it got the borders."""
    heard: list[bool] = []

    def attend(module: nn.Module, query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> Any:
        mask = rest[0] if rest else options.get("attention_mask")
        heard.append(mask is not None and mask.dtype == torch.int32)
        return query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None

    ALL_ATTENTION_FUNCTIONS[name] = attend  # this registry's own entry; the one that all share stays
    try:
        yield heard
    finally:
        del ALL_ATTENTION_FUNCTIONS[name]
