"""LoRA through PEFT, around a source of the transformers library: pairs of matrices beside frozen linear layers.

Beside a module of the user's own: `headway.model.own_adapter`.

The base model is built and filled by its own source; the pairs are drawn from seeds of their own, by name, so every
strategy and world size starts from the same adapter. The loss inside the model's forward stays as it is: PEFT changes
the layers in place, not the model's class.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

from headway.errors import ExportError, ModelError
from headway.facts.adapters import LinearLayer, chosen_layers
from headway.model.huggingface import HuggingFaceSource
from headway.model.initial import module_seed
from headway.model.naming import PAIR, mark_adapted, plain_name
from headway.model.skeleton import linear_layers
from headway.plan.schema import Plan

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # of every name in PEFT's files


class LoraSource:
    """A ModelSource around the plan's own; the module that it builds trains the adapter only.

    Raises:
        ModelError: when it is made, a target that means no linear layer, and what the base's source refuses.
    """

    _task_type: str | None = "CAUSAL_LM"  # by which PEFT loads its files

    def __init__(self, plan: Plan):
        self.base = HuggingFaceSource(plan)
        self._settle(plan, linear_layers(self.base.skeleton))
        first = self.base.skeleton.get_submodule(self.layers[0].name)
        self._transposed = isinstance(first, Conv1D)  # weights as [inputs, outputs]

    def _settle(self, plan: Plan, linear: Sequence[LinearLayer]) -> None:
        if plan.adapter is None:
            raise ModelError("the plan holds no adapter", fix="make the plan again")
        self._plan, self.adapter, self._linear = plan, plan.adapter, linear
        self.layers = chosen_layers(linear, plan.adapter.targets)
        self._names = {layer.name for layer in self.layers}

    def build(self) -> nn.Module:
        """The base with PEFT's layers in it, everything but their pairs frozen, nothing initialised."""
        from peft import inject_adapter_in_model

        model = self._base_model()
        with without_old_names():
            inject_adapter_in_model(self._config(), model)
        mark_adapted(model)
        return model

    def _base_model(self) -> nn.Module:
        return self.base.build()

    def _config(self) -> Any:
        from peft import LoraConfig

        ends = {layer.name.rpartition(".")[2] for layer in self.layers}
        others = {layer.name for layer in self._linear} - self._names
        whole = any(name.rpartition(".")[2] in ends for name in others)  # the short names would mean others too
        return LoraConfig(
            r=self.adapter.rank,
            lora_alpha=self.adapter.alpha,  # pyright: ignore[reportArgumentType]
            lora_dropout=self.adapter.dropout,
            target_modules=sorted(self._names if whole else ends),
            fan_in_fan_out=self._transposed,
            init_lora_weights=False,  # `fill` draws them, also where PEFT sees a partitioned parameter of no elements
            task_type=self._task_type,
        )

    def fill(self, name: str, module: nn.Module) -> None:
        """See `headway.model.seam.ModelSource.fill`."""
        plain = plain_name(name)
        layer, _, part = plain.rpartition(".")
        if layer in self._names and part in PAIR:
            if isinstance(module, nn.Linear):
                self._draw(plain, part, module.weight)
        elif layer not in self._names or not part.startswith("lora_"):
            self.base.fill(plain, module)

    def _draw(self, name: str, part: str, weight: torch.Tensor) -> None:
        """As PEFT draws them: A uniformly, as a linear layer is by default, B zero: training starts at the base."""
        if weight.device.type == "meta" or weight.numel() == 0:
            raise ValueError(f"{name} is not whole: gather and materialise it before it is filled")
        values = torch.zeros(weight.shape)
        if part == "lora_A":
            generator = torch.Generator().manual_seed(module_seed(self._plan.numerics.seed, name))
            bound = 1 / math.sqrt(weight.shape[1])
            values.uniform_(-bound, bound, generator=generator)
        with torch.no_grad():
            weight.copy_(values)

    def prepare_for_training(self, model: nn.Module) -> None:
        """As the base's source does. Layers are recomputed non-reentrantly, which needs no gradient at their input."""
        self.base.prepare_for_training(model)

    def save(self, folder: Path, weights: Iterable[tuple[str, torch.Tensor]], config_from: nn.Module) -> list[str]:
        """The base's folder with the adapter added into its weights; `weights` are the adapter's."""
        return self.save_merged(folder, self.merged(dict(weights)), config_from)

    def save_merged(
        self, folder: Path, merged: Iterable[tuple[str, torch.Tensor]], config_from: nn.Module
    ) -> list[str]:
        """The folder of what `merged` gives. Returns the file names."""
        return self.base.save(folder, merged, config_from)

    def merged(self, adapter: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Each weight of the base, read anew, with its pair's product added in fp32.

        Raises ExportError where the pairs are not exactly those of the adapter.
        """
        pairs = {f"{name}.{part}.weight" for name in self._names for part in PAIR}
        wrong = sorted(pairs ^ adapter.keys())
        if wrong:
            raise ExportError(f"the weights are not the adapter's: {len(wrong)} missing or unknown {wrong[:5]}")
        for name, value in self.base.weights():
            layer, _, local = name.rpartition(".")
            if layer in self._names and local == "weight":
                a, b = (adapter[f"{layer}.{part}.weight"].detach().cpu().float() for part in PAIR)
                change = self.adapter.scale * (b @ a)
                value = value.float() + (change.t() if self._transposed else change)
            yield name, value

    def pairs(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Of a run's weights, those of the adapter."""
        return {name: value for name, value in weights.items() if name.rpartition(".")[0].endswith(PAIR)}

    def save_adapter(self, folder: Path, adapter: Mapping[str, torch.Tensor]) -> list[str]:
        """A folder that `peft.PeftModel.from_pretrained` loads beside the base. Returns the file names."""
        tensors = {f"{PREFIX}{name}": value.detach().cpu().contiguous() for name, value in adapter.items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        config = self._config()
        config.base_model_name_or_path, config.revision = base_name(self._plan)
        config.init_lora_weights = True
        config.inference_mode = True
        config.save_pretrained(str(folder))
        return [WEIGHTS, CONFIG]


@contextmanager
def without_old_names() -> Iterator[None]:
    """No warning on the screen that PEFT 0.21 asks transformers by a name that 5.24 has changed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield


def base_name(plan: Plan) -> tuple[str | None, str | None]:
    """(the base's Hub id, its revision) where it lies in the Hub's cache, else (its folder, None)."""
    path = Path(plan.model.path) if plan.model.path else None
    if path is None:
        return None, None
    repository = path.parent.parent.name
    if path.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.removeprefix("models--").replace("--", "/"), plan.model.revision
    return str(path), None
