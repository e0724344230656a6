"""Imported by the server that CPU ranks are forked from: everything heavy, once, before any thread or process group."""

from __future__ import annotations

import sys

from headway.train import environment

environment.prepare("cpu")

sys.modules["mlflow"] = None  # pyright: ignore[reportArgumentType]  # 1.2 s for DeepSpeed's autotuner, which no run uses
import deepspeed  # noqa: E402

del sys.modules["mlflow"]  # a tracker imports it where it is asked for
import deepspeed.runtime.zero.muon.original_muon  # noqa: E402, F401  3 s in each rank's first engine otherwise
import torch._dynamo  # noqa: E402, F401  as above: the module before it calls torch.compile
import transformers  # noqa: E402, F401

environment.after_import()

import headway.train.session  # noqa: E402
import headway.train.worker  # noqa: E402, F401
