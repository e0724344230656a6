"""What a run writes: bytes of a checkpoint and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

from headway.plan.memory import moments_of
from headway.plan.passes import reference_bytes
from headway.plan.schema import Plan

# One host's fast local disk, or its share of a parallel file system, where nothing was measured.
USUAL_DISK_BYTES_PER_SECOND = 2e9
_EXPORT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True)
class Storage:
    """checkpoint_bytes: of one. disk_bytes: of those that are kept, the one being written, the export and, of a
    preference, the reference's answers.

    disk_bytes_per_second: of one host; all hosts write their own slices at once.
    """

    checkpoint_bytes: int
    disk_bytes: int
    save_seconds: float
    disk_bytes_per_second: float
    measured: bool


def checkpoint_bytes(plan: Plan) -> int:
    """One checkpoint: the fp32 weights (of an adapter: its own) and the optimizer's moments."""
    stored = plan.shape.trainable_parameters if plan.adapter else plan.shape.parameters
    return 4 * stored + 4 * moments_of(plan.optimizer) * plan.shape.trainable_parameters


def storage_of(plan: Plan, disk_bytes_per_second: float | None) -> Storage:
    one = checkpoint_bytes(plan)
    rate = disk_bytes_per_second or USUAL_DISK_BYTES_PER_SECOND
    export = _EXPORT_BYTES[plan.export.dtype] * plan.shape.parameters * plan.export.at_end
    return Storage(
        checkpoint_bytes=one,
        disk_bytes=one * (plan.checkpoint.keep + 1) + export + reference_bytes(plan),
        save_seconds=one / rate / plan.cluster.hosts,
        disk_bytes_per_second=rate,
        measured=disk_bytes_per_second is not None,
    )
