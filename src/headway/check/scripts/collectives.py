"""Which calls of a Python file are collectives: calls that return only when every rank has made them."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from headway.check.scripts.names import Names

_COLLECTIVES = {
    *("barrier", "monitored_barrier", "all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor"),
    *("broadcast", "broadcast_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor", "gather"),
    *("gather_object", "scatter", "scatter_object_list", "all_to_all", "all_to_all_single", "new_group"),
    *("init_process_group", "init_distributed"),
}
_GROUP_MODULES = ("torch.distributed", "deepspeed.comm")
# torch.distributed.checkpoint: every rank writes and reads its own part.
_CHECKPOINT = {"save", "load", "async_save", "save_state_dict", "load_state_dict"}
# Methods of DeepSpeed's engine in which all ranks take part; its save writes a part on each rank.
_ENGINE = {
    *("save_checkpoint", "load_checkpoint", "save_16bit_model", "save_fp16_model", "backward", "step"),
    *("train_batch", "eval_batch"),
}
_WAITS = {"wait_for_everyone"}
_ACCELERATOR = {"gather", "gather_for_metrics", "reduce", "pad_across_processes"}
_ACCELERATOR_SHARDED = {"save_state", "load_state", "get_state_dict", "save_model"}
_ACCELERATE = {"gather", "gather_object", "broadcast", "broadcast_object_list", "reduce", "pad_across_processes"}
_TRAINER = {"train", "evaluate", "predict"}
_TRAINER_SHARDED = {"save_model"}


@dataclass(frozen=True)
class Collective:
    """How the file writes the call. `sharded`: a collective only where the weights are sharded (ZeRO-3, FSDP)."""

    name: str
    sharded: bool = False


def collective(names: Names, call: ast.Call) -> Collective | None:
    """The collective that this call is; None for any other call, and for one of a group of its own."""
    full = names.dotted(call.func)
    if full is None or any(word.arg == "group" for word in call.keywords):
        return None  # a group of its own may hold only the ranks that come here
    module, _, last = full.rpartition(".")
    written = ast.unparse(call.func)
    if last == "barrier" and call.args:
        return None  # the same: its first argument is the group
    if module.startswith("torch.distributed.checkpoint"):
        return Collective(written) if last in _CHECKPOINT else None
    if module.startswith(_GROUP_MODULES) and last in _COLLECTIVES:
        return Collective(written)
    if full in ("deepspeed.init_distributed", "deepspeed.initialize"):
        return Collective(written)
    if names.runs_engine(call.func):
        return Collective(written, sharded=True)
    if full.startswith("deepspeed.") and last == "GatheredParameters":
        return Collective(written, sharded=True)
    if module.startswith("accelerate.utils") and last in _ACCELERATE | _WAITS:
        return Collective(written)
    return _of_object(names, call, call.func, last) if isinstance(call.func, ast.Attribute) else None


def _of_object(names: Names, call: ast.Call, method: ast.Attribute, last: str) -> Collective | None:
    written, owner = ast.unparse(method), ast.unparse(method.value)
    if last in _WAITS:
        return Collective(written)
    if last in _ENGINE and (names.is_engine(method.value) or names.is_engines_save(call)):
        return Collective(written)
    if last == "state_dict" and owner in names.sharded:
        return Collective(written)
    if names.is_accelerator(method.value):
        if last in _ACCELERATOR:
            return Collective(written)
        if f"{owner}.get_state_dict" in names.replaced:  # what gathers the weights is the file's own
            return None
        return Collective(written, sharded=True) if last in _ACCELERATOR_SHARDED else None
    if owner in names.trainers:
        if last in _TRAINER:
            return Collective(written)
        return Collective(written, sharded=True) if last in _TRAINER_SHARDED else None
    return None
