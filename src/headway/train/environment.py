"""What must be set in a rank before anything heavy is imported, and around the import of DeepSpeed."""

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
    _leave_foreign_service()
    for message in _UPSTREAM:
        warnings.filterwarnings("ignore", message=message)


def _leave_foreign_service() -> None:
    """Forget a W&B service that another process started and passed on in the environment (a notebook, a sweep).

    Such a service outlives a killed rank and holds that rank's run as in use, so the resumed one could not open it.
    Its name is `version-pid-kind-address`.
    """
    owner = os.environ.get("WANDB_SERVICE", "").split("-")[1:2]
    if owner and owner != [str(os.getpid())]:
        del os.environ["WANDB_SERVICE"]


def after_import() -> None:
    """After the import: no compiling behind the user's back.

    The first process group on a CPU would compile a shared-memory op: 100 CPU-seconds without a word, and a lock that
    hangs every later start if it is killed. Gloo does the same work.
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # pyright: ignore[reportAttributeAccessIssue]
