"""The random states of one rank, as plain JSON, so that dropout and shuffling go on to the bit."""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch


@dataclass(frozen=True)
class RandomState:
    """The states of python's `random`, numpy's global generator, torch on the CPU and on this rank's CUDA device.

    The torch states are uint8 tensors on the host; torch_cuda is None where no CUDA device was used.
    """

    python: tuple[Any, ...]
    numpy: tuple[Any, ...]
    torch_cpu: torch.Tensor
    torch_cuda: torch.Tensor | None = None


def capture_random_state(device: torch.device | None = None) -> RandomState:
    """The states now; `device` is this rank's device, whose generator is taken when it is a CUDA device."""
    on_cuda = device is not None and device.type == "cuda"
    return RandomState(
        python=random.getstate(),
        numpy=cast("tuple[Any, ...]", np.random.get_state()),
        torch_cpu=torch.get_rng_state(),
        torch_cuda=torch.cuda.get_rng_state(device) if device is not None and on_cuda else None,
    )


def restore_random_state(state: RandomState, device: torch.device | None = None) -> None:
    """Set the states. A CUDA state is set only where this rank's device is one (a run may move to a CPU)."""
    random.setstate(state.python)
    np.random.set_state(state.numpy)
    torch.set_rng_state(state.torch_cpu)
    if state.torch_cuda is not None and device is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state.torch_cuda, device)


def encode_random_state(state: RandomState) -> dict[str, Any]:
    """As JSON: numbers as they are (JSON keeps a float's every digit), byte states in base64."""
    version, internal, gauss = state.python
    name, keys, position, has_gauss, cached = state.numpy
    return {
        "python": [version, list(internal), gauss],
        "numpy": [name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "torch_cpu": _encode(state.torch_cpu),
        "torch_cuda": None if state.torch_cuda is None else _encode(state.torch_cuda),
    }


def decode_random_state(data: dict[str, Any]) -> RandomState:
    version, internal, gauss = data["python"]
    name, keys, position, has_gauss, cached = data["numpy"]
    return RandomState(
        python=(version, tuple(internal), gauss),
        numpy=(name, np.array(keys, dtype=np.uint32), position, has_gauss, cached),
        torch_cpu=_decode(data["torch_cpu"]),
        torch_cuda=None if data["torch_cuda"] is None else _decode(data["torch_cuda"]),
    )


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.cpu().numpy().tobytes()).decode()


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
