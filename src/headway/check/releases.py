"""Combinations that a release of DeepSpeed computes wrongly or cannot run; `make certify-matrix` is the evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from packaging.version import Version

from headway.check.report import Verdict, green, red
from headway.check.subject import Subject
from headway.plan.schema import Plan


@dataclass(frozen=True)
class Broken:
    """`applies` to a plan under DeepSpeed releases before `before` ("": all so far)."""

    before: str
    applies: Callable[[Plan], bool]
    finding: str
    fix: str


def _partitions(plan: Plan) -> bool:
    return plan.strategy.kind == "deepspeed" and plan.strategy.stage in (1, 2)


# `headway certify` shows the first under 0.18.9: claim 1, gradients off by 89 %. Mended upstream by pull request 7967.
BROKEN = (
    Broken(
        "0.19.0",
        lambda plan: _partitions(plan) and plan.strategy.offload_optimizer and plan.batch.accumulation > 1,
        "loses the gradients of micro batches with optimizer offload and accumulation",
        "pip install 'deepspeed>=0.19.3', or strategy.offload=null",
    ),
    Broken(
        "",
        lambda plan: plan.strategy.stage == 0 and plan.numerics.precision != "fp32",
        "takes another optimizer path at stage 0 in 16 bits, with other losses",
        "strategy=ddp or strategy=zero-1",
    ),
    Broken(
        "",
        lambda plan: _partitions(plan) and plan.strategy.allgather_bucket_elements % 2 == 1,
        "refuses an odd strategy.allgather_bucket at stages 1 and 2",
        "make strategy.allgather_bucket an even number",
    ),
)


def releases(name: str, subject: Subject) -> Verdict:
    """The plan against what the installed DeepSpeed is known to break."""
    plan = subject.plan
    if plan.strategy.kind != "deepspeed":
        return green(name, f"{plan.strategy.label} needs no DeepSpeed")
    installed = metadata.version("deepspeed")
    found = [
        broken
        for broken in BROKEN
        if broken.applies(plan) and (not broken.before or Version(installed) < Version(broken.before))
    ]
    if not found:
        return green(name, f"nothing is known to be wrong with {plan.strategy.label} in DeepSpeed {installed}")
    findings = "; ".join(broken.finding for broken in found)
    return red(name, f"DeepSpeed {installed} {findings}", "; ".join(broken.fix for broken in found))
