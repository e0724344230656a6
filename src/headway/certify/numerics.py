"""What a certificate is bound to: the part of a plan that changes the computation, and the versions that compute it."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import headway
from headway.plan.schema import Plan

_PACKAGES = ("torch", "deepspeed", "transformers", "safetensors")


def numerics_of(plan: Plan) -> dict[str, Any]:
    """The plan without paths, names, lengths and the number of nodes: a requeue elsewhere keeps its certificate."""
    model = {k: v for k, v in plan.model.config.items() if not k.startswith("_") and k != "transformers_version"}
    code = {name: sha256 for part in plan.code for name, sha256 in part.files.items()}
    own = {"options": plan.model.options, "code": code} if code else {}
    strategy = plan.strategy.model_dump(mode="json")
    schedule = plan.schedule.model_dump(mode="json", include={"kind", "peak_lr", "min_lr"})
    return {
        "model": {"kind": plan.model.kind, "config": model, "attention": plan.model.attention} | own,
        "task": plan.task.model_dump(mode="json"),
        "adapter": plan.adapter and plan.adapter.model_dump(mode="json", exclude={"base"}),
        "data": {"packing": plan.data.packing, "sequence": plan.data.sequence},
        "batch": {"micro_batch": plan.batch.micro_batch, "accumulated": plan.batch.accumulation > 1},
        "schedule": schedule | {"warmup": plan.schedule.warmup_steps > 0},
        "optimizer": plan.optimizer.model_dump(mode="json"),
        "strategy": strategy,
        "numerics": plan.numerics.model_dump(mode="json", exclude={"seed"}),
        "device": plan.launch.device,
        "spread": plan.launch.processes > 1,
        "export": plan.export.dtype,
    }


def numerics_hash(plan: Plan) -> str:
    text = json.dumps(numerics_of(plan), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def versions() -> dict[str, str]:
    """Installed versions of what computes, without importing any of it; Headway's own with a hash of its source."""
    found: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found | {"headway": f"{headway.__version__}+{_source_hash()}"}


@cache
def _source_hash() -> str:
    """A working copy changes without a new version."""
    root = Path(headway.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
