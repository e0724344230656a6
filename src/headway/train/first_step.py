"""The first step once more in plain PyTorch, on the real model, the real data and the real devices.

A certificate is made on a small model, often on another machine. Where a run relies on one, its first step's loss and
gradient norm are compared with a forward and backward pass of the bare module on each rank, summed over the ranks:
no wrapper, no buckets, no partition, nothing compiled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import torch
import torch.distributed as dist

from headway.checkpoint.random_state import capture_random_state, restore_random_state
from headway.errors import NotCertified
from headway.parallel.collectives import sum_over_ranks, world
from headway.parallel.seam import StepResult
from headway.task.seam import Batch
from headway.train.build import Parts

# (loss, gradient norm): relative. The same numbers in another order of sums; 16-bit engines also sum in 16 bits.
_BOUNDS = {"fp32": (1e-5, 1e-4), "bf16": (1e-3, 5e-2)}
_ROOM = 2.0  # gradients in fp32 and what a backward pass needs beside them, in gradients


@dataclass(frozen=True)
class FirstStep:
    """What the plain pass gave, equal on all ranks; `skipped` says why it was not made."""

    loss: float = math.nan
    grad_norm: float = math.nan
    skipped: str = ""


@dataclass(frozen=True)
class Comparison:
    """The engine's first step beside the plain one. Differences and bounds are relative."""

    loss: float
    plain_loss: float
    grad_norm: float
    plain_grad_norm: float
    loss_bound: float
    norm_bound: float

    @property
    def holds(self) -> bool:
        norm = _apart(self.grad_norm, self.plain_grad_norm)
        return _apart(self.loss, self.plain_loss) <= self.loss_bound and norm <= self.norm_bound

    def fields(self) -> dict[str, Any]:
        """For the event and the record."""
        return {**asdict(self), "holds": self.holds}

    def require(self) -> None:
        """Raises NotCertified where the engine's step is not the plain one."""
        if not self.holds:
            raise NotCertified(
                "the first step on this hardware is not what plain PyTorch computes, whatever the certificate says:"
                f" loss {self.loss:.7g}, plain {self.plain_loss:.7g} (bound {self.loss_bound:g}, relative);"
                f" gradient norm {self.grad_norm:.7g}, plain {self.plain_grad_norm:.7g} (bound {self.norm_bound:g})",
                fix="another strategy or release may hold; only one step was made",
            )


def _apart(a: float, b: float) -> float:
    """Relative difference; 0 where neither is finite, which the run's own guard judges."""
    if not math.isfinite(a) and not math.isfinite(b):
        return 0.0
    return abs(a - b) / abs(b) if b else abs(a)


def plain_first_step(parts: Parts, micro_batches: Sequence[Batch]) -> FirstStep:
    """Loss and gradient norm of these micro batches (this rank's), over all ranks; collective.

    The engine, its gradients and the random state stay as they were.
    """
    skipped = _why_not(parts)
    if skipped:
        return FirstStep(skipped=skipped)
    module, task, device = parts.engine.module, parts.task, parts.engine.device
    counts = sum_over_ranks(
        {name: sum(batch.counts[name] for batch in micro_batches) for name in sorted(task.terms)}, device
    )
    weights = {name: term.weight / max(counts[name], 1.0) for name, term in task.terms.items()}
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    gradients = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in parameters]
    loss = 0.0
    module.train()
    with _undisturbed(parts):
        for batch in micro_batches:
            terms = task.loss(module, batch.to(device))
            objective = torch.stack([value * weights[name] for name, value in terms.items()]).sum()
            loss += float(objective)
            # Not backward(): the engine's hooks stand on the parameters' own gradients.
            found = torch.autograd.grad(objective, parameters, allow_unused=True)
            for total, gradient in zip(gradients, found, strict=True):
                if gradient is not None:
                    total.add_(gradient)
            del found, objective, terms
    square = 0.0
    for gradient in gradients:
        if world()[1] > 1:
            dist.all_reduce(gradient)
        square += float(gradient.double().pow(2).sum())
    return FirstStep(sum_over_ranks({"loss": loss}, device)["loss"], math.sqrt(square))


def compare(first: FirstStep, result: StepResult, parts: Parts) -> Comparison:
    loss = sum(parts.task.terms[name].weight * mean for name, mean in result.totals.means().items())
    bounds = _BOUNDS[parts.plan.numerics.precision]
    return Comparison(loss, first.loss, result.grad_norm, first.grad_norm, *bounds)


def _why_not(parts: Parts) -> str:
    """Why the plain pass cannot be made, equal on all ranks; empty where it can."""
    if parts.plan.numerics.precision not in _BOUNDS:
        return f"{parts.plan.numerics.precision} computes only with the engine's loss scale"
    parameters = list(parts.engine.module.parameters())
    if any(hasattr(parameter, "ds_tensor") for parameter in parameters):
        return "no rank holds the whole model, as the strategy partitions its weights"
    needed = _ROOM * 4 * sum(parameter.numel() for parameter in parameters)
    short = sum_over_ranks({"short": float(_free_bytes(parts.engine.device) < needed)}, parts.engine.device)
    return f"it needs {needed / 2**30:.1f} GiB of memory beside the engine" if short["short"] else ""


def _free_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return psutil.virtual_memory().available / world()[1]


@contextmanager
def _undisturbed(parts: Parts) -> Iterator[None]:
    """The engine's precision, nothing compiled, and the same dropout masks as the engine will draw."""
    device, numerics = parts.engine.device, parts.plan.numerics
    autocast = numerics.precision == "bf16" and next(parts.engine.module.parameters()).dtype == torch.float32
    state = capture_random_state(device)
    try:
        with ExitStack() as stack:
            if numerics.compile:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(torch.autocast(device.type, torch.bfloat16, enabled=autocast))
            yield
    finally:
        restore_random_state(state, device)
