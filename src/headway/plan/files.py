"""plan.json: the plan with its digest, so that an edit by hand is noticed before a GPU-second is spent on it."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from headway.errors import PlanError
from headway.plan.schema import PLAN_VERSION, Plan
from headway.run.whole import write_whole

_AGAIN = "write what you want to change into the run file, or as key=value after it, and plan again"


def _way_back(path: Path) -> str:
    """How to get the plan back."""
    saved = newest_copy(path)
    if saved is None:
        return _AGAIN
    command = shlex.join(["cp", str(saved), str(path)])
    return f"{command}   (as it was saved; what you want to change: headway resume RUN key=value)"


def newest_copy(path: Path) -> Path | None:
    """The newest checkpoint's copy of a run's file: each holds the plan and the record that it was saved under."""
    copies = path.parent.glob(f"checkpoints/step-*/{path.name}")
    return max(copies, key=lambda copy: copy.stat().st_mtime, default=None)


def write_plan(plan: Plan, path: Path) -> None:
    """Write {"digest", "plan"} as JSON; a reader sees the whole file or the old one."""
    content = {"digest": plan.digest(), "plan": plan.model_dump(mode="json")}
    write_whole(path, json.dumps(content, indent=2) + "\n")


def read_plan(path: Path) -> Plan:
    """The plan of a file that `write_plan` wrote.

    Raises:
        PlanError: the file is absent, damaged, of another plan version, or was changed by hand.
    """
    raw, digest = _read(path)
    version = raw.get("version")
    if version != PLAN_VERSION:
        made = f"Headway {raw.get('headway', '?')}"
        what = f"{path} is a plan of version {version}, made by {made}; this one reads version {PLAN_VERSION}"
        raise PlanError(what, fix=f"plan again, or install the one that made it ({made})")
    if digest_of(raw) != digest:
        raise PlanError(f"{path} was changed by hand: its digest does not match", fix=_way_back(path))
    try:
        return Plan.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        raise PlanError(f"{path} is not a plan that this version can read: {error}", fix=_way_back(path)) from error


def digest_of(plan: dict[str, Any]) -> str:
    """As `Plan.digest`, of the JSON as it stands in the file."""
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], str]:
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        fix = _way_back(path) if newest_copy(path) else "make one: headway train run.yaml --dry-run"
        raise PlanError(f"there is no plan at {path}", fix=fix) from error
    except (OSError, ValueError) as error:
        raise PlanError(f"{path} cannot be read as a plan: {error}", fix=_way_back(path)) from error
    if not isinstance(content, dict):
        raise PlanError(f"{path} is not a plan", fix=_way_back(path))
    parts = cast("dict[str, Any]", content)
    plan, digest = parts.get("plan"), parts.get("digest")
    if not isinstance(plan, dict) or not isinstance(digest, str):
        raise PlanError(f"{path} is not a plan: it needs `digest` and `plan`", fix=_way_back(path))
    return cast("dict[str, Any]", plan), digest
