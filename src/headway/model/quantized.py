"""QLoRA: LoRA beside a base whose linear layers are held in 4 bits (Dettmers et al. 2023, through bitsandbytes).

Every linear layer but the output head is frozen in 4 bits; embeddings, norms and head stay as LoRA has them: in fp32
under `single` and `ddp`, which is what PEFT's `prepare_model_for_kbit_training` makes of them, and in the training
precision under DeepSpeed. Each matrix is read from the folder and quantised for itself, so the device never holds the
base whole, and equally on every rank and at every resume: a checkpoint holds the adapter only.

Under ZeRO-3 the packed weights are partitioned like any others, packed into numbers of the training precision as PEFT
documents it (`bnb_4bit_quant_storage`); their scales stay whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from headway.errors import ModelError
from headway.model.adapter import LoraSource
from headway.model.huggingface import DTYPES
from headway.model.naming import base_shape, mark_held, plain_name
from headway.model.skeleton import linear_layers
from headway.plan.quantizing import BLOCK
from headway.plan.schema import AdapterPlan, Plan


@dataclass(frozen=True)
class Quantizer:
    """Makes 4-bit layers. stored: what weights are rounded to before they are quantised, and dequantised to."""

    kind: str
    double: bool
    stored: torch.dtype
    compute: torch.dtype

    def empty(self, layer: Any) -> Any:
        """A layer of the same shape and bias that holds no weights yet, and takes no memory for them."""
        from headway.model.four_bits import HeldLinear

        shape, device = layer.weight.shape, layer.weight.device
        outputs, inputs = reversed(shape) if isinstance(layer, Conv1D) else shape
        bias: Any = getattr(layer, "bias", None)
        made: Any = HeldLinear(
            inputs,
            outputs,
            bias=False,
            compute_dtype=self.compute,
            compress_statistics=self.double,
            quant_type=self.kind,
            device="meta",
        )
        made.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        made.weight = self._weight(torch.empty(0, dtype=torch.uint8, device=device))
        mark_held(made, tuple(shape))
        return made

    def fill(self, layer: Any, weight: torch.Tensor) -> None:
        """Quantise a weight [outputs, inputs] on the layer's device, packed into the dtype of its empty weight.

        Raises ModelError on a CPU whose kernel would take other blocks' scales for it, and where the packed weight is
        no whole number of that dtype.
        """
        from bitsandbytes.functional import quantize_4bit

        device, storage = layer.weight.device, layer.weight.dtype
        if device.type == "cpu" and layer.in_features % BLOCK:
            # bitsandbytes 0.50.2 there restarts its blocks at each row: values of up to twice the weight came back.
            rule = f"a CPU dequantises rows of {layer.in_features} weights wrongly, which are no multiple of {BLOCK}"
            raise ModelError(rule, fix="do this on a machine with a GPU")
        if tuple(weight.shape) != (layer.out_features, layer.in_features):
            raise ValueError(f"a weight of {list(weight.shape)} for {layer.out_features} x {layer.in_features}")
        if storage.itemsize > 1 and weight.numel() % (2 * storage.itemsize):
            rule = f"a layer of {layer.out_features} x {layer.in_features} weights cannot be packed into {storage}"
            raise ModelError(rule, fix="strategy=zero-2")
        packed, state = quantize_4bit(
            weight.to(device, self.stored).contiguous(),
            blocksize=BLOCK,
            compress_statistics=self.double,
            quant_type=self.kind,
            quant_storage=storage,
        )
        layer.weight, layer.quant_state = self._weight(packed), state

    def _weight(self, packed: torch.Tensor) -> nn.Parameter:
        """A plain parameter, which every strategy knows, with what PEFT asks of one of bitsandbytes' own."""
        weight: Any = nn.Parameter(packed, requires_grad=False)
        weight.compress_statistics, weight.quant_type = self.double, self.kind
        return weight


def quantizer_of(plan: Plan, compute: torch.dtype | None = None) -> Quantizer:
    """The plan's: weights are stored, and products computed, in its training precision unless `compute` says else."""
    asked, precision = _quantised(plan), DTYPES[plan.numerics.precision]
    return Quantizer(asked.quantization or "nf4", asked.double_quantization, precision, compute or precision)


