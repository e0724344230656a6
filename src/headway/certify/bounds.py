"""How far apart two right computations may be, by precision, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """gradient, norm, weight: relative, ||a - b|| / ||b|| of a parameter. loss, trajectory (after a reshape): nats."""

    gradient: float
    norm: float
    weight: float
    loss: float
    trajectory: float


BOUNDS = {
    # Sums of a few thousand terms in another order: 6e-8 each.
    "fp32": Bounds(gradient=1e-5, norm=1e-5, weight=1e-5, loss=1e-5, trajectory=1e-5),
    # bf16 keeps 7 bits: 4e-3 an operation, through every layer, forward and back.
    "bf16": Bounds(gradient=1.5e-1, norm=5e-2, weight=1.5e-2, loss=5e-2, trajectory=5e-2),
    "fp16": Bounds(gradient=5e-2, norm=2e-2, weight=1e-2, loss=2e-2, trajectory=2e-2),
}
