"""A user's own module: `model: package.module:factory`, a callable that returns an nn.Module.

The factory is called on every rank from the plan's seed, so all strategies and world sizes start from the same weights.
The module is made whole and spread afterwards, also under ZeRO-3: a constructor may then do with its parameters what it
likes, and each rank's host must hold it once.
"""

from __future__ import annotations

import inspect
import random
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from headway.errors import ExportError, ModelError, Problem
from headway.facts.adapters import LinearLayer
from headway.facts.schema import ModelShape
from headway.model.initial import module_seed
from headway.model.shards import write_shards
from headway.model.skeleton import seeded
from headway.plan.schema import ModelPlan, Plan
from headway.registry import load_object

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SOURCE_METHODS = ("build", "fill", "prepare_for_training", "save")
Factory = Callable[..., nn.Module]
# Their forward passes hand their layers' weights to torch's functions, an encoder layer's in evaluation only.
_READ_NOT_CALLED = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
NO_SOURCE = "goes into the module of a factory, and not into that of a ModelSource class"


def is_source(made: Any) -> bool:
    """Whether a user's object is a ModelSource class, made as `Source(plan)`, and not a factory of modules."""
    return isinstance(made, type) and not issubclass(made, nn.Module) and all(hasattr(made, m) for m in SOURCE_METHODS)


class OwnSource:
    """The ModelSource of a factory.

    Raises:
        ModelError: the factory cannot be called with the options, or does not return an nn.Module.
    """

    builds_whole = True

    def __init__(self, plan: Plan, factory: Factory):
        self._plan, self._factory = plan, factory

    def skeleton(self) -> nn.Module:
        """The module for its names, without weights where its constructor allows that."""
        plan = self._plan
        try:
            with warnings.catch_warnings(), torch.device("meta"):
                warnings.simplefilter("ignore")  # of a factory that reads weights: they go nowhere here
                return call_factory(self._factory, plan.model, plan.shape.vocab, plan.data.sequence)
        except ModelError:
            raise
        except Exception:  # a constructor that reads its values
            return self.build()

    def build(self) -> nn.Module:
        """The module with its first weights, as the factory makes it; equal on every rank."""
        plan = self._plan
        with _seeded_all(factory_seed(plan)):
            return call_factory(self._factory, plan.model, plan.shape.vocab, plan.data.sequence)

    def fill(self, name: str, module: nn.Module) -> None:
        """Nothing is left to write: the factory has."""

    def prepare_for_training(self, model: nn.Module) -> None:
        """Activation checkpointing of the module's blocks and torch.compile, where the plan says so."""
        if self._plan.numerics.activation_checkpointing:
            recompute_blocks(model)
        if self._plan.numerics.compile:
            model.compile()

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter, tied ones once, and persistent buffer of the module as the factory makes it."""
        module = self.build()
        kept = module.state_dict(keep_vars=True)
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if name in kept:
                yield name, tensor.detach()

    def save(self, folder: Path, weights: Iterable[tuple[str, torch.Tensor]], config_from: nn.Module) -> list[str]:
        """The weights as safetensors in the plan's export dtype. Returns file names.

        Raises ExportError where they are not exactly the module's.
        """
        dtype = DTYPES[self._plan.export.dtype]
        state = config_from.state_dict(keep_vars=True)
        expected = {name for name, _ in config_from.named_parameters()}
        expected |= {name for name, _ in config_from.named_buffers() if name in state}
        seen: set[str] = set()
        unknown: list[str] = []

        def checked() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in weights:
                if name not in expected:
                    unknown.append(name)
                    continue
                seen.add(name)
                tensor = tensor.detach().cpu()
                yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor

        files = write_shards(folder, checked(), self._plan.export.max_shard_bytes)
        missing = sorted(expected - seen)
        if missing or unknown:
            raise ExportError(
                f"the weights are not the module's: {len(missing)} missing {missing[:5]}, unknown {unknown[:5]}"
            )
        return files


def factory_seed(plan: Plan) -> int:
    """What torch's, numpy's and Python's generators stand at when the factory is called."""
    return module_seed(plan.numerics.seed, "")


