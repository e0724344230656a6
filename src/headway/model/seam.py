"""Where models come from. A source builds the architecture, fills it by name, and writes it as a folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import torch
from torch import nn


class ModelSource(Protocol):
    """Made from the plan: `Source(plan)`. At most six methods.

    A strategy calls `build()` in the context that it needs (meta device, ZeRO-3 partitioning), then `fill` module by
    module while that module's own parameters are whole. So every strategy and world size starts from equal weights,
    and under ZeRO-3 no rank ever holds a full copy. A source with `builds_whole = True` is built outside of every such
    context and spread afterwards; one with `fills_first = True` is built on the meta device under ZeRO-3, and each
    module is filled whole before it is partitioned: `fill` may put other parameters in place of the direct ones.
    """

    def build(self) -> nn.Module:
        """The architecture; parameters may be left uninitialised (or on the meta device, where the context says so)."""
        ...

    def fill(self, name: str, module: nn.Module) -> None:
        """Write the direct parameters and buffers of `module` (called `name`) in place, children excluded.

        From a slice of a file, or drawn from a generator seeded by (plan seed, name): the same on every rank.
        """
        ...

    def prepare_for_training(self, model: nn.Module) -> None:
        """Activation checkpointing, attention, compile: what the plan says, applied to the built model."""
        ...

    def save(self, folder: Path, weights: Iterable[tuple[str, torch.Tensor]], config_from: nn.Module) -> list[str]:
        """Write a folder that plain transformers loads (safetensors, config); tied weights once. Returns file names."""
        ...
