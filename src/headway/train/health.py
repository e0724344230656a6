"""Is the run still healthy? One guard, asked before every step, with the same global values on every rank."""

from __future__ import annotations

import math

from headway.errors import Diverged

# fp16 halves its loss scale on each overflow, from 2^16: 16 discards in a row are its normal search.
DISCARDS_IN_A_ROW = 20


class Guard:
    """Discards a step whose loss or gradient norm is not finite; gives up after too many in a row.

    `discards_in_a_row` is part of the progress that a checkpoint holds, so a resumed run gives up at the same step.
    """

    def __init__(self, discards_in_a_row: int = 0):
        self.discards_in_a_row = discards_in_a_row

    def __call__(self, means: dict[str, float], grad_norm: float) -> bool:
        return math.isfinite(grad_norm) and all(math.isfinite(value) for value in means.values())

    def after(self, step: int, applied: bool) -> None:
        """Count the outcome of `step`. Raises Diverged after DISCARDS_IN_A_ROW discarded steps."""
        self.discards_in_a_row = 0 if applied else self.discards_in_a_row + 1
        if self.discards_in_a_row >= DISCARDS_IN_A_ROW:
            raise Diverged(
                f"loss or gradients were not finite in {self.discards_in_a_row} steps in a row, up to step {step}",
                fix="lower optimizer.lr or raise optimizer.warmup, then resume from the last checkpoint;"
                " in fp16, write train.precision=bf16 where the device has it",
            )
