"""Imported by the server that CPU ranks are forked from: everything heavy, once, before any thread or process group."""

from __future__ import annotations

from headway.train import environment

environment.prepare("cpu")

import deepspeed  # noqa: E402, F401
import torch  # noqa: E402, F401
import transformers  # noqa: E402, F401

environment.after_import()

import headway.train.worker  # noqa: E402, F401
