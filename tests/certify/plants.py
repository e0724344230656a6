"""Faults planted into the ranks of a certify run: each function patches the real code in the process that calls it.

One function a fault, without arguments, named in `Job.plant`. What each imitates stands in its docstring; `FAULTS` in
`tests/certify/faults.py` says which claim must catch it and under which plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from headway.task.causal_lm import CausalLM


def _around(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Put wrap(what stands there) in its place."""
    setattr(owner, name, wrap(getattr(owner, name)))


# --- gradients -------------------------------------------------------------------------------------------------------


def loss_divided_by_ranks_twice() -> None:
    """The loss is already a global mean, and the engine's average over the ranks is not undone."""
    from headway.parallel.collectives import world
    from headway.parallel.step import SteppingEngine

    def wrap(objective: Any) -> Any:
        return lambda self, terms, counts: objective(self, terms, counts) / world()[1]

    _around(SteppingEngine, "_objective", wrap)


def mean_of_means() -> None:
    """Each micro batch's own mean, averaged over micro batches and ranks: short ones weigh too much."""
    from headway.parallel.step import SteppingEngine

    counts_of_batch: dict[str, float] = {}

    def note(loss: Any) -> Any:
        def noting(self: Any, model: nn.Module, batch: Any) -> Any:
            counts_of_batch.update(batch.counts)
            return loss(self, model, batch)

        return noting

    def objective(self: Any, terms: dict[str, torch.Tensor], counts: dict[str, float]) -> torch.Tensor:
        return terms["loss"] / max(counts_of_batch["loss"], 1.0) / self.plan.batch.accumulation

    _around(CausalLM, "loss", note)
    SteppingEngine._objective = objective


def gradients_divided_by_accumulation_again() -> None:
    """DeepSpeed scales by the accumulation steps although the loss is a mean over all of them already."""
    from headway.parallel.deepspeed import DeepSpeedEngine

    DeepSpeedEngine._backward = lambda self, objective, last: self.engine.backward(objective, scale_wrt_gas=True)


def a_micro_batch_is_lost() -> None:
    """As DeepSpeed 0.18.9 with offload: what the first micro batches of a step gave is overwritten by the last."""
    from headway.parallel.deepspeed import DeepSpeedEngine

    def wrap(backward: Any) -> Any:
        return lambda self, objective, last: backward(self, objective if last else objective * 0.0, last)

    _around(DeepSpeedEngine, "_backward", wrap)


def clipped_by_the_largest_gradient() -> None:
    """Clipping by the largest element in place of the 2-norm; the norm that is reported stays right."""
    import torch.nn.utils as utils

    def clip(parameters: Any, limit: float, norm: torch.Tensor) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        largest = max(float(gradient.abs().max()) for gradient in gradients)
        torch._foreach_mul_(gradients, min(1.0, limit / largest))

    utils.clip_grads_with_norm_ = clip


# --- batch invariance ------------------------------------------------------------------------------------------------


def padding_is_counted() -> None:
    """The loss is divided by all positions of the batch, padding and fillers too."""

    def wrap(collate: Any) -> Any:
        def counting(self: Any, samples: Any, sequence: int) -> Any:
            return replace(collate(self, samples, sequence), counts={"loss": float(len(samples) * sequence)})

        return counting

    _around(CausalLM, "collate", wrap)


