"""How far apart two right computations may be, by precision, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """start, gradient, norm: relative, ||a - b|| / ||b|| of a parameter. loss, trajectory (after a reshape): nats."""

    start: float
    gradient: float
    norm: float
    loss: float
    trajectory: float


# Moments from the same gradients and moments are fp32 arithmetic under every precision: a dozen roundings.
MOMENT = 1e-5
# Adam divides them: where a gradient and its weight's decay cancel to a tenth of Adam's epsilon, rounding moves that
# element by 1 % of a learning rate (measured: 6e-5 of a matrix's update). A forgotten decay is 2e-3 of it.
UPDATE = 2e-4

BOUNDS = {
    # Sums of a few thousand terms in another order: 6e-8 each.
    "fp32": Bounds(start=0.0, gradient=1e-5, norm=1e-5, loss=1e-5, trajectory=1e-5),
    # bf16 keeps 8 bits: 4e-3 an operation, through every layer, forward and back. Three to six times what the certify
    # matrix measured (gradients 2.5e-2, norm 2.1e-3, loss 3.4e-4); a lost micro batch is 9e-1.
    "bf16": Bounds(start=4e-3, gradient=8e-2, norm=1e-2, loss=2e-3, trajectory=2e-3),
    # As bf16, for 11 bits: not measured, as no CPU computes it.
    "fp16": Bounds(start=1e-3, gradient=5e-2, norm=1e-2, loss=2e-3, trajectory=2e-3),
}
