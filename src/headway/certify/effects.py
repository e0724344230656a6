"""Had each option its effect? Counted and weighed on the live engine, not read from a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headway.parallel.ddp import TorchEngine
from headway.parallel.live import zero_stage
from headway.parallel.seam import Engine
from headway.task.seam import Batch
from headway.train.build import Parts


class Exchanges:
    """Counts gradient buckets as they are flushed and (ZeRO-3) gathers of partitioned parameters."""

    def __init__(self, engine: Engine):
        self.counted = {"buckets": 0, "gathers": 0}
        stage = zero_stage(engine)
        if stage == 0:
            return
        from deepspeed.runtime.zero import partition_parameters

        optimizer = engine.engine.optimizer  # pyright: ignore[reportAttributeAccessIssue]
        if stage < 3:
            self._count(optimizer, "reduce_ipg_grads", "buckets")
            return
        self._count(optimizer, "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads", "buckets")
        self._count(partition_parameters, "_dist_allgather_fn", "gathers")

    def _count(self, owner: Any, name: str, key: str) -> None:
        call = getattr(owner, name)

        def counting(*arguments: Any, **named: Any) -> Any:
            self.counted[key] += 1
            return call(*arguments, **named)

        setattr(owner, name, counting)


def measure_effects(engine: Engine, parts: Parts, batches: Sequence[Batch]) -> dict[str, Any]:
    """After the last step; all ranks call it together. Figures by name, for the options that are on."""
    numerics = parts.plan.numerics
    found: dict[str, Any] = {}
    if numerics.activation_checkpointing:
        kept = saved_tensor_bytes(engine, parts, batches[-1])
        inner: Any = engine.module
        inner.gradient_checkpointing_disable()
        without = saved_tensor_bytes(engine, parts, batches[-1])
        found["activation_checkpointing"] = {"with_bytes": kept, "without_bytes": without}
    if numerics.compile:
        from torch._dynamo.utils import counters

        found["compiled_graphs"] = int(counters["stats"]["unique_graphs"])
    return found


def saved_tensor_bytes(engine: Engine, parts: Parts, batch: Batch) -> int:
    """Bytes that a forward pass keeps for the backward pass, weights left out; the graph is dropped again."""
    parameters = list(engine.module.parameters())
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        # Asked anew each time: ZeRO-3 gathers a weight into other memory in every layer's turn.
        if all(tensor.data_ptr() != parameter.data_ptr() for parameter in parameters):
            seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    # Not through DistributedDataParallel, which would wait for the backward pass of this forward pass.
    model = engine.module if isinstance(engine, TorchEngine) else engine.model
    model.train()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        terms = parts.task.loss(model, batch.to(engine.device))
    del terms
    return sum(seen.values())
