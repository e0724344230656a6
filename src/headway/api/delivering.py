"""Exports outside of a run: from a checkpoint, and text from what was exported. torch is loaded when asked for."""

from __future__ import annotations

import math
from pathlib import Path

from headway.cli.seam import ExportResult
from headway.errors import ExportError, Problem, UserError
from headway.plan.files import read_plan
from headway.run.paths import RunDir
from headway.run.record import read_diff, read_record
from headway.run.summary import evaluation_at
from headway.run.usercode import use_code


def export(path: Path, step: int | None, out: Path | None) -> ExportResult:
    """Export the newest complete checkpoint of a run, or the one of `step`, and verify it."""
    from headway.checkpoint.load import checkpoint_at, newest_complete, open_reader
    from headway.checkpoint.store import LocalStore
    from headway.export.card import Provenance
    from headway.export.from_checkpoint import export_checkpoint

    run = RunDir(path)
    plan = read_plan(run.plan)
    use_code(plan.code, run)
    store = LocalStore(run.checkpoints)
    ref = newest_complete(store) if step is None else checkpoint_at(store, step)
    with open_reader(store, ref) as reader:
        provenance = Provenance(
            plan=plan,
            record=read_record(run),
            step=reader.state.step,
            tokens=reader.state.tokens,
            evaluation=evaluation_at(run, reader.state.step),
            diff=read_diff(run),
            checkpoint=ref.name,
            code=run.code if run.code.is_dir() else None,
        )
        exported = export_checkpoint(reader, out or run.export, provenance)
    exported.check.require()
    folder, check = exported.folder, exported.check
    compared = f"{check.loader} gives the same {check.compared}"
    return ExportResult(
        folder.path, ref.step, check.verified, check.max_difference, folder.bytes, ref.notices, compared
    )


def generate(target: Path, prompt: str, max_tokens: int, temperature: float, seed: int) -> str:
    """A continuation by a model folder, or by a run's export. Raises UserError for figures that cannot be."""
    problems = [Problem("max_tokens", "must be at least 1", max_tokens)] if max_tokens < 1 else []
    if not 0 <= temperature < math.inf:
        problems.append(Problem("temperature", "must be 0 (the likeliest token) or above", temperature))
    if not 0 <= seed < 2**63:
        problems.append(Problem("seed", "must be at least 0", seed))
    try:
        prompt.encode()
    except UnicodeEncodeError:
        problems.append(Problem("prompt", "is not UTF-8 text", fix="give it on standard input: --prompt -"))
    if problems:
        raise UserError(problems=problems)
    folder = target if _is_model(target) else RunDir(target).export
    if not _is_model(folder):
        raise ExportError(f"{target} holds no exported model", fix=f"headway export {target}")
    from headway.export import sample

    return sample.generate(folder, prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)


def answers(target: Path) -> bool:
    """Whether a model folder, or a run's export, answers a prompt rather than continues it."""
    from headway.export.asked import ANSWERING, task_of

    return task_of(target if _is_model(target) else RunDir(target).export) in (*ANSWERING, "classification")


def _is_model(folder: Path) -> bool:
    """A whole model, or an adapter, which transformers loads beside its base."""
    return (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file()
