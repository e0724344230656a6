"""Attention stays inside of a document: nothing before it in its window changes its logits, or its gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import headway.model.attention as attention
from fakes.models import DECODERS, SEQUENCE, gradients, largest_difference, model_for, plan_for, window
from headway.errors import ModelError
from headway.model.huggingface import HuggingFaceSource
from headway.task.causal_lm import CausalLM

# In a window of 32: a document of 10, the one that is watched, one after it, and padding.
WATCHED = slice(10, 22)


def logits_of(model: PreTrainedModel, task: CausalLM, change: int = 0, implementation: str = "sdpa") -> torch.Tensor:
    """[32, entries] of a window of three documents; the first one's tokens are shifted by `change`."""
    inputs = task.collate([window([10, 12, 6])], SEQUENCE).inputs
    ids = inputs["input_ids"]
    ids[0, : WATCHED.start] = (ids[0, : WATCHED.start] + change) % 101
    arguments = attention.attention_inputs(inputs, implementation)
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False, **arguments).logits[0]


@pytest.fixture(params=["by fragment", "under a mask"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(attention, "_PAIRS_A_CALL", 0 if request.param == "by fragment" else 10**9)
    return request.param


@pytest.mark.parametrize("arch", DECODERS)
def test_a_document_sees_nothing_before_it(arch: str, way: str) -> None:
    model, task = model_for(arch), CausalLM(plan_for(arch))
    before, after = logits_of(model, task), logits_of(model, task, change=7)
    assert torch.equal(before[WATCHED], after[WATCHED])
    assert not torch.allclose(before[: WATCHED.start], after[: WATCHED.start])  # the change did something


@pytest.mark.parametrize("arch", DECODERS)
def test_a_document_is_as_if_alone(arch: str, way: str) -> None:
    model, task = model_for(arch), CausalLM(plan_for(arch))
    ids = task.collate([window([10, 12, 6])], SEQUENCE).inputs["input_ids"]
    alone = model(input_ids=ids[:, WATCHED], use_cache=False).logits[0]
    torch.testing.assert_close(logits_of(model, task)[WATCHED], alone.detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("arch", ["llama", "gpt2", "mistral", "gemma2"])
def test_eager_attention_keeps_documents_apart_too(arch: str) -> None:
    model, task = model_for(arch, model={"attention": "eager"}), CausalLM(plan_for(arch))
    before = logits_of(model, task, implementation="eager")
    after = logits_of(model, task, change=7, implementation="eager")
    assert torch.equal(before[WATCHED], after[WATCHED])
    assert not torch.allclose(before[: WATCHED.start], after[: WATCHED.start])


def test_documents_do_leak_without_their_borders() -> None:
    """So that the tests above can fail: the same model, told nothing of the borders."""
    model, task = model_for("llama"), CausalLM(plan_for("llama"))
    ids = task.collate([window([10, 12, 6])], SEQUENCE).inputs["input_ids"]
    other = ids.clone()
    other[0, :10] = (other[0, :10] + 7) % 101
    with torch.no_grad():
        one, two = (model(input_ids=x, use_cache=False).logits[0] for x in (ids, other))
    assert not torch.allclose(one[WATCHED], two[WATCHED])


@pytest.mark.parametrize("arch", DECODERS)
def test_fragments_and_mask_give_equal_gradients(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = model_for(arch), CausalLM(plan_for(arch))
    batch = task.collate([window([10, 12, 6], 1), window([32], 2), window([1, 1, 30], 3)], SEQUENCE)
    found = []
    for cost in (0, 10**9):
        monkeypatch.setattr(attention, "_PAIRS_A_CALL", cost)
        task.loss(model, batch)["loss"].backward()
        found.append(gradients(model))
    assert largest_difference(*found) < 2e-5


def test_architectures_that_would_mix_documents_are_refused() -> None:
    """gpt_oss makes its masks without the positions; convolutions and running states heed no mask."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 101, "head_dim": 8}
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size": 32, "num_key_value_heads": 2}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "bos_token_id": None}
    gpt_oss = {"model_type": "gpt_oss", **sizes, **experts, **rope, "eos_token_id": None, "pad_token_id": None}
    lfm2 = {"model_type": "lfm2", **sizes, "layer_types": ["conv", "full_attention"], "num_key_value_heads": 2}
    for config, words in ((gpt_oss, "is not told where documents begin"), (lfm2, "Conv1d")):
        chosen = {"attention": "eager" if config is gpt_oss else "sdpa"}
        with pytest.raises(ModelError, match=words):
            HuggingFaceSource(plan_for("llama", config=config, model={**chosen, "config": config}))
        HuggingFaceSource(plan_for("llama", model={**chosen, "config": config}, data={"packing": False}))


def test_masks_say_what_they_should() -> None:
    borders = torch.tensor([0, 2, 4, 5, 8], dtype=torch.int32)
    expected = torch.zeros(2, 1, 4, 4, dtype=torch.bool)
    for row, pairs in enumerate([[(0, 0), (1, 0), (1, 1), (2, 2), (3, 2), (3, 3)], [(0, 0), (1, 1), (2, 1), (2, 2)]]):
        for place, seen in pairs:
            expected[row, 0, place, seen] = True
    expected[1, 0, 3, 1:] = True
    assert torch.equal(attention.document_mask(borders, 2, 4), expected)
    narrow = attention.document_mask(borders, 2, 4, window=2)
    expected[1, 0, 3, 1] = False
    assert torch.equal(narrow, expected)


def test_static_shapes_take_a_boolean_mask() -> None:
    """For torch.compile, to which a new number of borders would be a new program."""
    model, task = model_for("mistral"), CausalLM(plan_for("mistral"))
    inputs = task.collate([window([10, 12, 6])], SEQUENCE).inputs
    arguments: dict[str, Any] = attention.attention_inputs(inputs, "sdpa", static_shapes=True)
    assert arguments["attention_mask"].dtype == torch.bool
    with torch.no_grad():
        logits = model(input_ids=inputs["input_ids"], use_cache=False, **arguments).logits[0]
    torch.testing.assert_close(logits, logits_of(model, task), rtol=0, atol=1e-5)


def test_a_window_without_borders_needs_no_mask() -> None:
    inputs = CausalLM(plan_for("llama")).collate([window([32]), window([9])], SEQUENCE).inputs
    assert set(attention.attention_inputs(inputs, "sdpa")) == {"position_ids"}
