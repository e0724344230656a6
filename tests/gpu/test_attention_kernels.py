"""On a GPU: every attention keeps documents apart, and gives the gradients of documents on their own."""

from __future__ import annotations

import itertools

import pytest
import torch

from fakes.models import filled, gradients, plan_for, window
from headway.model.huggingface import HuggingFaceSource
from headway.task.causal_lm import CausalLM

pytestmark = pytest.mark.gpu
LENGTHS = [300, 500, 224]
SEQUENCE = 1024
# 7 bits of a bf16 number, through two layers and back
BOUNDS = {"fp32": 1e-4, "bf16": 5e-2}


@pytest.mark.parametrize(
    ("attention", "precision"), [("sdpa", "fp32"), ("sdpa", "bf16"), ("flash", "bf16"), ("flex", "bf16")]
)
@pytest.mark.parametrize("window_tokens", [None, 128])
def test_packed_documents_are_as_if_alone(attention: str, precision: str, window_tokens: int | None) -> None:
    config = {
        "model_type": "mistral",
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 101,
        "intermediate_size": 512,
        "max_position_embeddings": SEQUENCE,
        "sliding_window": window_tokens,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    changes = {"model": {"attention": attention, "config": config}, "numerics": {"precision": precision}}
    plan = plan_for("mistral", launch={"device": "cuda"}, data={"sequence": SEQUENCE, "tokenizer": ""}, **changes)
    task = CausalLM(plan)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    model = filled(HuggingFaceSource(plan)).to("cuda", dtype)
    packed = window(LENGTHS)
    edges = [0, 300, 800, 1024]
    alone = [
        type(packed)(0, packed.tokens[a:b], packed.labels[a:b], packed.positions[a:b], packed.documents[a:b])
        for a, b in itertools.pairwise(edges)
    ]
    found = []
    for batches in ([[packed]], [[sample] for sample in alone]):
        losses = [task.loss(model, task.collate(samples, SEQUENCE).to(torch.device("cuda"))) for samples in batches]
        torch.stack([loss["loss"] for loss in losses]).sum().backward()
        found.append((sum(loss["loss"].item() for loss in losses), gradients(model)))
    assert found[0][0] == pytest.approx(found[1][0], rel=BOUNDS[precision])
    for name, gradient in found[0][1].items():
        other = found[1][1][name]
        assert float((gradient - other).norm() / other.norm()) < BOUNDS[precision], name
