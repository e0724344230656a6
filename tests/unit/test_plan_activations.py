"""The activation formula against what autograd really keeps for the backward pass, architecture by architecture."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from functorch.compile import aot_function, min_cut_rematerialization_partition, nop
from torch import fx
from torch._inductor.decomposition import select_decomp_table
from torch.nn import functional as F
from torch.profiler import profile
from transformers import AutoConfig, AutoModel, LlamaConfig
from transformers.activations import NewGELUActivation
from transformers.models.llama.modeling_llama import LlamaMLP

from fakes.allocated import most_bytes
from fakes.plans import LAPTOP
from headway.config.schema import ModelArch
from headway.facts.architectures import SCRATCH
from headway.facts.model_config import scratch_config
from headway.facts.shape import shape_of
from headway.plan.layers import Numbers, kind_of, mlp_bytes
from headway.plan.memory import MemoryRequest, activation_bytes
from headway.plan.schema import OptimizerPlan, StrategyPlan

MICRO, SEQUENCE, LAYERS, HIDDEN, HEADS, VOCAB = 2, 72, 5, 128, 4, 96
Mode = Literal["fp32", "bf16 weights", "bf16 autocast"]
BOUND = 0.045  # measured: at most 0.044 (gemma2 with dropout), masks and so few layers' embedding included


def build(arch: str, mode: Mode, dropout: float) -> tuple[dict[str, object], torch.nn.Module, str]:
    words = ModelArch(arch=arch, hidden=HIDDEN, layers=LAYERS, heads=HEADS, ffn=352, dropout=dropout)
    config = scratch_config(words, vocab=VOCAB, sequence=SEQUENCE)
    attention = "eager" if arch == "gemma2" else "sdpa"
    built = AutoConfig.for_model(**config)
    model = AutoModel.from_config(built, attn_implementation=attention).train()
    return config, model.to(torch.bfloat16) if mode == "bf16 weights" else model, attention


def kept_bytes(model: torch.nn.Module, attention: str, mode: Mode) -> int:
    """Bytes of distinct storages that autograd saved, weights, inputs and autocast's copies of weights apart."""
    dtype = torch.bfloat16 if mode == "bf16 weights" else torch.float32
    tokens = torch.randint(0, VOCAB, (MICRO, SEQUENCE))
    positions = torch.arange(SEQUENCE).repeat(MICRO, 1)
    mask = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).tril().expand(MICRO, 1, SEQUENCE, SEQUENCE).clone()
    if attention == "eager":
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -1e9)
    apart = [*model.parameters(), *model.buffers(), tokens, positions]
    skipped = {tensor.untyped_storage().data_ptr() for tensor in apart}
    sizes: dict[int, int] = {}
    alive: list[torch.Tensor] = []  # so that no address is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in skipped:
            sizes[storage.data_ptr()] = storage.nbytes()
        alive.append(tensor)
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=mode == "bf16 autocast"):
        model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False)
    copies = sum(p.numel() for p in model.parameters() if p.ndim == 2 and VOCAB not in p.shape[:1])
    positions_table = SEQUENCE * HIDDEN if hasattr(model, "wpe") else 0
    return sum(sizes.values()) - (2 * (copies - positions_table) if mode == "bf16 autocast" else 0)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("mode", ["fp32", "bf16 weights", "bf16 autocast"])
@pytest.mark.parametrize("arch", SCRATCH)
def test_activations(arch: str, mode: Mode, dropout: float) -> None:
    config, model, attention = build(arch, mode, dropout)
    strategy = StrategyPlan(kind="deepspeed", stage=2) if mode == "bf16 weights" else StrategyPlan(kind="ddp")
    request = MemoryRequest(
        shape=shape_of(config),
        cluster=LAPTOP,
        strategy=strategy,
        optimizer=OptimizerPlan(kind="adamw", betas=(0.9, 0.95), eps=1e-8, momentum=0, weight_decay=0, clip=1),
        precision="fp32" if mode == "fp32" else "bf16",
        processes=2,
        micro_batch=MICRO,
        sequence=SEQUENCE,
        activation_checkpointing=False,
        loss_chunk_tokens=0,
        attention=attention,
    )
    assert activation_bytes(request) == pytest.approx(kept_bytes(model, attention, mode), rel=BOUND)


@pytest.mark.parametrize("frozen", [True, False])
def test_the_gradients_of_a_gated_mlp_that_stand_at_one_time(frozen: bool) -> None:
    """Three of its width: of the product and of its two factors, then of the activation's input.

    `headway.plan.footprint.layer_transient` counts them, less the product itself where it was kept and is freed.
    """
    hidden, ffn, tokens = 64, 256, 512
    mlp = LlamaMLP(LlamaConfig(hidden_size=hidden, intermediate_size=ffn)).requires_grad_(not frozen)
    inputs = torch.randn(tokens, hidden, requires_grad=True)
    for tensor in (inputs, *(p for p in mlp.parameters() if p.requires_grad)):
        tensor.grad = torch.zeros_like(tensor)
    outputs = mlp(inputs)
    with profile(profile_memory=True) as profiled:
        outputs.backward(torch.ones_like(outputs))
    assert most_bytes(profiled) == pytest.approx(3 * ffn * tokens * 4, rel=0.1)


def test_a_power_makes_gelu_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's autocast takes a power in fp32, a CPU's does not: with that rule GPT-2's GELU keeps what is counted."""
    power, sizes = torch.pow, dict[int, int]()
    monkeypatch.setattr(torch, "pow", lambda x, exponent: power(x.float(), exponent))
    inner = torch.randn(64, 32, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(16, 32, dtype=torch.bfloat16, requires_grad=True)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape == inner.shape:
            sizes[tensor.data_ptr()] = tensor.nbytes
        alive.append(tensor)
        return tensor

    alive: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        F.linear(NewGELUActivation()(inner).to(torch.bfloat16), weight)
    shape = shape_of(build("gpt2", "fp32", 0.0)[0])
    assert sum(sizes.values()) == mlp_bytes(kind_of(shape), Numbers(4, 2, autocast=True)) * inner.numel()


@pytest.mark.parametrize("gated", [False, True])
def test_torch_compile_keeps_what_products_read(gated: bool) -> None:
    """Of an MLP its products and what the last one reads, though that could be computed again; not an activation."""
    kept: list[int] = []

    def look(graph: fx.GraphModule, _: object) -> fx.GraphModule:
        outputs = next(node for node in graph.graph.nodes if node.op == "output").args[0]
        kept.extend(node.meta["val"].numel() for node in outputs if node.op != "placeholder")
        return graph

    def mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        inner = F.silu(F.linear(x, gate)) * F.linear(x, up) if gated else F.gelu(F.linear(x, up))
        return F.linear(inner, down)

    parted = {"partition_fn": min_cut_rematerialization_partition, "decompositions": select_decomp_table()}
    made = aot_function(mlp, fw_compiler=look, bw_compiler=nop, **parted)
    made(*(torch.randn(*size, requires_grad=True) for size in ((4, 16, 8), (32, 8), (32, 8), (8, 32))))
    assert kept.count(4 * 16 * 32) == (3 if gated else 2)
