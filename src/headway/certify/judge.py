"""From what the small runs left to claims. Numpy only: the judge loads no engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.certify.bounds import BOUNDS, MOMENT, UPDATE, Bounds
from headway.certify.outcome import Outcome
from headway.certify.schema import (
    BIT_EQUAL,
    CLAIMS,
    READ_BACK,
    STATE_EQUAL,
    WITHIN_BOUND,
    Claim,
    Measure,
)
from headway.certify.shrink import SAVED_AT
from headway.plan.live import expected_settings
from headway.plan.memory import model_states, moments_of
from headway.plan.schema import Plan
from headway.plan.work import request_of

_FP32_ROUNDING = 1.2e-7  # of a stored weight: one unit in the last place
_FLOOR = 0.01  # of the root mean square of all gradients
_HARDLY = 0.1  # of the largest update of the same parameter
_NOT_HERE = "NCCL, CUDA kernels, races of overlapped communication, real memory at size"


@dataclass(frozen=True)
class Evidence:
    """What each small run left; None where it was not made or did not end. `failures`: why, by run."""

    plan: Plan  # the small one
    reference: Outcome | None = None
    main: Outcome | None = None
    dropout: Outcome | None = None
    resumed: Outcome | None = None
    alone: Outcome | None = None
    back: Outcome | None = None
    saved_hash: dict[str, str] | None = None  # of main's checkpoint at SAVED_AT
    alone_hash: dict[str, str] | None = None  # of alone's last checkpoint
    export: dict[str, Any] | None = None  # the export's own check
    failures: dict[str, str] | None = None

    def why(self, *runs: str) -> str:
        failures = self.failures or {}
        return "; ".join(f"the {run} run: {failures[run]}" for run in runs if run in failures)


def judge(evidence: Evidence, claims: Sequence[int] = CLAIMS) -> tuple[Claim, ...]:
    """The claims that were asked for, in order."""
    bounds = BOUNDS[evidence.plan.numerics.precision]
    makers: dict[int, Callable[[Evidence, Bounds], Claim]] = {
        1: _gradients,
        2: _invariance,
        3: _effects,
        4: _resume,
        5: _reshape,
        6: _export,
        7: _tables,
        8: _bytes,
    }
    made = (makers[number](evidence, bounds) for number in CLAIMS if number in claims)
    return tuple(_given_compression(claim, evidence.plan) for claim in made)


def _given_compression(claim: Claim, plan: Plan) -> Claim:
    """Compressed gradients are not plain PyTorch's, on purpose; PowerSGD's error feedback is in no checkpoint."""
    compression = plan.strategy.compression
    changed = {1, 2, 5} | ({4} if compression and compression.kind == "powersgd" else set())
    if compression is None or claim.number not in changed or claim.outcome != "failed" or claim.reason:
        return claim
    reason = f"gradients are compressed on purpose ({compression.kind}): what was measured is no fault"
    notes = tuple(f"{measure.what}: {measure.value:.3g}" for measure in claim.measures if not measure.holds)
    return claim.model_copy(update={"outcome": "not proven", "measures": (), "notes": notes, "reason": reason})


@dataclass(frozen=True)
class _Head:
    number: int
    name: str
    level: str
    does_not_prove: str


def _claim(head: _Head, measures: list[Measure], evidence: Evidence, runs: tuple[str, ...], *notes: str) -> Claim:
    """Failed if a measure does not hold or a run that it needs broke; not proven if there is nothing to measure."""
    why = evidence.why(*runs)
    broken = [measure for measure in measures if not measure.holds]
    outcome = "failed" if broken or why else "proven" if measures else "not proven"
    reason = why or ("" if measures else "it needs a second process")
    return Claim(
        number=head.number,
        name=head.name,
        level=head.level,
        outcome=outcome,
        measures=tuple(measures),
        notes=tuple(note for note in notes if note),
        reason=reason,
        does_not_prove=head.does_not_prove,
    )


def worst(a: dict[str, np.ndarray], b: dict[str, np.ndarray], *, floor: float = 0.0) -> tuple[float, str]:
    """(largest ||a - b|| / ||b|| over the parameters, its name); infinite where one lacks a parameter.

    floor: the least ||b|| that is divided by, as a share of what an average parameter of that size has. A gradient that
    is zero but for rounding (the bias of keys without rotary positions) has no relative error to speak of.
    """
    if a.keys() != b.keys():
        return float("inf"), ", ".join(sorted(a.keys() ^ b.keys())[:3])
    elements = sum(array.size for array in b.values())
    average = float(np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in b.values()) / max(elements, 1)))
    found = [(_relative(a[name], b[name], floor * average), name) for name in b]
    unordered = [item for item in found if item[0] != item[0]]  # a NaN is the worst
    return unordered[0] if unordered else max(found, default=(float("inf"), "nothing was recorded"))


def _relative(a: np.ndarray, b: np.ndarray, least: float) -> float:
    """||a - b|| / ||b||, ||b|| taken for at least `least` an element."""
    difference = float(np.linalg.norm(a.astype(np.float64) - b.astype(np.float64)))
    size = max(float(np.linalg.norm(b.astype(np.float64))), least * b.size**0.5)
    return difference / size if size > 0 else difference


def _furthest(a: list[float], b: list[float], *, relative: bool = False) -> tuple[float, str]:
    """(largest difference of two lists, the step of it); infinite where one is shorter."""
    if len(a) != len(b) or not b:
        return float("inf"), f"{len(a)} and {len(b)} steps"
    gaps = [abs(x - y) / (abs(y) if relative and y else 1.0) for x, y in zip(a, b, strict=True)]
    at = int(np.argmax([gap if gap == gap else float("inf") for gap in gaps]))
    return gaps[at], f"step {at + 1}: {a[at]:.6g}, right {b[at]:.6g}"


def _gradients(evidence: Evidence, bounds: Bounds) -> Claim:
    head = _Head(1, "gradients", "each step equal to plain PyTorch from the same state, within the bound", _NOT_HERE)
    measures: list[Measure] = []
    main, plain = evidence.main, evidence.reference
    if main and plain:
        steps = range(1, len(main.figures["losses"]) + 1)
        value, where = worst(main.group("weight@0"), plain.group("weight@0"))
        measures.append(Measure(what="weights at the start", value=value, bound=bounds.start, where=where))
        value, where = _over(steps, lambda t: _worst_gradient(main, plain, t))
        what = f"gradients of {len(steps)} steps"
        measures.append(Measure(what=what, value=value, bound=bounds.gradient, where=where))
        value, where = _furthest(main.figures["norms"], plain.figures["norms"], relative=True)
        measures.append(Measure(what="gradient norm", value=value, bound=bounds.norm, where=where))
        value, where = _furthest(main.figures["losses"], plain.figures["losses"])
        measures.append(Measure(what="loss", value=value, bound=bounds.loss, where=where))
        value, where = _over(steps, lambda t: _worst_update(main, plain, t))
        measures.append(Measure(what="updates of the weights", value=value, bound=UPDATE, where=where))
        if moments_of(evidence.plan.optimizer):
            value, where = _over(steps, lambda t: worst(main.group(f"moment@{t}"), plain.group(f"moment@{t}")))
            measures.append(Measure(what="optimizer moments", value=value, bound=MOMENT, where=where))
    return _claim(head, measures, evidence, ("main", "reference"))


def _worst_gradient(a: Outcome, b: Outcome, step: int) -> tuple[float, str]:
    return worst(a.group(f"gradient@{step}"), b.group(f"gradient@{step}"), floor=_FLOOR)


def _over(steps: range, compare: Callable[[int], tuple[float, str]]) -> tuple[float, str]:
    """The largest difference of all steps, and where."""
    found = [(value, f"step {step}, {where}") for step in steps for value, where in [compare(step)]]
    unordered = [item for item in found if item[0] != item[0]]
    return unordered[0] if unordered else max(found)


def _worst_update(main: Outcome, plain: Outcome, step: int) -> tuple[float, str]:
    """||a - b|| / ||update|| of the worst parameter."""
    before = main.group(f"weight@{step - 1}")
    mine, theirs = main.group(f"weight@{step}"), plain.group(f"weight@{step}")
    if not before.keys() == mine.keys() == theirs.keys():
        return float("inf"), ", ".join(sorted(mine.keys() ^ theirs.keys())[:3])
    found = [(_update_apart(before[name], mine[name], theirs[name]), name) for name in before]
    unordered = [item for item in found if item[0] != item[0]]
    return unordered[0] if unordered else max(found)


def _update_apart(before: np.ndarray, mine: np.ndarray, theirs: np.ndarray) -> float:
    """Less what rounding the new weights to fp32 explains; elements that hardly moved are left out.

    Where a gradient and its weight's decay nearly cancel, Adam divides rounding by rounding.
    """
    old = before.astype(np.float64)
    update = theirs - old
    moved = np.abs(update) >= _HARDLY * np.abs(update).max(initial=0.0)
    difference = np.linalg.norm((mine.astype(np.float64) - theirs)[moved])
    if difference != difference:
        return float(difference)
    excess = max(0.0, float(difference - _FP32_ROUNDING * np.linalg.norm(old[moved])))
    size = float(np.linalg.norm(update[moved]))
    return excess / size if size > 0 else excess


def _invariance(evidence: Evidence, bounds: Bounds) -> Claim:
    head = _Head(2, "batch invariance", WITHIN_BOUND, _NOT_HERE)
    measures: list[Measure] = []
    main, alone = evidence.main, evidence.alone
    notes = ""
    if main and alone:
        step = SAVED_AT + 1
        value, where = _worst_gradient(alone, main, step)
        measures.append(Measure(what="gradients of one step", value=value, bound=bounds.gradient, where=where))
        norms = alone.figures["norms"][:1], main.figures["norms"][SAVED_AT : SAVED_AT + 1]
        value, where = _furthest(*norms, relative=True)
        measures.append(Measure(what="its norm", value=value, bound=bounds.norm))
        batch = evidence.plan.batch
        split = f"{batch.micro_batch} x {batch.accumulation} x {batch.data_parallel_size}"
        notes = f"{batch.global_sequences} sequences as {split} and as 1 x {batch.global_sequences} x 1"
    return _claim(head, measures, evidence, ("main", "alone"), notes)


def _effects(evidence: Evidence, bounds: Bounds) -> Claim:
    del bounds
    head = _Head(3, "effect", READ_BACK, "that an option is worth its price")
    if evidence.main is None:
        return _claim(head, [], evidence, ("main",))
    found, plan = evidence.main.figures, evidence.plan
    measures = _read_back(found["settings"], plan)
    notes: list[str] = []
    strategy = plan.strategy
    if strategy.kind == "deepspeed" and strategy.stage > 0:
        flushes = found["exchanges"]["buckets"]
        # Stage 1 reduces after the last micro batch of a step only.
        passes = len(found["losses"]) * (plan.batch.accumulation if strategy.stage > 1 else 1)
        short = max(0.0, 3 - flushes / passes)
        measures.append(Measure(what="bucket flushes a backward pass, short of 3", value=short, bound=0))
        notes.append(f"{flushes} gradient buckets were flushed in {passes} backward passes")
    if strategy.stage == 3 and plan.launch.processes > 1:
        gathers = found["exchanges"]["gathers"]
        needed = plan.shape.layers * len(found["losses"])
        short = max(0, needed - gathers)
        measures.append(Measure(what=f"gathers short of one a layer and step ({needed})", value=short, bound=0))
        notes.append(f"{gathers} gathers of partitioned weights")
    if plan.optimizer.clip > 0:
        acted = sum(norm > plan.optimizer.clip for norm in found["norms"])
        notes.append(f"clipping at {plan.optimizer.clip:g} acted in {acted} of {len(found['norms'])} steps")
        if not acted:
            notes.append("clipping is inert here: no gradient norm was above it")
    effects = found.get("effects", {})
    if "activation_checkpointing" in effects:
        kept = effects["activation_checkpointing"]
        share = kept["with_bytes"] / max(kept["without_bytes"], 1)
        what = "activations kept, as a share of those without checkpointing"
        measures.append(Measure(what=what, value=share, bound=0.9))
    if plan.numerics.compile:
        missing = float(effects.get("compiled_graphs", 0) < 1)
        measures.append(Measure(what="compile: no graph was compiled", value=missing, bound=0))
    return _claim(head, measures, evidence, ("main",), *notes)


def _read_back(settings: dict[str, Any], plan: Plan) -> list[Measure]:
    """One measure a setting that the engine names: 0 where it is as planned, 1 where not."""
    return [
        Measure(
            what=f"{key} is {settings.get(key)}",
            value=float(settings.get(key) != value),
            bound=0,
            where=f"plan: {value}",
        )
        for key, value in expected_settings(plan).items()
    ]


def _resume(evidence: Evidence, bounds: Bounds) -> Claim:
    del bounds
    head = _Head(4, "resume", BIT_EQUAL, "a GPU run, where a kernel may not be deterministic")
    measures: list[Measure] = []
    straight, resumed = evidence.dropout, evidence.resumed
    if straight and resumed:
        rest = slice(SAVED_AT, None)
        a, b = resumed.figures, straight.figures
        measures.append(_unequal("sample order", a["samples"], b["samples"][rest]))
        value, where = _furthest(a["losses"], b["losses"][rest])
        measures.append(Measure(what="loss", value=value, bound=0, where=where))
        value, where = _furthest(a["norms"], b["norms"][rest])
        measures.append(Measure(what="gradient norm", value=value, bound=0, where=where))
        measures.append(_unequal("state at the end, by hash", a["state"], b["state"]))
    note = f"all ranks killed by SIGKILL, resumed from step {SAVED_AT}, dropout on"
    return _claim(head, measures, evidence, ("dropout", "killed", "resumed"), note if measures else "")


def _reshape(evidence: Evidence, bounds: Bounds) -> Claim:
    head = _Head(5, "reshape", f"{STATE_EQUAL}; {WITHIN_BOUND}", _NOT_HERE)
    measures: list[Measure] = []
    main, alone, back = evidence.main, evidence.alone, evidence.back
    if main and alone and back and evidence.plan.launch.processes > 1:
        rest = slice(SAVED_AT, None)
        measures.append(_unequal("state on 1 rank, by hash", alone.figures["restored"], evidence.saved_hash or {}))
        measures.append(_unequal("state back on 2 ranks", back.figures["restored"], evidence.alone_hash or {}))
        measures.append(_unequal("sample order on 1 rank", alone.figures["samples"], main.figures["samples"][rest]))
        again = back.figures
        measures.append(
            _unequal("sample order back on 2", again["samples"], main.figures["samples"][-len(again["samples"]) :])
        )
        value, where = _furthest(alone.figures["losses"], main.figures["losses"][rest])
        measures.append(Measure(what="loss on 1 rank", value=value, bound=bounds.trajectory, where=where))
        value, where = _furthest(again["losses"], main.figures["losses"][-len(again["losses"]) :])
        measures.append(Measure(what="loss back on 2 ranks", value=value, bound=bounds.trajectory, where=where))
    return _claim(head, measures, evidence, ("main", "alone", "back"))


def _unequal(what: str, a: Any, b: Any) -> Measure:
    """0 where two things are the same, else how many of their parts differ."""
    if isinstance(a, dict) and isinstance(b, dict):
        parts = [key for key in {**a, **b} if a.get(key) != b.get(key)]
        return Measure(what=what, value=len(parts) or float(not b), bound=0, where=", ".join(parts[:2]))
    differing = [index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y]
    value = len(differing) + abs(len(a) - len(b)) + float(not b)
    return Measure(what=what, value=value, bound=0, where=f"step {differing[0] + 1}" if differing else "")


def _export(evidence: Evidence, bounds: Bounds) -> Claim:
    del bounds
    head = _Head(
        6, "export", "logits equal within the bound; every tensor counted", "serving engines other than transformers"
    )
    measures: list[Measure] = []
    notes = ""
    check = evidence.export
    if check:
        census = check["census"]
        wrong = sum(len(census.get(key, ())) for key in ("lost", "added", "changed", "untied"))
        measures.append(Measure(what="tensors lost, added, changed or untied", value=wrong, bound=0))
        measures.append(
            Measure(what="logits in plain transformers", value=check["max_difference"], bound=check["bound"])
        )
        notes = f"{census['tensors']} tensors"
    return _claim(head, measures, evidence, ("main", "export"), notes)


def _tables(evidence: Evidence, bounds: Bounds) -> Claim:
    del bounds
    head = _Head(7, "tables", READ_BACK, "the length of the real run, which is compared at its end")
    measures: list[Measure] = []
    main, plain = evidence.main, evidence.reference
    if main and plain:
        value, where = _furthest(main.figures["rates"], plain.figures["rates"], relative=True)
        # Two formulas in float64: a handful of roundings.
        measures.append(Measure(what="learning rate", value=value, bound=1e-12, where=where))
        measures.append(_unequal("tokens of each step", main.figures["tokens"], plain.figures["tokens"]))
        measures.append(_unequal("samples of each step", main.figures["samples"], plain.figures["samples"]))
        measures.append(
            _unequal("steps, tokens and rates of the plan", main.figures["differences"], []).model_copy(
                update={"value": float(len(main.figures["differences"]))}
            )
        )
    return _claim(head, measures, evidence, ("main", "reference"))


def _bytes(evidence: Evidence, bounds: Bounds) -> Claim:
    del bounds
    head = _Head(8, "plan", READ_BACK, "activations and the allocator's own use, which are estimates")
    measures: list[Measure] = []
    if evidence.main:
        plan = evidence.plan
        planned = {item.name: item.device_bytes + item.host_bytes for item in model_states(request_of(plan))}
        ranks = evidence.main.figures["bytes"]
        for name in ("parameters", "gradients", "optimizer states"):
            # DeepSpeed rounds each flat group up to an equal part for every rank, and aligns it.
            slack = 4096 + (_straddling_bytes(plan) if name == "gradients" else 0)
            bound = max(0.005, slack / max(planned[name], 1))
            off = max(((rank[name] - planned[name]) / max(planned[name], 1) for rank in ranks), key=abs)
            # Stage 1 with offload keeps fewer gradients than planned: room to spare is no fault of theirs.
            share, word = (max(0.0, off), "over") if name == "gradients" else (abs(off), "off")
            what = f"{name} a rank, {word} the plan's {planned[name]} bytes"
            measures.append(Measure(what=what, value=share, bound=bound))
        if plan.strategy.stage == 3:
            threshold = plan.strategy.persistence_threshold_elements
            over = max(0, max(rank["kept whole"] for rank in ranks) - threshold)
            what = f"elements of the largest weight kept whole, over the threshold of {threshold}"
            measures.append(Measure(what=what, value=over, bound=0))
    return _claim(head, measures, evidence, ("main",))


def _straddling_bytes(plan: Plan) -> int:
    """Stage 2 keeps the gradient of a weight whole on both ranks between which the border of their parts cuts it."""
    if plan.strategy.kind != "deepspeed" or plan.strategy.stage != 2:
        return 0
    largest = plan.shape.hidden * max(plan.shape.vocab, plan.shape.ffn)
    return largest * (4 if plan.numerics.precision == "fp32" or plan.strategy.offload_optimizer else 2)
