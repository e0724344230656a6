"""Imported by the server that CPU ranks are forked from: everything heavy, once, before any thread or process group."""

from __future__ import annotations

import sys

from headway.train import environment

environment.prepare("cpu")

sys.modules["mlflow"] = None  # pyright: ignore[reportArgumentType]  # 1.2 s for DeepSpeed's autotuner, which no run uses
import deepspeed  # noqa: E402

del sys.modules["mlflow"]  # a tracker imports it where it is asked for
import torch  # noqa: E402
import torch._dynamo  # noqa: E402  1 s in each rank's first optimizer otherwise

_compile = torch.compile  # left out, as it brings inductor along, 0.9 s: no run uses Muon, whose functions it compiles
torch.compile = lambda function: function  # pyright: ignore[reportAttributeAccessIssue]
import deepspeed.runtime.zero.muon.original_muon  # noqa: E402, F401  imported by each rank's first engine otherwise

torch.compile = _compile
import transformers  # noqa: E402, F401

environment.after_import()

import headway.train.session  # noqa: E402
import headway.train.worker  # noqa: E402, F401
