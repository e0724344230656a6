"""Do the parts fit each other: data and plan, tokenizer and embedding, sequence and positions, precision and device."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, cast

from headway.check.report import Verdict, green, note, red, yellow
from headway.check.subject import Subject
from headway.facts.model_config import sequence_notes, uses_rotary, value_of
from headway.plan.explain import note_texts
from headway.units import format_count

_FILL_SHARE = 0.10  # above this, the fill costs more than it is worth saying nothing about


def data(name: str, subject: Subject) -> Verdict:
    """The token store is there, whole, and the one that the plan was made for."""
    plan = subject.plan
    if plan.facts.layout == "given":
        return green(name, "the script gives its own batches")
    store = Path(plan.data.store)
    command = _build_command(subject)
    if plan.facts.estimated:
        fix = f"none is needed: headway train builds it first; {command} builds it alone"
        return note(name, "the token store is not built yet: the plan's data is estimated", fix)
    rebuild = f"delete that folder, {store}, and run {command}"
    try:
        manifest = cast("dict[str, Any]", json.loads((store / "manifest.json").read_text(encoding="utf-8")))
    except OSError:
        return red(name, f"there is no token store at {store}", command)
    except ValueError:
        return red(name, f"the token store's manifest is damaged: {store}", rebuild)
    if manifest.get("hash") != plan.data.store_hash:
        what = "the token store is not the one that the plan was made for (its hash differs)"
        return red(name, f"{what}: {store}", "plan again; the data, the tokenizer or their settings have changed")
    files = [*manifest.get("tokens", []), *manifest.get("masks", []), *manifest.get("arrays", {}).values()]
    broken = [f["file"] for f in files if not _has_size(store / f["file"], f["size_bytes"])]
    if broken:
        return red(name, f"files of the token store are absent or cut short: {', '.join(broken)}", rebuild)
    if plan.facts.lost:
        return yellow(name, "; ".join(plan.facts.lost), "a longer train.sequence")
    return green(name, f"{format_count(plan.facts.tokens)} tokens in {store}")


def _build_command(subject: Subject) -> str:
    words = [str(subject.run.path), *subject.run.overrides] if subject.run else ["RUN_FILE"]
    return shlex.join(["headway", "data", "build", *words])


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def tokenizer(name: str, subject: Subject) -> Verdict:
    """Every token id has a row in the embedding."""
    plan = subject.plan
    rows = plan.shape.vocab
    entries = max(plan.facts.vocab, tokenizer_entries(Path(plan.data.tokenizer)) if plan.data.tokenizer else 0)
    if entries > rows:
        fix = "use the model's own tokenizer, or leave out model.config.vocab"
        return red(
            name, f"the tokenizer has {entries} entries (ids to {entries - 1}), the embedding only {rows} rows", fix
        )
    return green(name, f"{entries} entries, {rows} rows in the embedding")


def tokenizer_entries(folder: Path) -> int:
    """Highest token id plus one of a folder's tokenizer.json; 0 where there is none."""
    try:
        content = cast("dict[str, Any]", json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return 0
    vocabulary: Any = content.get("model", {}).get("vocab", {})
    ids = [len(vocabulary) - 1] if isinstance(vocabulary, list) else list(vocabulary.values())
    added = [token["id"] for token in content.get("added_tokens", [])]
    return max([-1, *ids, *added]) + 1


def sequence(name: str, subject: Subject) -> Verdict:
    """The training sequence against the positions that the model was made for."""
    plan = subject.plan
    length, longest = plan.data.sequence, value_of(plan.model.config, "max_sequence")
    if not isinstance(longest, int):
        return green(name, f"{length} tokens; the model's config names no longest")
    if length > longest and not uses_rotary(plan.model.config):
        what = f"{length} tokens, but the model has learned positions for {longest}"
        return red(name, what, f"train.sequence={longest}")
    notes = sequence_notes(plan.model.config, length)
    return (
        yellow(name, notes[0], f"train.sequence={longest}")
        if notes
        else green(name, f"{length} of {longest} positions")
    )


def precision(name: str, subject: Subject) -> Verdict:
    """The device can train in the plan's precision."""
    plan = subject.plan
    kind, on_cpu = plan.numerics.precision, plan.launch.device == "cpu"
    if kind == "fp16" and on_cpu:
        return red(name, "fp16 cannot be trained on a CPU", "train.precision=fp32")
    if kind == "bf16" and on_cpu:
        return yellow(name, "bf16 is emulated on most CPUs, up to 50 times slower than fp32", "train.precision=fp32")
    if kind == "bf16" and not plan.cluster.bf16:
        return red(name, f"{plan.cluster.device_name} has no bf16", "train.precision=fp16, or train.precision=fp32")
    return green(name, f"{kind} on {plan.cluster.device_name}")


def batch(name: str, subject: Subject) -> Verdict:
    """How much of a step is filler."""
    plan = subject.plan.batch
    fill = plan.slots - plan.global_sequences
    unit = plan.micro_batch * plan.accumulation * plan.data_parallel_size
    if fill / plan.slots > _FILL_SHARE:
        what = f"{fill} of {plan.slots} places of a step hold a filler of zero count: that time is lost"
        return yellow(name, what, f"train.global_batch='{unit} sequences' fills them")
    return green(name, f"{plan.global_sequences} sequences a step" + (f", {fill} fillers" if fill else ""))


def model(name: str, subject: Subject) -> Verdict:
    """The model's folder is still there, and what should be known of it."""
    plan = subject.plan
    if plan.model.path is not None and not (Path(plan.model.path) / "config.json").is_file():
        return red(name, f"there is no model at {plan.model.path}", "plan again, or restore the folder")
    others = {*plan.facts.notes, *plan.facts.lost}  # `data` says those, and `sequence` the ones of its own
    notes = [note for note in note_texts(plan) if note not in others and not note.startswith("train.sequence")]
    return (
        yellow(name, "; ".join(notes)) if notes else green(name, plan.model.path or f"{plan.shape.arch}, from scratch")
    )