def call_factory(factory: Factory, model: ModelPlan, vocab: int, sequence: int) -> nn.Module:
    """factory(**model.options); parameters called `vocab` and `sequence` get the plan's where no option says them.

    Raises ModelError naming an option that the factory does not take, or what it returned.
    """
    options = dict(model.options)
    try:
        known = inspect.signature(factory).parameters
        options |= {k: v for k, v in (("vocab", vocab), ("sequence", sequence)) if k in known and k not in options}
        inspect.signature(factory).bind(**options)
    except TypeError as error:
        takes = ", ".join(inspect.signature(factory).parameters) or "no options"
        problem = Problem("model.options", f"do not fit {model.kind}: {error}", options, f"it takes {takes}")
        raise ModelError(problems=[problem]) from error
    made = factory(**options)
    if not isinstance(made, nn.Module):
        rule = f"must return a torch.nn.Module, not {type(made).__name__}"
        raise ModelError(problems=[Problem("model", rule, model.kind, "return the module itself")])
    return made


def load_factory(kind: str) -> Factory:
    """The callable behind `package.module:name`. Raises ModelError where it is none, ConfigError where it is absent."""
    factory: Any = load_object(kind, "model.factory")
    if not callable(factory):
        rule = f"is {type(factory).__name__}, not a function or class that makes a torch.nn.Module"
        raise ModelError(problems=[Problem("model.factory", rule, kind, "name a factory")])
    return cast("Factory", factory)


def callable_layers(module: nn.Module) -> list[LinearLayer]:
    """The linear layers that an adapter can stand beside, in the module's order.

    Left out are those within torch's own attention and encoder layers, which are not called, and those whose weight is
    another layer's too: a merge would change both.
    """
    shared = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    inside = [name for name, part in module.named_modules() if isinstance(part, _READ_NOT_CALLED)]
    return [
        LinearLayer(name, part.in_features, part.out_features)
        for name, part in module.named_modules()
        if isinstance(part, nn.Linear)
        and shared[id(part.weight)] == 1
        and not any(name.startswith(f"{outer}.") or not outer for outer in inside)
    ]


def recompute_blocks(model: nn.Module) -> None:
    """Recompute the blocks of the longest ModuleList in backward. Raises ModelError where the module has none."""
    own: Any = getattr(model, "gradient_checkpointing_enable", None)
    if own is not None:
        own()
        return
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    blocks = max(lists, key=len, default=None)
    if not blocks:
        fix = "put its blocks into an nn.ModuleList, or write train.activation_checkpointing: false"
        raise ModelError(f"{type(model).__name__} has no list of blocks whose activations could be recomputed", fix=fix)
    plain = [block.forward for block in blocks]
    for block in blocks:
        block.forward = types.MethodType(_recomputed(block.forward), block)

    def disable() -> None:
        for block, forward in zip(blocks, plain, strict=True):
            block.forward = forward

    model.__dict__["gradient_checkpointing_disable"] = disable  # as transformers' models call it


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def recomputed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return recomputed


def own_shape(module: nn.Module, kind: str, vocab: int, sequence: int) -> ModelShape:
    """What the planner must know; counts are exact, the widths are read off the layers: estimates of activations."""
    parameters = {id(p): p for p in module.parameters()}
    tables = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
    blocks = max(lists, key=len, default=None) or nn.ModuleList([module])
    table = max(tables, key=lambda part: part.weight.numel(), default=None)
    widths = [layer.in_features for layer in linear] or [1]
    hidden = table.embedding_dim if table is not None else max(set(widths), key=widths.count)
    inner = [max(layer.in_features, layer.out_features) for block in blocks for layer in _linears(block)]
    return ModelShape(
        arch=kind,
        parameters=sum(p.numel() for p in parameters.values()),
        trainable_parameters=sum(p.numel() for p in parameters.values() if p.requires_grad),
        embedding_parameters=sum(part.weight.numel() for part in tables),
        hidden=hidden,
        layers=len(blocks),
        heads=1,
        kv_heads=1,
        head_dim=hidden,
        ffn=max(inner, default=hidden),
        vocab=table.num_embeddings if table is not None else vocab,
        max_sequence=sequence,
        tied=False,
        largest_layer_parameters=max(_count(part) for part in [*blocks, *tables]),
        estimated=True,
        head="whole",
    )


def _linears(module: nn.Module) -> list[nn.Linear]:
    return [part for part in module.modules() if isinstance(part, nn.Linear)]


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@contextmanager
def _seeded_all(seed: int) -> Iterator[None]:
    """torch's, numpy's and Python's generators at `seed` inside, and as they were afterwards."""
    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        with seeded(seed):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
