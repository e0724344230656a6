"""What the GPU tests do, each job in a process of its own: CUDA cannot be forked, and DeepSpeed's engines leave traces.

Nothing heavy is imported above a function body: DeepSpeed must hear first which device is meant. Every job takes the
device, so that the jobs themselves can be tried on a CPU.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from typing import Any

# Heads of 32 dimensions, which every flash kernel takes.
MODEL = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}


def in_fresh_process(job: Callable[..., Any], *arguments: Any) -> Any:
    """`job(*arguments)`, run as the only rank in a spawned process. Raises AssertionError with its traceback."""
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(theirs, job, arguments))
    process.start()
    theirs.close()
    try:
        good, value = mine.recv() if mine.poll(240) else (False, "no answer in four minutes")
    except EOFError:
        good, value = False, "the process died"
    process.kill()
    process.join()
    assert good, value
    return value


def _run(answer: Any, job: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    from tests.distributed.ranks import free_port

    device = arguments[0]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(free_port()), "DS_ACCELERATOR": device}
    try:
        answer.send((True, job(*arguments)))
    except BaseException:
        answer.send((False, traceback.format_exc()))
    os._exit(0)


def _plan(device: str, strategy: str, precision: str, attention: str = "sdpa", **changes: Any) -> Any:
    from tests.distributed.plans import CONFIG, tiny_plan

    return tiny_plan(
        strategy,
        (4, 2, 1),
        model={"config": CONFIG | MODEL, "attention": attention},
        numerics={"precision": precision},
        launch={"device": device, "backend": "nccl" if device == "cuda" else "gloo"},
        **changes,
    )


def held_plan(device: str, strategy: str, precision: str) -> Any:
    """An adapter beside a base in 4 bits."""
    from tests.distributed.plans import LORA

    held = {"kind": "qlora", "quantization": "nf4", "double_quantization": True}
    return _plan(device, strategy, precision, adapter=LORA | held, optimizer={"eps": 1e-5})


def held_curve(device: str, strategy: str, precision: str) -> dict[str, list[float]]:
    """As `curve`, of QLoRA."""
    from tests.distributed.engine_jobs import train_and_report

    report = train_and_report(held_plan(device, strategy, precision), 3)
    return {"losses": report["losses"], "norms": report["norms"]}


def held_weights(device: str, precision: str) -> dict[str, list[float]]:
    """The first values of each layer as they come back from 4 bits, by name, and its largest difference of any."""
    import torch
    from bitsandbytes.functional import dequantize_4bit

    from headway.model.quantized import QloraSource, held_layers
    from headway.parallel.building import build_filled

    source = QloraSource(held_plan(device, "single", precision))
    model = build_filled(source, torch.device(device))
    found: dict[str, list[float]] = {}
    for name, layer in held_layers(model).items():
        weight = dict(source.base.values(name, source.base.skeleton.get_submodule(name)))["weight"]
        back = dequantize_4bit(layer.weight.data, layer.quant_state).float().cpu()
        share = float((back - weight).abs().max() / weight.abs().max())
        found[name] = [share, *back.flatten()[:64].tolist()]
    return found


def curve(device: str, strategy: str, precision: str, attention: str = "sdpa") -> dict[str, list[float]]:
    """Losses and gradient norms of three steps; more would show how far apart rounding can drive two runs."""
    from tests.distributed.engine_jobs import train_and_report

    report = train_and_report(_plan(device, strategy, precision, attention), 3)
    return {"losses": report["losses"], "norms": report["norms"]}


def packed_logits(device: str, attention: str, precision: str, change: int) -> list[list[float]]:
    """[positions, entries] of the second document of a window, whose first one's tokens are shifted by `change`."""
    import numpy as np
    import torch

    from headway.data.seam import Sample
    from headway.model.attention import attention_inputs
    from headway.model.huggingface import HuggingFaceSource
    from headway.parallel.building import build_filled
    from headway.task.causal_lm import CausalLM
    from tests.distributed.plans import SEQUENCE, VOCAB

    plan = _plan(device, "single", precision, attention)
    model = build_filled(HuggingFaceSource(plan), torch.device(device)).eval()
    border = SEQUENCE // 2
    tokens = np.random.default_rng(3).integers(0, VOCAB, SEQUENCE, dtype=np.int32)
    tokens[:border] = (tokens[:border] + change) % VOCAB
    places = np.arange(SEQUENCE, dtype=np.int32)
    sample = Sample(0, tokens, tokens, places % border, (places >= border).astype(np.int32))
    inputs = CausalLM(plan).collate([sample], SEQUENCE).to(torch.device(device)).inputs
    autocast = torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bf16")
    with torch.no_grad(), autocast:
        arguments = attention_inputs(inputs, attention)
        logits = model(input_ids=inputs["input_ids"], use_cache=False, **arguments).logits
    return logits[0, border:].float().cpu().tolist()


def fused_and_plain_adamw(device: str) -> float:
    """The largest difference of a weight between Headway's AdamW and torch's plain loop, after five steps."""
    import torch

    from headway.parallel.optimizers import build_optimizer

    plan = _plan(device, "single", "fp32")
    torch.manual_seed(5)
    weights = [torch.randn(64, 32, device=device), torch.randn(64, device=device)]
    ours, theirs = ([torch.nn.Parameter(weight.clone()) for weight in weights] for _ in range(2))
    fused = build_optimizer(plan.optimizer, [{"params": ours, "weight_decay": 0.1}])
    if not fused.defaults["fused"]:
        raise AssertionError("the optimizer is not fused")
    fused.param_groups[0]["lr"] = 1e-2
    plain = torch.optim.AdamW(theirs, lr=1e-2, betas=plan.optimizer.betas, weight_decay=0.1, foreach=False)
    for _ in range(5):
        for own, other in zip(ours, theirs, strict=True):
            own.grad = torch.randn_like(own)
            other.grad = own.grad.clone()
        fused.step()
        plain.step()
    return max(float((own - other).abs().max()) for own, other in zip(ours, theirs, strict=True))
