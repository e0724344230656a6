"""What must be set around the import of DeepSpeed, in every process that imports it."""

from __future__ import annotations

import os
import warnings

# Named upstream warnings that a user can do nothing about.
_UPSTREAM = (
    r".*torch\.distributed\.reduce_op.*",
    r".*The pynvml package is deprecated.*",
    # DeepSpeed calls them in every step, and each call would be a line of the log.
    r".*torch\.distributed\.(all_gather_into_tensor|reduce_scatter_tensor).*",
    # Its successor still exchanges the buffers at the start, which differ by nothing.
    r".*`broadcast_buffers` is deprecated.*",
)


def prepare(device: str) -> None:
    """Before the import. On a CPU, DeepSpeed must be told so, or it looks for a GPU first."""
    if device == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "warning")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for message in _UPSTREAM:
        warnings.filterwarnings("ignore", message=message)


def after_import() -> None:
    """After the import: no compiling behind the user's back.

    The first process group on a CPU would compile a shared-memory op: 100 CPU-seconds without a word, and a lock that
    hangs every later start if it is killed. Gloo does the same work.
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # pyright: ignore[reportAttributeAccessIssue]
