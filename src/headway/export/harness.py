"""Tasks of EleutherAI's lm-evaluation-harness on a model in memory; needs the extra `lm-eval`.

Tasks of the user's own are YAML files in a folder, over data on this disk; the harness's own tasks fetch theirs.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from headway.errors import MissingExtra, UserError


@dataclass(frozen=True)
class HarnessRequest:
    """tasks: names. folder: of task files, besides the harness's own. limit: documents of each task; None: all."""

    tasks: tuple[str, ...]
    folder: Path | None = None
    limit: int | None = None
    batch: int = 8
    seed: int = 0


def run_tasks(model: Any, tokenizer: Any, request: HarnessRequest) -> dict[str, Any]:
    """{"chat_template": whether it was applied, "tasks": {name: {metric: value}}, "versions", "samples"}.

    The tokenizer's chat template is applied where it has one: such a model has learnt nothing else.

    Raises:
        MissingExtra: the package is absent.
        UserError: a task is unknown, or its data cannot be had.
    """
    try:
        evaluator: Any = importlib.import_module("lm_eval.evaluator")
        models: Any = importlib.import_module("lm_eval.models.huggingface")
    except ImportError as error:
        raise MissingExtra("lm_eval", "lm-eval", "evaluating tasks") from error
    for name in ("lm_eval", "lm-eval"):
        logging.getLogger(name).setLevel(logging.ERROR)
    manager = _manager(request)
    chat = bool(getattr(tokenizer, "chat_template", None))
    wrapped = models.HFLM(pretrained=model, tokenizer=tokenizer, batch_size=request.batch, device=str(model.device))
    try:
        found: Any = evaluator.simple_evaluate(
            model=wrapped,
            tasks=list(request.tasks),
            task_manager=manager,
            limit=request.limit,
            apply_chat_template=chat,
            log_samples=False,
            bootstrap_iters=0,
            random_seed=request.seed,
            numpy_random_seed=request.seed,
            torch_random_seed=request.seed,
            fewshot_random_seed=request.seed,
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"the tasks {', '.join(request.tasks)} could not be evaluated: {type(error).__name__}: {error}",
            fix="check the task's data_files; a task of the harness's own needs its data set on this disk or a network",
        ) from error
    return {
        "chat_template": chat,
        "tasks": {name: _plain(values) for name, values in found["results"].items()},
        "versions": {name: str(version) for name, version in found.get("versions", {}).items()},
        "samples": {name: count["effective"] for name, count in found.get("n-samples", {}).items()},
    }


def _manager(request: HarnessRequest) -> Any:
    """The task files of the folder alone where they are enough: reading all of the harness's takes seconds."""
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports] (an extra)

    if request.folder is not None:
        if not request.folder.is_dir():
            raise UserError(f"there is no folder {request.folder}", fix="give the folder of the task's YAML file")
        own = TaskManager(include_path=str(request.folder), include_defaults=False)
        unknown = set(request.tasks) - set(own.all_tasks)
        if not unknown:
            return own
        if any(get_close_matches(name, own.all_tasks, n=1, cutoff=0.8) for name in unknown):
            _require_known(request.tasks, own.all_tasks)
    manager = TaskManager(include_path=str(request.folder) if request.folder else None)
    _require_known(request.tasks, manager.all_tasks)
    return manager


def _require_known(tasks: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in tasks if name not in known]
    if unknown:
        near = [match for name in unknown for match in get_close_matches(name, known, n=2)]
        hint = f"did you mean {', '.join(near)}?" if near else "name the folder of its YAML file with --tasks-folder"
        raise UserError(f"there is no task {', '.join(unknown)}", fix=hint)


def _plain(values: dict[str, Any]) -> dict[str, float]:
    """'acc,none': 0.5 -> 'acc': 0.5; names and standard errors that are not numbers are left out."""
    numbers = {k: float(v) for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return {name.removesuffix(",none"): value for name, value in numbers.items()}