def rows_see_each_other() -> None:
    """A layer that mixes the rows of a micro batch, as a batch norm does."""
    from headway.model.huggingface import HuggingFaceSource

    def mix(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output + 0.5 * output.mean(0, keepdim=True)

    def wrap(prepare: Any) -> Any:
        def prepared(self: Any, model: Any) -> None:
            prepare(self, model)
            model.get_input_embeddings().register_forward_hook(mix)

        return prepared

    _around(HuggingFaceSource, "prepare_for_training", wrap)


# --- effect ----------------------------------------------------------------------------------------------------------


def activation_checkpointing_is_dropped() -> None:
    import headway.model.huggingface as huggingface

    huggingface.enable_checkpointing = lambda model: None


def compile_is_dropped() -> None:
    nn.Module.compile = lambda self, *arguments, **named: None


def _config_changed(change: Callable[[dict[str, Any]], None]) -> None:
    import headway.parallel.deepspeed as engine

    def wrap(make: Any) -> Any:
        def changed(plan: Any) -> dict[str, Any]:
            config = make(plan)
            change(config)
            return config

        return changed

    _around(engine, "deepspeed_config", wrap)


def stage_is_1() -> None:
    """Another ZeRO stage than the plan's, behind its back."""
    _config_changed(lambda config: config["zero_optimization"].update(stage=1))


def clipping_is_dropped() -> None:
    _config_changed(lambda config: config.update(gradient_clipping=0.0))


def offload_is_dropped() -> None:
    _config_changed(lambda config: config["zero_optimization"].pop("offload_optimizer"))


def buckets_hold_everything() -> None:
    """Thresholds at their defaults: a small model never leaves its first bucket, and the exchange is not proven."""
    _config_changed(lambda config: config["zero_optimization"].update(reduce_bucket_size=int(5e8)))


# --- resume ----------------------------------------------------------------------------------------------------------


def random_state_is_not_restored() -> None:
    import headway.train.build as build

    build.restore_random_state = lambda state, device: None


def data_is_off_by_a_micro_batch() -> None:
    """A resumed loader goes on one micro batch too late."""
    import headway.data.loader as loader

    def wrap(rank_windows: Any) -> Any:
        def shifted(spec: Any, step: int) -> Any:
            rows = rank_windows(spec, step)
            return rows if spec.first_step == 1 else [*rows[1:], rank_windows(spec, step + 1)[0]]

        return shifted

    _around(loader, "rank_windows", wrap)


def moments_are_not_restored() -> None:
    from headway.parallel.deepspeed import _FlatPartition

    def wrap(restore: Any) -> Any:
        return lambda self, name, parameter, reader, weights_only: restore(self, name, parameter, reader, True)

    _around(_FlatPartition, "_restore_parameter", wrap)


def step_count_is_not_restored() -> None:
    """Adam's bias correction begins anew."""
    import headway.parallel.slices as slices

    slices.set_step_count = lambda optimizer, count: None


# --- reshape ---------------------------------------------------------------------------------------------------------


def _reshaping(reader: Any) -> bool:
    from headway.parallel.collectives import world

    return reader.ref.manifest.world != world()[1]


def a_slice_is_read_from_the_wrong_place() -> None:
    """On another number of ranks, a run of the second moments begins one element too early."""
    from headway.checkpoint.reader import StoredState

    def wrap(read: Any) -> Any:
        def shifted(self: Any, name: str, kind: str, offset: int, length: int) -> torch.Tensor:
            found = read(self, name, kind, offset, length)
            return found.roll(1) if kind == "exp_avg_sq" and _reshaping(self) else found

        return shifted

    _around(StoredState, "read", wrap)


def order_depends_on_the_ranks() -> None:
    """Each number of ranks shuffles the data in its own way."""
    import headway.data.loader as loader

    def wrap(rank_windows: Any) -> Any:
        return lambda spec, step: rank_windows(replace(spec, seed=spec.seed + spec.world), step)

    _around(loader, "rank_windows", wrap)


def moments_are_dropped_on_other_ranks() -> None:
    """A state of another number of ranks is taken as weights alone."""
    from headway.parallel.ddp import TorchEngine

    def wrap(restore: Any) -> Any:
        def weights(self: Any, reader: Any, *, weights_only: bool = False) -> None:
            restore(self, reader, weights_only=_reshaping(reader))

        return weights

    _around(TorchEngine, "restore", wrap)


# --- export ----------------------------------------------------------------------------------------------------------


def head_is_untied() -> None:
    """The folder's config says that the head is a weight of its own; the file holds none."""
    from headway.model.huggingface import HuggingFaceSource

    def wrap(save: Any) -> Any:
        def untied(self: Any, folder: Any, dtype: Any) -> Any:
            self.config.tie_word_embeddings = False
            return save(self, folder, dtype)

        return untied

    _around(HuggingFaceSource, "_save_configs", wrap)


def _exported(change: Callable[[str, torch.Tensor], torch.Tensor | None]) -> None:
    """Change tensors on their way to the files, after they were counted; None loses one."""
    import headway.model.huggingface as huggingface

    def wrap(write: Any) -> Any:
        def changed(folder: Any, tensors: Iterator[tuple[str, torch.Tensor]], limit: int) -> Any:
            pairs = ((name, change(name, tensor)) for name, tensor in tensors)
            return write(folder, ((name, tensor) for name, tensor in pairs if tensor is not None), limit)

        return changed

    _around(huggingface, "write_shards", wrap)


def a_weight_is_lost() -> None:
    _exported(lambda name, tensor: None if name.endswith("1.mlp.up_proj.weight") else tensor)


def a_weight_is_transposed() -> None:
    """A square matrix the wrong way round: every shape fits."""
    _exported(lambda name, tensor: tensor.T.contiguous() if name.endswith("1.self_attn.q_proj.weight") else tensor)


def the_weights_are_stale() -> None:
    """What is exported is what the engine held before its last step."""
    from headway.parallel.ddp import TorchEngine

    held: dict[str, torch.Tensor] = {}

    def keep(apply: Any) -> Any:
        def kept(self: Any, lr: float, verdict: Any) -> Any:
            held.update({name: p.detach().clone() for name, p in self.module.named_parameters()})
            return apply(self, lr, verdict)

        return kept

    _around(TorchEngine, "_apply", keep)
    TorchEngine.full_weights = lambda self: iter(list(held.items()))


# --- tables ----------------------------------------------------------------------------------------------------------


def scheduler_is_stepped_twice() -> None:
    import headway.train.loop as loop

    _around(loop, "learning_rate", lambda rate: lambda plan, step: rate(plan, min(2 * step, plan.steps)))


def warmup_is_off_by_one() -> None:
    """Steps counted from 0, in the plan's own table too: the first step has a rate of zero."""
    import headway.train.loop as loop
    import headway.train.progress as progress

    for module in (loop, progress):
        _around(module, "learning_rate", lambda rate: lambda plan, step: rate(plan, step - 1) if step > 1 else 0.0)


def tokens_are_counted_with_padding() -> None:

    def wrap(collate: Any) -> Any:
        def counting(self: Any, samples: Any, sequence: int) -> Any:
            return replace(collate(self, samples, sequence), tokens=len(samples) * sequence)

        return counting

    _around(CausalLM, "collate", wrap)


# --- plan ------------------------------------------------------------------------------------------------------------


def optimizer_keeps_a_third_moment() -> None:
    """amsgrad, which nobody asked for."""
    _around(torch.optim.AdamW, "__init__", lambda init: lambda *a, **named: init(*a, **named | {"amsgrad": True}))


def moments_are_kept_in_double() -> None:
    """Twice the planned bytes of optimizer state."""
    import headway.parallel.ddp as ddp

    def wrap(make: Any) -> Any:
        def doubled(*arguments: Any) -> Any:
            optimizer = make(*arguments)
            optimizer.register_step_post_hook(_double)
            optimizer.register_step_pre_hook(_single)
            return optimizer

        return doubled

    _around(ddp, "build_optimizer", wrap)


def _double(optimizer: Any, *_: Any) -> None:
    _moments_to(optimizer, torch.float64)


def _single(optimizer: Any, *_: Any) -> None:
    _moments_to(optimizer, torch.float32)


def _moments_to(optimizer: Any, dtype: torch.dtype) -> None:
    for state in optimizer.state.values():
        for kind in ("exp_avg", "exp_avg_sq"):
            if kind in state:
                state[kind] = state[kind].to(dtype)


def nothing_is_sharded() -> None:
    """The plan says ZeRO; every rank holds a full copy of everything."""
    from headway.parallel.ddp import DDP
    from headway.parallel.deepspeed import DeepSpeed

    DeepSpeed.prepare = lambda self, source, task, plan: DDP().prepare(source, task, plan)


def weights_are_kept_whole() -> None:
    """ZeRO-3 that never gives a gathered weight back."""
    _config_changed(lambda config: config["zero_optimization"].update(stage3_param_persistence_threshold=10**9))


# --- a fault that only the real run has ------------------------------------------------------------------------------


class HalvedUnderDDP(CausalLM):
    """A task whose loss is half as large where the model is wrapped: plain PyTorch sees nothing of it."""

    def loss(self, model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        scale = 0.5 if isinstance(model, DistributedDataParallel) else 1.0
        return {name: value * scale for name, value in super().loss(model, batch).items()}
