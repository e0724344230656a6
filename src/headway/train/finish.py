"""After the last step: the model folder, its comparison in plain transformers, and a sample of what it writes."""

from __future__ import annotations

import time
from pathlib import Path

from headway.data.samples import decode_prompt, decode_sample
from headway.errors import ExportError
from headway.export.card import Provenance
from headway.export.compare import comparison
from headway.export.folder import export_folder
from headway.export.sample import generate
from headway.export.verify import ExportCheck
from headway.parallel.collectives import exchange
from headway.run.record import read_diff, read_record
from headway.train.build import Parts, open_data
from headway.train.reporter import SilentReporter

_PROMPT_CHARACTERS = 120
_SAMPLE_TOKENS = 64
_ASKED = ("instruction", "preference")  # tasks whose held-out text has a prompt


def deliver(parts: Parts, reporter: SilentReporter, evaluation: dict[str, float]) -> ExportCheck | None:
    """Export with all ranks, as the plan says. None where the plan wants no export.

    Rank 0 writes and compares; the outcome is equal on all ranks. Raises ExportError where the folder could not be
    written; a folder that differs is returned for `require()`, so that everything else is written down first.
    """
    if not parts.plan.export.at_end:
        return None
    started = time.monotonic()
    rank = parts.ranks.rank
    compared = parts.comparison or comparison(parts.plan, parts.task)
    reference = compared.measure(parts.engine.module)
    check: ExportCheck | None = None
    failure = ""
    weights = parts.engine.full_weights()
    if rank == 0:
        provenance = Provenance(
            plan=parts.plan,
            record=read_record(parts.run),
            step=parts.progress.step,
            tokens=parts.progress.tokens,
            evaluation=evaluation,
            code=parts.run.code if parts.run.code.is_dir() else None,
            diff=read_diff(parts.run),
        )
        try:
            export_folder(parts.source, weights, parts.run.export, provenance, model=parts.engine.module)
            check = compared.verify(parts.run.export, reference, provenance)
        except ExportError as error:
            failure = str(error)
    for _ in weights:  # peers gather inside this iterator; rank 0 too where its export failed half-way
        pass
    check, failure = exchange((check, failure))[0]
    if check is None:
        raise ExportError(failure)
    fields = {"verified": check.verified, "max_difference": check.max_difference, "bound": check.bound}
    fields |= {"loader": check.loader, "compared": check.compared}
    reporter.event("export", path=str(parts.run.export), seconds=time.monotonic() - started, **fields)
    for remark in check.remarks:
        reporter.event("warning", text=remark)
    if check.verified and rank == 0 and ":" not in parts.plan.model.kind and parts.plan.data.tokenizer:
        _show_sample(parts, reporter)
    return check


def _show_sample(parts: Parts, reporter: SilentReporter) -> None:
    """A continuation, for the reader's eye. It is no part of the result: what fails here is a warning."""
    asked = parts.plan.export.sample
    prompt = asked or _held_out_start(parts)
    rendered = asked is None and parts.plan.task.kind in _ASKED
    try:
        text = generate(parts.run.export, prompt, max_tokens=_SAMPLE_TOKENS, rendered=rendered)
    except Exception as error:
        reporter.event("warning", text=f"no sample could be generated: {type(error).__name__}: {error}")
        return
    if parts.plan.task.kind == "classification":
        text = f"\n{text}"  # no continuation: its likeliest labels, a line each
    reporter.event("sample", prompt=prompt, text=text)


def _held_out_start(parts: Parts) -> str:
    """The first words of a document that was never trained on, or of a training document where none is held out.

    Of a chat: all up to the assistant's first answer.
    """
    split = "eval" if parts.plan.facts.eval_windows else "train"
    sample = open_data(parts.plan, split)[0]
    if parts.plan.task.kind in _ASKED:
        return decode_prompt(sample, Path(parts.plan.data.tokenizer))
    return decode_sample(sample, Path(parts.plan.data.tokenizer), special_tokens=False)[:_PROMPT_CHARACTERS]
