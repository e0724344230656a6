"""How a model is spread over ranks: a strategy prepares an engine, which trains, evaluates, gives and takes state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from headway.model.seam import ModelSource
from headway.plan.schema import Plan
from headway.task.seam import Batch, Task, Totals


@dataclass(frozen=True)
class Sharding:
    """What a strategy splits over the data-parallel ranks. The planner reads it; no torch."""

    parameters: bool = False
    gradients: bool = False
    optimizer: bool = False


@dataclass(frozen=True)
class Slice:
    """A contiguous run of one parameter's flattened state.

    kind: 'weight' (the most precise copy: the fp32 master where there is one) or an optimizer moment such as
    'exp_avg', 'exp_avg_sq', 'momentum_buffer'. offset counts elements of the flattened parameter of `shape`.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    data: torch.Tensor  # 1-D, on the host or the device


class SliceReader(Protocol):
    """Reads any run of any stored state, whatever the ranks and strategy that wrote it."""

    scalars: dict[str, float]

    def read(self, name: str, kind: str, offset: int, length: int) -> torch.Tensor:
        """1-D tensor on the host, as stored. Raises CheckpointError where it is not stored."""
        ...

    def kinds(self, name: str) -> set[str]:
        """The kinds stored for this parameter; empty if the parameter is unknown."""
        ...

    def names(self) -> list[str]:
        """Every stored parameter."""
        ...


@dataclass
class StepResult:
    """What one optimizer step did, equal on all ranks."""

    totals: Totals  # global sums and counts by term, of the micro batches of this step
    grad_norm: float  # global, before clipping
    applied: bool  # False: discarded by the guard or a loss-scale overflow
    tokens: int  # real tokens, global
    lr: float  # read back from the optimizer after the step
    loss_scale: float = 1.0


# (global loss means by term, gradient norm) -> apply this step? Called with global values, so all ranks agree.
Guard = Callable[[dict[str, float], float], bool]


class Engine(Protocol):
    """Six methods and the model. All ranks call each method together."""

    model: nn.Module  # wrapped; called by Task.loss
    module: nn.Module  # as the source built it
    device: torch.device

    def train_step(self, micro_batches: Sequence[Batch], lr: float, guard: Guard) -> StepResult:
        """Backward of every micro batch, gradient norm, verdict, then clip and step at `lr`, or discard."""
        ...

    def evaluate(self, batches: Iterable[Batch]) -> Totals:
        """Global totals over all ranks' batches; every rank gives the same number. No gradient, eval mode."""
        ...

    def state(self) -> EngineState:
        """This rank's share of the state: together the ranks' slices cover everything exactly once."""
        ...

    def restore(self, reader: SliceReader, *, weights_only: bool = False) -> None:
        """Take weights and optimizer state, by name, whatever wrote them."""
        ...

    def full_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter and persistent buffer, whole, on the host, in order; all ranks iterate together.

        Of a model with an adapter, the adapter's: its frozen weights are those of a folder (`headway.model.naming`).
        Rank 0 gets the tensors; other ranks may get empty ones.
        """
        ...

    def close(self) -> None: ...


@dataclass
class EngineState:
    """`scalars` (optimizer step, loss scale) are equal on all ranks; `slices` are this rank's own."""

    slices: Iterator[Slice]
    scalars: dict[str, float] = field(default_factory=dict)


class Strategy(Protocol):
    """A row of the registry's room 'strategy'."""

    @staticmethod
    def sharding(stage: int) -> Sharding: ...

    def prepare(self, source: ModelSource, task: Task, plan: Plan) -> Engine:
        """Build, fill and wrap the model. The process group is up; the device is set."""
        ...
