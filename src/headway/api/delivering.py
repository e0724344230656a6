"""Exports outside of a run: from a checkpoint, and text from what was exported. torch is loaded when asked for."""

from __future__ import annotations

from pathlib import Path

from headway.cli.seam import ExportResult
from headway.errors import ExportError
from headway.plan.files import read_plan
from headway.run.paths import RunDir
from headway.run.record import read_diff, read_record
from headway.run.summary import evaluation_at


def export(path: Path, step: int | None, out: Path | None) -> ExportResult:
    """Export the newest complete checkpoint of a run, or the one of `step`, and verify it."""
    from headway.checkpoint.load import checkpoint_at, newest_complete, open_reader
    from headway.checkpoint.store import LocalStore
    from headway.export.card import Provenance
    from headway.export.from_checkpoint import export_checkpoint

    run = RunDir(path)
    plan = read_plan(run.plan)
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
        )
        exported = export_checkpoint(reader, out or run.export, provenance)
    exported.check.require()
    folder, check = exported.folder, exported.check
    return ExportResult(folder.path, ref.step, check.verified, check.max_difference, folder.bytes, ref.notices)


def generate(target: Path, prompt: str, max_tokens: int, temperature: float, seed: int) -> str:
    """A continuation by a model folder, or by the export of a run directory."""
    folder = target if (target / "config.json").is_file() else RunDir(target).export
    if not (folder / "config.json").is_file():
        raise ExportError(f"{target} holds no exported model", fix=f"headway export {target}")
    from headway.export import sample

    return sample.generate(folder, prompt, max_tokens=max_tokens, temperature=temperature, seed=seed)
