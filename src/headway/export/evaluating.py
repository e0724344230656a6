"""Evaluating what stands: a run's checkpoint or a model folder, on held-out data and on tasks of the harness."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headway.data.store import open_split
from headway.errors import DataError, ExportError, ModelError, UserError
from headway.export.harness import HarnessRequest, run_tasks
from headway.export.tokenizer import load_tokenizer
from headway.export.verify import without_bars
from headway.model.quantized import building_device
from headway.model.source import source_of
from headway.parallel.building import build_filled
from headway.plan.files import read_plan
from headway.plan.schema import Plan
from headway.run.evaluations import Evaluation, keep
from headway.run.paths import CHECKPOINT_MANIFEST, RunDir
from headway.run.usercode import use_code
from headway.task.own import task_of
from headway.train.evaluation import judge
from headway.train.frozen import with_kept_reference


@dataclass(frozen=True)
class EvaluationRequest:
    """step: of a run's checkpoint, None: the newest. tasks: of the harness, None: none. held_out: judge the loss."""

    step: int | None = None
    held_out: bool = True
    tasks: HarnessRequest | None = None


@dataclass(frozen=True)
class _Subject:
    """What is evaluated. plan: None for a folder that Headway did not write. root: where results are kept."""

    what: str
    sha256: str
    step: int | None
    model: nn.Module
    tokenizer: Path
    plan: Plan | None
    root: Path


def evaluate(target: Path, request: EvaluationRequest) -> tuple[Evaluation, Path]:
    """The figures, and the file that they were written to.

    Raises:
        UserError: there is nothing to do, or a task is unknown.      MissingExtra: tasks without the harness.
        DataError: the held-out data is gone, or there was none.      CheckpointError, ExportError, ModelError.
    """
    if not request.held_out and request.tasks is None:
        raise UserError("nothing is to be evaluated", fix="leave out --no-held-out, or name tasks with --tasks")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    run = RunDir(target)
    opened = _of_run(run, request.step, device) if run.exists() else None
    with opened or _of_folder(target, device, held_out=request.held_out) as it:
        if request.tasks is not None:
            _require_language_model(it)
        held_out, data_hash = _held_out(it) if request.held_out else ({}, "")
        tasks: dict[str, Any] = {}
        if request.tasks is not None:
            tasks = run_tasks(it.model, load_tokenizer(it.tokenizer)[0], request.tasks)
        settings = {"device": str(device), "torch": torch.__version__}
        settings |= {key: tasks[key] for key in ("chat_template", "versions", "samples") if tasks}
        found = Evaluation(
            what=it.what,
            sha256=it.sha256,
            time=time.time(),
            step=it.step,
            held_out=held_out,
            data_hash=data_hash,
            tasks=tasks.get("tasks", {}),
            settings=settings,
        )
        return found, keep(found, it.root)


@contextmanager
def _of_run(run: RunDir, step: int | None, device: torch.device) -> Iterator[_Subject]:
    from headway.checkpoint.load import checkpoint_at, newest_complete, open_reader
    from headway.checkpoint.store import LocalStore
    from headway.export.from_checkpoint import load_weights
    from headway.model.identity import require_base

    plan = read_plan(run.plan)
    use_code(plan.code, run)
    require_base(plan)
    store = LocalStore(run.checkpoints)
    ref = newest_complete(store) if step is None else checkpoint_at(store, step)
    source = source_of(plan)
    model = source.build() if plan.adapter is None else build_filled(source, building_device(plan))
    with open_reader(store, ref) as reader:
        load_weights(model, reader)
    manifest = (run.checkpoints / ref.name / CHECKPOINT_MANIFEST).read_bytes()
    digest = hashlib.sha256(manifest).hexdigest()
    yield _Subject(ref.name, digest, ref.step, model.to(device), Path(plan.data.tokenizer), plan, run.path)


@contextmanager
def _of_folder(folder: Path, device: torch.device, *, held_out: bool) -> Iterator[_Subject]:
    from headway.export.folder import RECORD, read_record

    if not (folder / "config.json").is_file():
        fix = "name a run, or a folder that save_pretrained wrote (of an adapter: the merged one)"
        raise ExportError(f"{folder} holds no model", fix=fix)
    record = read_record(folder) if (folder / RECORD).is_file() else {}
    plan = Plan.model_validate(record["plan"]) if record else None
    if plan is not None and ":" in plan.model.kind:
        raise ModelError(f"{folder} holds a module of your own", fix="evaluate the run that it comes from")
    if plan is None and held_out:
        raise _unknown_data(str(folder))
    digest = _digest(folder)
    root = folder.parent if RunDir(folder.parent).exists() else folder
    if plan is None:
        model = _plain_model(folder)
    else:
        origin = plan.model.model_copy(update={"kind": "pretrained", "path": str(folder), "fresh_head": False})
        plan = plan.model_copy(update={"model": origin, "adapter": None})
        model = build_filled(source_of(plan), torch.device("cpu"))
    step = record.get("step")
    yield _Subject(str(folder), digest, step, model.to(device), folder, plan, root)


def _plain_model(folder: Path) -> nn.Module:
    from transformers import AutoModelForCausalLM

    try:
        with without_bars():
            return AutoModelForCausalLM.from_pretrained(folder)
    except (OSError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise ModelError(f"{folder} cannot be loaded as a language model: {said}") from error


def _digest(folder: Path) -> str:
    """sha256 over the names and contents of the folder's weights."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as content:
            digest.update(f"{path.name} {hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def _held_out(subject: _Subject) -> tuple[dict[str, float], str]:
    plan = subject.plan
    if plan is None:
        raise _unknown_data(subject.what)
    if plan.facts.eval_windows == 0:
        raise DataError("the run held nothing out: data.eval was not set", fix="--no-held-out --tasks NAME")
    samples = open_split(Path(plan.data.store), "eval", plan.data.sequence, plan.data.packing)
    samples = with_kept_reference(plan, "eval", samples)
    task = task_of(plan)
    return judge(subject.model, task, plan, samples), plan.data.store_hash


def _unknown_data(what: str) -> DataError:
    fix = "evaluate tasks alone: --no-held-out --tasks NAME"
    return DataError(f"{what} has no record of Headway's, so its held-out data is not known", fix=fix)


def _require_language_model(subject: _Subject) -> None:
    plan = subject.plan
    if plan is not None and (":" in plan.model.kind or plan.task.kind == "classification"):
        what = "a classifier" if plan.task.kind == "classification" else "a module of your own"
        raise UserError(
            f"tasks are for language models of the transformers library; this is {what}", fix="drop --tasks"
        )
