"""A causal language model that can give the sum of its loss instead of its logits.

`model(..., targets=...)` runs the body, keeps the positions that have a target, and turns them into a summed cross
entropy, a few at a time. It is one call of the model that the strategy wrapped, so DDP sees one forward pass, and the
head's weight is used inside of the head's own forward, where ZeRO-3 has gathered it. Names of parameters and the
forward pass without targets stay those of the transformers class.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

# More rows at once leave a core's cache: 128 to 256 are the fastest at 8k and 32k entries, 1024 take 1.1 times as long.
_CPU_ROWS = 256


class SummedCrossEntropy(torch.autograd.Function):
    """Sum over n targets of -log softmax(hidden @ weight.T + bias)[target], `chunk` rows of logits at a time.

    The gradients are computed with the logits at hand, so no logits are kept or made twice: at 8k and 32k entries and
    hidden 256 that takes 0.62 and 0.72 of the time of linear + cross_entropy on one core, and chunk x entries x 4 bytes
    in place of 2 x n x entries x 4.
    """

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        hidden: torch.Tensor,  # [n, hidden]
        weight: torch.Tensor,  # [entries, hidden], of hidden's dtype
        bias: torch.Tensor | None,  # [entries]
        targets: torch.Tensor,  # [n] int64
        chunk: int,
    ) -> torch.Tensor:
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_weight else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if wants_bias and bias is not None else None
        total = torch.zeros((), dtype=torch.float64, device=hidden.device)
        for start in range(0, hidden.shape[0], chunk):
            rows, goal = hidden[start : start + chunk], targets[start : start + chunk, None]
            logits = torch.mm(rows, weight.t()) if bias is None else torch.addmm(bias, rows, weight.t())
            logits = logits.float()
            logits -= logits.amax(-1, keepdim=True)
            picked = logits.gather(1, goal)
            sums = logits.exp_().sum(-1, keepdim=True)
            total += (sums.log() - picked).sum(dtype=torch.float64)
            if not (wants_hidden or wants_weight):
                continue
            logits /= sums
            logits.scatter_add_(1, goal, logits.new_full(goal.shape, -1.0))  # d loss / d logits = softmax - one hot
            if grad_bias is not None:
                grad_bias += logits.sum(0)
            slope = logits.to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(slope, weight, out=grad_hidden[start : start + chunk])
            if grad_weight is not None and grad_weight.dtype == slope.dtype:
                grad_weight.addmm_(slope.t(), rows)
            elif grad_weight is not None:
                grad_weight += torch.mm(slope.t(), rows)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.dtypes = (weight.dtype, None if bias is None else bias.dtype)
        return total.float()

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # pyright: ignore
        hidden, weight, bias = ctx.saved_tensors
        return (
            None if hidden is None else hidden * grad_output.to(hidden.dtype),
            None if weight is None else (weight * grad_output).to(ctx.dtypes[0]),
            None if bias is None else (bias * grad_output).to(ctx.dtypes[1]),
            None,
            None,
        )


def summed_cross_entropy(head: nn.Linear, hidden: torch.Tensor, targets: torch.Tensor, chunk: int) -> torch.Tensor:
    """Scalar fp32 sum over hidden [n, hidden] and targets [n]; at most `chunk` rows of logits at once, 0: all."""
    device = hidden.device.type
    rows = min(chunk or hidden.shape[0], _CPU_ROWS if device == "cpu" else hidden.shape[0])
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else head.weight.dtype
    bias = None if head.bias is None else head.bias.to(dtype)
    with torch.autocast(device, enabled=False):
        arguments = hidden.to(dtype), head.weight.to(dtype), bias
        if not torch.is_grad_enabled():
            arguments = tuple(None if tensor is None else tensor.detach() for tensor in arguments)
        result: Any = SummedCrossEntropy.apply(*arguments, targets, max(1, rows))
    return result


class LossHead(nn.Linear):
    """An output head that is nothing but a linear layer; given targets it returns their summed loss."""

    def forward(self, input: torch.Tensor, targets: torch.Tensor | None = None, chunk: int = 0) -> torch.Tensor:
        if targets is None:
            return super().forward(input)
        return summed_cross_entropy(self, input, targets, chunk)


@functools.cache
def with_loss(kind: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """`kind` with a forward that takes targets; everything else, its name included, as it was.

    forward(..., targets [n] int64, kept [n] int64 or None, chunk_tokens) -> {"loss": fp32 scalar}. `kept` are the
    positions of the flattened batch that have a target; None: all of them. With `parts`, {"nats": fp32 [n]}, the loss
    of each target; logits exist for a part of them at once, and are made again in backward.
    """

    @functools.wraps(kind.forward)
    def forward(
        self: Any,
        *args: Any,
        targets: torch.Tensor | None = None,
        kept: torch.Tensor | None = None,
        chunk_tokens: int = 0,
        parts: int = 0,
        **inputs: Any,
    ) -> Any:
        if targets is None:
            return kind.forward(self, *args, **inputs)
        if args:
            raise TypeError("with targets, a model takes its inputs by name")
        if getattr(self, "whole_head", False):
            logits = kind.forward(self, **inputs).logits.flatten(0, 1)
            chosen = logits if kept is None else logits.index_select(0, kept)
            if parts:
                return {"nats": F.cross_entropy(chosen.float(), targets, reduction="none")}
            return {"loss": F.cross_entropy(chosen.float(), targets, reduction="sum")}
        if parts:
            return {"nats": _nats(kind, self, _kept_states(self, inputs, kept), targets, parts)}
        return {"loss": _loss(kind, self, inputs, targets, kept, chunk_tokens)}

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__, "__doc__": kind.__doc__})


def _loss(
    kind: type[PreTrainedModel],
    model: PreTrainedModel,
    inputs: dict[str, Any],
    targets: torch.Tensor,
    kept: torch.Tensor | None,
    chunk: int,
) -> torch.Tensor:
    body: Any = getattr(model, model.base_model_prefix)
    hidden = body(**inputs).last_hidden_state.flatten(0, 1)
    # As many parts on every rank, whatever its number of targets: ZeRO-3 gathers the head's weight for each of them.
    parts = -(-hidden.shape[0] // chunk) if chunk else 1
    if kept is not None:
        hidden = hidden.index_select(0, kept)
    head = model.get_output_embeddings()
    if type(head) is LossHead:
        return head(hidden, targets, chunk)
    losses = [
        checkpoint(_head_loss, kind, model, rows, goal, use_reentrant=False)
        if chunk
        else _head_loss(kind, model, rows, goal)
        for rows, goal in zip(hidden.tensor_split(parts), targets.tensor_split(parts), strict=True)
    ]
    return torch.stack(losses).sum()  # pyright: ignore[reportArgumentType]


def _kept_states(model: PreTrainedModel, inputs: dict[str, Any], kept: torch.Tensor | None) -> torch.Tensor:
    body: Any = getattr(model, model.base_model_prefix)
    hidden = body(**inputs).last_hidden_state.flatten(0, 1)
    return hidden if kept is None else hidden.index_select(0, kept)


def _nats(
    kind: type[PreTrainedModel], model: PreTrainedModel, hidden: torch.Tensor, targets: torch.Tensor, parts: int
) -> torch.Tensor:
    """fp32 [n]: -log softmax of each target, with graph."""

    def of_part(rows: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(head_logits(kind, model, rows).float(), goal, reduction="none")

    pieces = zip(hidden.tensor_split(parts), targets.tensor_split(parts), strict=True)
    return torch.cat([checkpoint(of_part, rows, goal, use_reentrant=False) for rows, goal in pieces])  # pyright: ignore


def _head_loss(
    kind: type[PreTrainedModel], model: PreTrainedModel, hidden: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    logits = head_logits(kind, model, hidden)
    return F.cross_entropy(logits.float(), targets, reduction="sum")


class _Given:
    """Stands in for a model's body and gives hidden states computed before, so that only the head runs."""

    def __init__(self, body: nn.Module, hidden: torch.Tensor):
        self._body, self._outputs = body, _Outputs(hidden)

    def __call__(self, *args: Any, **kwargs: Any) -> _Outputs:
        return self._outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)


