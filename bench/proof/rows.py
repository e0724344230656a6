"""What is shown, one function a row: it returns a figure, or raises with the reason why it is not so."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from headway.errors import WorkerFailed
from headway.plan.memory import used_bytes
from headway.units import format_count
from proof.lab import Lab, Run, RunFailed, end, kill_rank, run_in
from proof.scale import CHECKPOINT_EVERY, KILL_AT, STEPS

GIB = 2**30
# How far the plan may be from the peak that was seen before the row fails.
MEMORY_BAND = (0.6, 1.4)


class NotHere(Exception):
    """This machine cannot show it; says why."""


class NotSo(Exception):
    """It was tried and it is not so."""


@dataclass(frozen=True)
class Row:
    feature: str
    show: Callable[[Lab], str]


def base(lab: Lab) -> Run:
    """The run that the others are compared with: every rank holds all; exported at the end."""
    return lab.run("plain", strategy="ddp" if lab.scale.processes > 1 else "single", export={"at_end": True})


def zero(lab: Lab, stage: int) -> Run:
    return lab.run(f"zero-{stage}", strategy=f"zero-{stage}")


def training(lab: Lab) -> str:
    run = base(lab)
    losses = run.losses
    if len(losses) != STEPS or not losses[STEPS] < losses[1] - 0.3:
        raise NotSo(f"the loss went from {losses.get(1)} to {losses.get(STEPS)} in {len(losses)} steps")
    return f"{run.plan.numerics.precision}, {run.plan.strategy.label}: loss {losses[1]:.3f} to {losses[STEPS]:.3f}"


def bf16(lab: Lab) -> str:
    if not lab.scale.on_gpu:
        raise NotHere("no GPU; on a CPU Headway trains in fp32")
    if lab.scale.precision != "bf16":
        raise NotHere("this GPU has no bf16")
    exact = lab.run("fp32", train={"precision": "fp32"}, strategy=base(lab).plan.strategy.label)
    return _close(base(lab), exact, lab, "fp32")


def attention(lab: Lab) -> str:
    if not lab.scale.on_gpu:
        raise NotHere("no GPU; flash and flex attention have no backward pass on a CPU")
    used = base(lab).plan.model.attention
    if used == "sdpa":
        raise NotHere("the plan chose sdpa: no flash kernel for this GPU and precision")
    sdpa = lab.run("sdpa", model={"attention": "sdpa"}, strategy=base(lab).plan.strategy.label)
    return f"{used}: " + _close(base(lab), sdpa, lab, "SDPA under a mask")


def zero_1(lab: Lab) -> str:
    return _close(zero(lab, 1), base(lab), lab)


def zero_2(lab: Lab) -> str:
    return _close(zero(lab, 2), base(lab), lab)


def zero_3(lab: Lab) -> str:
    return _close(zero(lab, 3), base(lab), lab)


def fused_adam(lab: Lab) -> str:
    run = base(lab)
    if run.plan.optimizer.kind != "adamw":
        raise NotSo(f"the plan chose {run.plan.optimizer.kind}")
    return f"in every run here; {_milliseconds(run):.1f} ms a step, with forward and backward"


def cpu_adam(lab: Lab) -> str:
    offload = {"kind": "zero-2", "offload": "cpu"}
    run = lab.run("zero-2-offload", strategy=offload)
    if not run.plan.strategy.offload_optimizer:
        raise NotSo("the plan does not offload the optimizer")
    return _close(run, zero(lab, 2), lab, "zero-2") + f"; {_milliseconds(run):.1f} ms a step"


def parameters_offload(lab: Lab) -> str:
    offload = {"kind": "zero-3", "offload": {"optimizer": "cpu", "parameters": "cpu"}}
    return _close(lab.run("zero-3-offload", strategy=offload), zero(lab, 3), lab, "zero-3")


def kill_and_resume(lab: Lab) -> str:
    """A rank dies by kill -9 behind a checkpoint; the resumed run is compared with one that never stopped."""
    whole = zero(lab, 2)
    process, runs = lab.start(
        "killed", strategy="zero-2", checkpoint={"every": f"{CHECKPOINT_EVERY} steps", "at_end": False}
    )
    try:
        run = _wait_for_step(lab, runs, KILL_AT)
        rank = kill_rank(run)
        lab.wait(process, runs.parent, WorkerFailed.exit_code)
    finally:
        if process.poll() is None:
            end(process)
    named = run.event("failed").get("rank")
    if named != rank:
        raise NotSo(f"rank {rank} was killed, and rank {named} was named")
    lab.wait(lab.command(runs.parent, "resume", str(run.path), "--plain"), runs.parent)
    again = Run(run.path)  # read anew
    begun = again.event("resumed").get("step", 0)
    steps = range(begun + 1, STEPS + 1)
    if not CHECKPOINT_EVERY <= begun < STEPS or set(again.losses) != set(whole.losses):
        raise NotSo(f"it went on from step {begun} and ended at {max(again.losses)}")
    difference = max(abs(again.losses[step] - whole.losses[step]) for step in steps)
    if difference > (0.0 if lab.scale.exact else lab.scale.close / 5):
        raise NotSo(f"the losses behind step {begun} differ by up to {difference:.3g} from a run that never stopped")
    how = "equal to the last bit" if difference == 0 else f"within {difference:.2g}"
    return f"rank {rank} killed and named; resumed at step {begun}, {len(steps)} losses {how}"


def exported(lab: Lab) -> str:
    event = base(lab).event("export")
    if not event.get("verified"):
        raise NotSo(f"the export was not verified: {event}")
    return f"logits in plain transformers differ by at most {event['max_difference']:.2g}"


def mfu(lab: Lab) -> str:
    run = _largest(lab)
    shares = [line["mfu"] for step, line in run.metrics.items() if step > 3 and line.get("mfu")]
    if not shares:
        raise NotSo("no MFU was recorded")
    rate = median(line["tokens_per_second"] for step, line in run.metrics.items() if step > 3)
    parameters = format_count(run.plan.shape.parameters)
    return f"{median(shares):.1%} of the measured matmul peak; {parameters} parameters, {rate:,.0f} tokens/s"


def memory(lab: Lab) -> str:
    run = _largest(lab)
    planned = used_bytes(run.plan.memory, run.plan.cluster)
    peak = max(line["memory_peak_bytes"] for line in run.metrics.values())
    text = f"planned {planned / GIB:.2f} GiB, peak {peak / GIB:.2f} GiB, {planned / peak:.2f} of it"
    if not MEMORY_BAND[0] <= planned / peak <= MEMORY_BAND[1]:
        raise NotSo(text)
    return text


def fp16(lab: Lab) -> str:
    if not lab.scale.on_gpu:
        raise NotHere("no GPU; fp16 cannot be trained on a CPU")
    run = lab.run("fp16", train={"precision": "fp16"}, strategy="zero-2")
    late = max(abs(run.losses[step] - base(lab).losses[step]) for step in range(STEPS - 4, STEPS + 1))
    if late > 4 * lab.scale.close:
        raise NotSo(f"the last losses differ by {late:.3g}")
    discarded = sum(not line["applied"] for line in run.metrics.values())
    return f"last losses within {late:.2g}; {discarded} steps discarded while the loss scale was found"


def recomputing(lab: Lab) -> str:
    if not lab.scale.on_gpu:
        raise NotHere("no GPU; the tests hold it to the same gradients on a CPU")
    plain = base(lab)
    run = lab.run("recompute", train={"activation_checkpointing": True}, strategy=plain.plan.strategy.label)
    peaks = [max(line["memory_peak_bytes"] for line in r.metrics.values()) / GIB for r in (run, plain)]
    return _close(run, plain, lab) + f"; peak {peaks[0]:.2f} instead of {peaks[1]:.2f} GiB"


def qlora(lab: Lab) -> str:
    """Beside the exported base run: the same adapter over a base in 4 bits and over one in 16, memory and losses."""
    if not lab.scale.on_gpu:
        raise NotHere("no GPU; the tests hold it to transformers and PEFT on a CPU")
    if importlib.util.find_spec("bitsandbytes") is None or importlib.util.find_spec("peft") is None:
        raise NotHere("bitsandbytes or peft is not installed: pip install 'headway[qlora]'")
    whole = base(lab)
    shared = {"model": str(whole.path / "export"), "strategy": whole.plan.strategy.label, "export": {"at_end": True}}
    runs = [lab.run(kind, adapter={"kind": kind}, **shared) for kind in ("qlora", "lora")]
    event = runs[0].event("export")
    if not event.get("verified"):
        raise NotSo(f"the export was not verified: {event}")
    apart = abs(runs[0].losses[STEPS] - runs[1].losses[STEPS])
    if apart > 4 * lab.scale.close:
        raise NotSo(f"the last loss differs from LoRA's by {apart:.3g}")
    held, plain = (run.metrics[STEPS]["memory_bytes"] / GIB for run in runs)
    return f"last loss within {apart:.2g} of LoRA's; {held:.2f} instead of {plain:.2f} GiB; export verified"


ROWS = (
    Row("training", training),
    Row("export, verified", exported),
    Row("bf16", bf16),
    Row("flash or flex attention", attention),
    Row("fused Adam", fused_adam),
    Row("ZeRO-1", zero_1),
    Row("ZeRO-2", zero_2),
    Row("ZeRO-3", zero_3),
    Row("CPU Adam (optimizer offload)", cpu_adam),
    Row("kill -9 and resume", kill_and_resume),
    Row("MFU", mfu),
    Row("planned against actual memory", memory),
    Row("parameter offload", parameters_offload),
    Row("fp16", fp16),
    Row("activation checkpointing", recomputing),
    Row("QLoRA", qlora),
)


def _close(run: Run, other: Run, lab: Lab, name: str = "") -> str:
    """The mean difference of two loss curves, if it is small enough."""
    if set(run.losses) != set(other.losses):
        raise NotSo(f"{len(run.losses)} and {len(other.losses)} steps")
    mean = sum(abs(run.losses[step] - other.losses[step]) for step in run.losses) / len(run.losses)
    name = name or other.plan.strategy.label
    if not mean <= lab.scale.close:
        raise NotSo(f"losses differ from {name}'s by {mean:.3g} on average, more than {lab.scale.close:g}")
    return f"losses within {mean:.2g} of {name}'s on average"


def _milliseconds(run: Run) -> float:
    return 1000 * median(line["step_seconds"] for step, line in run.metrics.items() if step > 3)


def _largest(lab: Lab) -> Run:
    return lab.run("large") if lab.scale.on_gpu else base(lab)


def _wait_for_step(lab: Lab, runs: Path, step: int) -> Run:
    while lab.left() > 0:
        try:
            run = run_in(runs)
            if any(line["step"] >= step for line in run.lines("metrics")):
                return run
        except (FileNotFoundError, ValueError):
            pass
        time.sleep(0.01)
    raise RunFailed(f"step {step} was not reached in time")
