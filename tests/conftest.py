"""What holds for every test: one thread a process, no network, no GPU unless asked for, warnings are errors."""

from __future__ import annotations

import os
import shutil

import pytest

# Before torch, DeepSpeed or huggingface_hub is imported, and inherited by every process that a test starts.
DEFAULTS = {
    "DS_ACCELERATOR": "cpu",  # otherwise DeepSpeed looks for every accelerator that it knows
    "OMP_NUM_THREADS": "1",  # two processes of one thread beat one of two
    "MKL_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

# Warnings of other packages that no line of Headway can avoid, each with the reason.
UPSTREAM_WARNINGS = (
    # torch deprecates the name, DeepSpeed still reads it while it is imported
    r"ignore:.*torch\.distributed\.reduce_op.*:FutureWarning",
    # SQLAlchemy 2.1 deprecates a loading strategy that MLflow 3.17 still uses
    r"ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning",
    # transformers renamed it in 5.24, PEFT 0.21 still asks by the older name
    r"ignore:`is_gradient_checkpointing` is deprecated.*:FutureWarning",
)


def pytest_configure(config: pytest.Config) -> None:
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    for line in UPSTREAM_WARNINGS:
        config.addinivalue_line("filterwarnings", line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if shutil.which("nvidia-smi"):
        return
    skip = pytest.mark.skip(reason="needs a CUDA device; this machine has no NVIDIA driver")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def probe_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are probed in this process, which has torch imported already."""
    from fakes.probing import IN_THIS_PROCESS

    monkeypatch.setattr("headway.facts.probing.subprocess", IN_THIS_PROCESS)
