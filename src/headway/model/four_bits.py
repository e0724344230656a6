"""A linear layer whose weight is held in 4 bits. It imports bitsandbytes: `headway.model.quantized` asks for it."""

from __future__ import annotations

from typing import Any

import torch
from bitsandbytes.autograd._functions import matmul_4bit
from bitsandbytes.functional import QuantState, dequantize_4bit
from bitsandbytes.nn.modules import Linear4bit


class _Product(torch.autograd.Function):
    """bitsandbytes' products, forward and backward, with the weight saved as the parameter that it is.

    Its own function (0.50.2) keeps a view of the weight on its context: under ZeRO-3 the gathered weights of 25 of 28
    layers and more were alive after the forward pass, with and without recomputation, where DeepSpeed was to keep none.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, state: QuantState
    ) -> torch.Tensor:
        ctx.save_for_backward(packed)
        ctx.state = state
        return matmul_4bit(x, packed, state, bias=bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (packed,) = ctx.saved_tensors
        whole = dequantize_4bit(packed, ctx.state)
        return torch.matmul(grads[0], whole.to(grads[0].dtype)), None, None, None


class HeldLinear(Linear4bit):
    """`weight`: packed, a plain parameter of any dtype, which ZeRO-3 may partition; `quant_state`: its scales, whole.

    Input and output have the caller's dtype, the product is computed in `compute_dtype`.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(self.compute_dtype)
        return _Product.apply(x.to(self.compute_dtype), self.weight, bias, self.quant_state).to(x.dtype)
