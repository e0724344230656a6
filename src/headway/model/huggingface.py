"""Models of the transformers library: an architecture from its config, or a pretrained folder."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, revert_weight_conversion

from headway.errors import ExportError, ModelError, Problem
from headway.facts.generation import FILE as GENERATION
from headway.facts.generation import idle_settings, read_generation
from headway.model.attention import IMPLEMENTATIONS
from headway.model.heads import specialise_head, with_loss
from headway.model.initial import Initialiser
from headway.model.packing import why_documents_mix
from headway.model.pretrained import PretrainedWeights
from headway.model.shards import write_shards
from headway.model.skeleton import (
    build_empty,
    build_skeleton,
    model_class,
    read_config,
    saved_tensors,
    tied_names,
)
from headway.plan.schema import Plan

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class HuggingFaceSource:
    """The ModelSource of kinds `config` (fresh weights) and `pretrained` (a folder with safetensors).

    Raises:
        ModelError: when it is made, an unknown architecture, a config or generation config that transformers refuses,
            or an attention that this architecture does not have; at the first `fill`, a folder whose weights are not
            the model's.
    """

    def __init__(self, plan: Plan):
        self._plan = plan
        self._folder = Path(plan.model.path) if plan.model.path else None
        self.config = read_config(plan.model.config or _config_of(self._folder))
        self._kind = model_class(self.config, plan.task.kind)
        _require_fit(plan, self._kind, self.config)
        self.config._attn_implementation = _implementation(plan, self._kind)
        self.skeleton: PreTrainedModel = build_skeleton(self._kind, copy.deepcopy(self.config))
        _require_packing(plan, self.skeleton)
        self._tied = tied_names(self.skeleton)
        self._generation = _generation_of(self._folder)

    @cached_property
    def _pretrained(self) -> PretrainedWeights | None:
        # Not before it is asked for: a checkpoint is exported without the folder that the run began from.
        if self._folder is None:
            return None
        return PretrainedWeights(self._folder, self.skeleton, body_only=self._plan.model.fresh_head)

    @cached_property
    def _initialiser(self) -> Initialiser:
        return Initialiser(self.skeleton, self._plan.numerics.seed)

    def build(self) -> nn.Module:
        """The transformers model in fp32, ties in place, nothing initialised; of a language model, its forward also
        takes targets.

        Works on the meta device and under DeepSpeed's partitioning: whatever context is active makes the parameters.
        """
        if self._plan.task.kind == "classification":
            return build_empty(self._kind, copy.deepcopy(self.config))
        model = build_empty(with_loss(self._kind), copy.deepcopy(self.config))
        specialise_head(self._kind, self.skeleton, model)
        return model

    def fill(self, name: str, module: nn.Module) -> None:
        """See `headway.model.seam.ModelSource.fill`. Tied parameters are written where the tie points to.

        Raises ValueError where a parameter is not whole (partitioned, or still on the meta device).
        """
        for local, value in self.values(name, module):
            target = module._parameters.get(local)
            target = module._buffers[local] if target is None else target
            if target is None or target.device.type == "meta" or target.shape != value.shape:
                raise ValueError(f"{name}.{local} is not whole: gather and materialise it before it is filled")
            if local in module._buffers and target.dtype != value.dtype:
                # A half-precision context has rounded what the constructor computed.
                module._buffers[local] = value.to(target.device)
            else:
                with torch.no_grad():
                    target.copy_(value)

    def values(self, name: str, module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """(local name, value) of what stands directly in `module` (called `name`), tied parameters left out."""
        direct = [local for local, tensor in {**module._parameters, **module._buffers}.items() if tensor is not None]
        if direct and self._pretrained is None:
            yield from self._initialiser.values(name).items()
            return
        for local in direct:
            full = f"{name}.{local}" if name else local
            if self._pretrained is None or full in self._tied:
                continue
            if self._pretrained.holds(full):
                yield local, self._pretrained.read(full)
            elif local in module._buffers:
                yield local, self.skeleton.get_buffer(full)
            else:  # of a head that the folder does not hold
                yield local, self._initialiser.values(name)[local]

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What `fill` would write, as a saved model holds it: each parameter once, persistent buffers, on the host."""
        saved = saved_tensors(self.skeleton)
        for name, module in self.skeleton.named_modules():
            for local, value in self.values(name, module):
                full = f"{name}.{local}" if name else local
                if full in saved:
                    yield full, value

    def prepare_for_training(self, model: nn.Module) -> None:
        """Activation checkpointing (non-reentrant) and torch.compile of the body, where the plan says so."""
        inner: Any = model
        self.close()
        if self._plan.numerics.activation_checkpointing:
            enable_checkpointing(inner)
        if self._plan.numerics.compile:
            getattr(inner, inner.base_model_prefix).compile()  # the head chooses its rows: another shape each time

    def close(self) -> None:
        """Let go of the folder's files; they are opened again when something is read."""
        if self._folder is not None and self._pretrained is not None:
            self._pretrained.close()

    def save(self, folder: Path, weights: Iterable[tuple[str, torch.Tensor]], config_from: nn.Module) -> list[str]:
        """Weights in the plan's export dtype and the configs that plain transformers reads. Returns file names.

        Raises ExportError where the weights are not exactly the model's.
        """
        dtype = DTYPES[self._plan.export.dtype]
        expected = saved_tensors(self.skeleton)
        tensors = self._canonical(weights, expected, dtype)
        conversions = self._conversions()
        if conversions:  # stored names are made of several tensors: they must be at hand together
            tensors = iter(revert_weight_conversion(self.skeleton, dict(tensors)).items())
        files = write_shards(folder, tensors, self._plan.export.max_shard_bytes)
        return files + self._save_configs(folder, dtype)

    def _canonical(
        self, weights: Iterable[tuple[str, torch.Tensor]], expected: dict[str, torch.Tensor], dtype: torch.dtype
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Each tensor once, under the name that its tie points to, in the export's dtype; nothing lost, nothing new."""
        seen: set[str] = set()
        unknown: list[str] = []
        for given, tensor in weights:
            name = self._tied.get(given, given)
            if name in seen:
                continue
            if name not in expected or tensor.shape != expected[name].shape:
                unknown.append(f"{given} {list(tensor.shape)}")
                continue
            seen.add(name)
            tensor = tensor.detach().cpu()
            yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor
        missing = sorted(expected.keys() - seen)
        if missing or unknown:
            raise ExportError(
                f"the weights are not the model's: {len(missing)} missing {missing[:5]}, "
                f"{len(unknown)} unknown or of another shape {unknown[:5]}"
            )

    def _conversions(self) -> list[Any]:
        """The rules from stored names to the model's, where saving has to turn any of them round."""
        used = getattr(self.skeleton, "_weight_conversions", None)
        if used is not None:
            return used
        rules = get_model_conversion_mapping(self.skeleton, add_legacy=False)
        return [rule for rule in rules if not isinstance(rule, PrefixChange)]

    def _save_configs(self, folder: Path, dtype: torch.dtype) -> list[str]:
        config = copy.deepcopy(self.config)
        config.architectures = [self._kind.__name__]
        config.dtype = dtype
        config._attn_implementation = None
        config.save_pretrained(folder)
        written = ["config.json"]
        generation = self._generation_config()
        if generation is not None:
            generation.save_pretrained(folder)
            written.append("generation_config.json")
        return written

    def _generation_config(self) -> GenerationConfig | None:
        if self._generation is not None:
            return copy.deepcopy(self._generation)
        if not self._kind.can_generate():
            return None
        return copy.deepcopy(self.skeleton.generation_config)


def enable_checkpointing(model: Any) -> None:
    """Recompute each layer in backward. Raises ModelError where the architecture has no such layers."""
    arguments = {"use_reentrant": False}
    try:
        if hasattr(model, "activation_checkpointing_enable"):  # its older name warns since transformers 5.24
            model.activation_checkpointing_enable(arguments)
        else:
            model.gradient_checkpointing_enable(arguments)
    except ValueError as error:
        fix = "write train.activation_checkpointing: false"
        raise ModelError(f"{type(model).__name__} cannot recompute its activations: {error}", fix=fix) from error


def _generation_of(folder: Path | None) -> GenerationConfig | None:
    """The folder's generation config without what contradicts the rest. Raises ModelError: now, not after training."""
    said = read_generation(folder) if folder is not None else None
    if said is None:
        return None
    idle = idle_settings(said)
    try:
        config = GenerationConfig.from_dict({name: value for name, value in said.items() if name not in idle})
        config.validate(strict=True)
    except (ValueError, TypeError) as error:
        rule = f"{folder}: transformers refuses its {GENERATION}: {' '.join(str(error).split())}"
        raise ModelError(
            rule, fix="correct that file, or take it away: it is for generating, not for training"
        ) from error
    return config


def _config_of(folder: Path | None) -> dict[str, Any]:
    if folder is None:
        raise ModelError("the plan names neither a config nor a folder of the model", fix="make the plan again")
    try:
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'} cannot be read: {error}", fix="check model.from") from error


def _implementation(plan: Plan, kind: type[PreTrainedModel]) -> str:
    """transformers' name of the attention. Architectures with attention code of their own (or none) know two names."""
    if plan.task.kind == "classification":  # padded, not packed, and maybe both ways: transformers' own kernels
        return "sdpa" if plan.model.attention == "sdpa" and kind._supports_sdpa else "eager"
    if kind._supports_attention_backend:
        return IMPLEMENTATIONS[plan.model.attention]
    return "sdpa" if plan.model.attention == "sdpa" and kind._supports_sdpa else "eager"


def _require_fit(plan: Plan, kind: type[PreTrainedModel], config: Any) -> None:
    """The plan's attention must exist for this architecture and device; stored weights must be plain numbers."""
    problems: list[Problem] = []
    chosen, name = plan.model.attention, config.model_type
    capped = getattr(config, "attn_logit_softcapping", None) is not None
    if chosen == "sdpa" and kind._supports_attention_backend and (capped or not kind._supports_sdpa):
        rule = f"{name} has an attention that PyTorch's SDPA does not compute (a soft cap, or sinks)"
        problems.append(Problem("model.attention", rule, chosen, "write model.attention: eager (or flex on a GPU)"))
    if chosen == "flash" and (plan.launch.device != "cuda" or plan.numerics.precision == "fp32"):
        rule = "flash attention needs a GPU and bf16 or fp16"
        problems.append(Problem("model.attention", rule, chosen, "write model.attention: sdpa"))
    if chosen == "flex" and plan.launch.device != "cuda":
        rule = "flex attention has no backward pass on a CPU"
        problems.append(Problem("model.attention", rule, chosen, "write model.attention: sdpa"))
    if getattr(config, "quantization_config", None) is not None:
        rule = "its weights are quantised: they cannot be trained as they are"
        problems.append(Problem("model.from", rule, plan.model.path, "take the model's unquantised weights"))
    if problems:
        raise ModelError(problems=problems)


def _require_packing(plan: Plan, skeleton: PreTrainedModel) -> None:
    """The documents of one window must be kept apart by this architecture."""
    if not plan.data.packing:
        return
    why = why_documents_mix(skeleton, plan.model.attention)
    if why:
        rule = f"{skeleton.config.model_type} would let documents of one window see each other: {why}"
        raise ModelError(problems=[Problem("data.packing", rule, True, "write data.packing: false")])
