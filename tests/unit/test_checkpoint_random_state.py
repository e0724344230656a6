"""Random states come back through JSON so that every generator goes on where it was."""

from __future__ import annotations

import json
import random

import numpy as np
import torch

from headway.checkpoint.random_state import (
    capture_random_state,
    decode_random_state,
    encode_random_state,
    restore_random_state,
)


def draw() -> tuple[list[float], list[float], list[float]]:
    mixed = [random.random(), random.gauss(0, 1), float(random.getrandbits(70))]
    return mixed, np.random.normal(size=3).tolist(), torch.nn.functional.dropout(torch.ones(20)).tolist()


def test_every_generator_goes_on_to_the_bit() -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    random.gauss(0, 1)  # leaves a second value in hand, as numpy's does
    np.random.normal()
    text = json.dumps(encode_random_state(capture_random_state()))
    expected = draw()
    assert draw() != expected
    restore_random_state(decode_random_state(json.loads(text)))
    assert draw() == expected


def test_a_cpu_device_has_no_cuda_state() -> None:
    assert capture_random_state(torch.device("cpu")).torch_cuda is None


def test_a_cuda_state_is_left_alone_on_a_cpu() -> None:
    state = capture_random_state()
    with_cuda = decode_random_state({**encode_random_state(state), "torch_cuda": "AAAA"})
    assert with_cuda.torch_cuda is not None
    restore_random_state(with_cuda, torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), state.torch_cpu)