def _quantised(plan: Plan) -> AdapterPlan:
    if plan.adapter is None or plan.adapter.quantization is None:
        raise ModelError("the plan holds no base in 4 bits", fix="make the plan again")
    return plan.adapter


def building_device(plan: Plan) -> torch.device:
    """Where a run's model is built after it: on the host; a base in 4 bits where it was trained, if a GPU is here."""
    held = plan.adapter is not None and plan.adapter.quantization is not None
    if held and plan.launch.device == "cuda" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _by_outputs(layer: nn.Module, weight: torch.Tensor) -> torch.Tensor:
    """The weight as [outputs, inputs], whichever way round its own layer has it."""
    return weight.t() if isinstance(layer, Conv1D) else weight


def held_layers(model: nn.Module) -> dict[str, Any]:
    """The layers that are held in 4 bits by their names in the base."""
    return {plain_name(name): part for name, part in model.named_modules() if base_shape(part) is not None}


def hold_in_4_bits(model: nn.Module, quantizer: Quantizer, device: torch.device) -> None:
    """Replace every linear layer of a whole plain model but its head, one after the other, and move it to `device`."""
    for layer in linear_layers(model):
        whole: Any = model.get_submodule(layer.name)
        made = quantizer.empty(whole).to(device)
        quantizer.fill(made, _by_outputs(whole, whole.weight.detach()))
        model.set_submodule(layer.name, made)
    model.to(device)


class QloraSource(LoraSource):
    """LoRA's source around a base in 4 bits."""

    fills_first = True  # see `headway.model.seam.ModelSource`: what is packed follows from all of the weight

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self.quantizer = quantizer_of(plan)
        self.held = [layer.name for layer in linear_layers(self.base.skeleton)]

    def _base_model(self) -> nn.Module:
        model = self.base.build()
        for name in self.held:
            model.set_submodule(name, self.quantizer.empty(model.get_submodule(name)))
        model.__dict__["is_loaded_in_4bit"] = True  # by which PEFT takes its own 4-bit layer
        return model

    def fill(self, name: str, module: nn.Module) -> None:
        """See `headway.model.seam.ModelSource.fill`: a 4-bit layer is quantised where it stands."""
        if base_shape(module) is None:
            super().fill(name, module)
            return
        for local, value in self.base.values(plain_name(name), module):
            if local == "weight":
                skeleton = self.base.skeleton.get_submodule(plain_name(name))
                self.quantizer.fill(module, _by_outputs(skeleton, value))
            else:
                with torch.no_grad():
                    getattr(module, local).copy_(value)

    def prepare_for_training(self, model: nn.Module) -> None:
        """As the base's source does. Raises ModelError where a layer was left without its weights."""
        empty = [name for name, part in held_layers(model).items() if part.quant_state is None]
        if empty:
            raise ModelError(f"{len(empty)} layers of the base were not quantised: {', '.join(empty[:5])}")
        super().prepare_for_training(model)

    @contextmanager
    def whole_base(self, model: nn.Module) -> Iterator[None]:
        """While the block runs, the model computes with the base's own weights: each is read as its layer is reached.

        Inputs and outputs as in 4 bits, so that nothing differs but the quantisation.
        """
        layers = held_layers(model)
        for name, part in layers.items():
            part.forward = self._whole_forward(name, part)
        try:
            yield
        finally:
            for part in layers.values():
                del part.forward
            self.base.close()

    def _whole_forward(self, name: str, part: Any) -> Any:
        dtype = self.quantizer.compute
        skeleton = self.base.skeleton.get_submodule(name)

        def forward(x: torch.Tensor) -> torch.Tensor:
            weight = _by_outputs(skeleton, dict(self.base.values(name, skeleton))["weight"]).to(x.device, dtype)
            bias = None if part.bias is None else part.bias.to(dtype)
            return F.linear(x.to(dtype), weight, bias).to(x.dtype)

        return forward
