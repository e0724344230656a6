"""A model without weights: parameters on the meta device, buffers real. It answers what the whole model would.

Buffers are computed by the architecture's own constructor on the host, so what it derives (rotary frequencies, masks)
is exact; a model built on the meta device, or in the half precision of DeepSpeed's partitioning, has no such values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights
from transformers.pytorch_utils import Conv1D

from headway.errors import ModelError, Problem
from headway.facts.adapters import LinearLayer

# Task kind -> which head the model gets; other tasks get a language model.
AUTO_CLASSES: dict[str, Any] = {
    "causal_lm": AutoModelForCausalLM,
    "instruction": AutoModelForCausalLM,
    "preference": AutoModelForCausalLM,
    "classification": AutoModelForSequenceClassification,
}
_HEADS: dict[Any, str] = {
    AutoModelForCausalLM: "model that continues a text",
    AutoModelForSequenceClassification: "classifier",
}
_OR_CLASSIFY = "; an encoder can be trained with task: classification"


def read_config(config: dict[str, Any]) -> PreTrainedConfig:
    """The transformers config of its JSON form. Raises ModelError: unknown architecture, or a value it refuses."""
    kind = str(config.get("model_type"))
    if kind not in CONFIG_MAPPING:
        rule = "is not an architecture that the installed transformers knows"
        if config.get("auto_map"):
            rule += "; models that bring their own code are not run"
        raise ModelError(problems=[Problem("model_type", rule, kind, "check config.json, or update transformers")])
    try:
        return CONFIG_MAPPING[kind].from_dict(config)
    except (TypeError, ValueError, AttributeError, KeyError, StrictDataclassError) as error:
        said = " ".join(str(error.__cause__ or error).split())
        raise ModelError(f"transformers refuses the {kind} config: {said}", fix="correct the model's config") from error


def model_class(config: PreTrainedConfig, task: str = "causal_lm") -> type[PreTrainedModel]:
    """The class that holds the architecture with the head of the task. Raises ModelError where there is none."""
    auto = AUTO_CLASSES.get(task, AutoModelForCausalLM)
    found = auto._model_mapping.get(type(config), None)
    if found is None:
        both = getattr(config, "is_encoder_decoder", False)
        why = ": it is an encoder with a decoder, and needs both" if both else f" ({auto.__name__} has none)"
        rule = f"transformers has no {_HEADS[auto]} of the architecture {config.model_type}{why}"
        raise ModelError(rule, fix=f"choose another model{'' if task == 'classification' else _OR_CLASSIFY}")
    return found[0] if isinstance(found, tuple | list) else found


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Parameters go to the meta device when a module registers them; buffers stay where they are made."""
    register = nn.Module.register_parameter

    def registered(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and param.device.type != "meta":  # one on meta is being tied: it stays itself
            self._parameters[name] = nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)

    nn.Module.register_parameter = registered
    try:
        yield
    finally:
        nn.Module.register_parameter = register


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """torch's host generator at `seed` inside, and as it was afterwards. Other devices' generators are not touched."""
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)


def build_skeleton(kind: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """The architecture with its ties, parameters on the meta device, buffers on the host.

    Call it outside of every device and partitioning context.
    """
    with seeded(0), torch.device("cpu"), parameters_on_meta():
        return build_empty(kind, config)


def build_empty(kind: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """The architecture in fp32 with its ties; parameters are allocated in the caller's context, not initialised.

    Raises ModelError with transformers' words where it cannot be built from this config.
    """
    try:
        with no_init_weights():
            model = kind._from_config(_config_of(kind, config), dtype=torch.float32)
        model.tie_weights(recompute_mapping=False)
    except (TypeError, ValueError, AttributeError, KeyError, ImportError, RuntimeError) as error:
        said = " ".join(str(error).split())
        raise ModelError(f"a {config.model_type} model cannot be built from this config: {said}") from error
    return model


def _config_of(kind: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedConfig:
    """The class's own: of a model for images and text (llama4) it may be the language model's, as in transformers."""
    return config.get_text_config() if kind.config_class is config.sub_configs.get("text_config") else config


def tied_names(model: nn.Module) -> dict[str, str]:
    """Tied parameter -> the parameter that it is."""
    return dict(getattr(model, "all_tied_weights_keys", None) or {})


def linear_layers(model: nn.Module) -> list[LinearLayer]:
    """Every linear layer but the output head, in the model's order (gpt2's Conv1D is one)."""
    heads: Any = getattr(model, "get_output_embeddings", lambda: None)
    head = heads()
    found: list[LinearLayer] = []
    for name, part in model.named_modules():
        if part is head:
            continue
        if isinstance(part, Conv1D):
            found.append(LinearLayer(name, *part.weight.shape))
        elif isinstance(part, nn.Linear):
            found.append(LinearLayer(name, part.in_features, part.out_features))
    return found


def saved_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """What a saved model holds: parameters and persistent buffers by name, each tied parameter once."""
    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    tied = tied_names(model)
    state = model.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in state.items() if name not in tied and name not in ignored}