class _Outputs:
    """The output of a body: the hidden states; whatever else a head may look for is None."""

    def __init__(self, hidden: torch.Tensor):
        self.last_hidden_state = hidden

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextmanager
def _body_gives(model: PreTrainedModel, hidden: torch.Tensor) -> Iterator[None]:
    prefix = model.base_model_prefix
    # An instance's own attribute is found before nn.Module's table of submodules, which stays untouched.
    model.__dict__[prefix] = _Given(getattr(model, prefix), hidden)
    try:
        yield
    finally:
        del model.__dict__[prefix]


def head_logits(kind: type[PreTrainedModel], model: PreTrainedModel, hidden: torch.Tensor) -> torch.Tensor:
    """[n, entries] that the architecture's own forward makes of hidden [n, hidden], soft caps and scales included."""
    with _body_gives(model, hidden.unsqueeze(0)):
        return kind.forward(model, use_cache=False, return_dict=True).logits.squeeze(0)


_PLAIN = {
    "view",
    "_unsafe_view",
    "reshape",
    "slice",
    "select",
    "alias",
    "detach",
    "t",
    "transpose",
    "unsqueeze",
    "squeeze",
}


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def head_is_linear(kind: type[PreTrainedModel], skeleton: PreTrainedModel) -> bool:
    """Whether the logits are the output embedding's linear map of the hidden states and nothing else.

    Read off the operations that the head runs on the meta device: gemma2's soft cap or granite's scale show there.
    """
    head = skeleton.get_output_embeddings()
    if type(head) is not nn.Linear:
        return False
    with _Recorder() as recorder:
        if not head_is_separate(kind, skeleton):
            return False
    products = [name for name in recorder.operations if name in ("mm", "addmm")]
    return len(products) == 1 and set(recorder.operations) <= {*_PLAIN, "empty", "mm", "addmm"}


@torch.no_grad()
def head_is_separate(kind: type[PreTrainedModel], skeleton: PreTrainedModel) -> bool:
    """Whether the class's forward runs its body as one call, so that the head can be run on its own."""
    hidden = torch.empty(3, skeleton.config.get_text_config().hidden_size, device="meta")
    try:
        return head_logits(kind, skeleton, hidden).shape[0] == 3
    except (TypeError, ValueError, AttributeError, RuntimeError):  # as opt, which calls a part of its body
        return False


def head_kind(skeleton: PreTrainedModel) -> Literal["linear", "pieces", "capped", "whole"]:
    """What the loss of a model like this one keeps: see ModelShape.head."""
    if head_is_linear(type(skeleton), skeleton):
        return "linear"
    with _Recorder() as recorder:
        if not head_is_separate(type(skeleton), skeleton):
            return "whole"
    return "capped" if "tanh" in recorder.operations else "pieces"


def specialise_head(kind: type[PreTrainedModel], skeleton: PreTrainedModel, model: PreTrainedModel) -> None:
    """Tell a model from `with_loss` what its head allows, as its skeleton shows: the loss inside, rows, or neither."""
    if head_is_linear(kind, skeleton):
        head: Any = model.get_output_embeddings()
        head.__class__ = LossHead
    model.__dict__["whole_head"] = not head_is_separate(kind, skeleton)
