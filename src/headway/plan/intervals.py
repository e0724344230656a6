"""How often to evaluate and to save."""

from __future__ import annotations

from headway.config.schema import RunConfig
from headway.facts.schema import DataFacts
from headway.plan.ledger import Ledger
from headway.plan.schedule import Pace
from headway.plan.schema import CheckpointPlan, IntervalPlan
from headway.units import Amount, format_count, format_seconds

_EVALUATIONS = 10
_MOST_STEPS_APART = 5_000  # a long run should still show its curve within a day
_CHECKPOINT_SECONDS = 1800.0


def interval(amount: Amount, pace: Pace) -> tuple[IntervalPlan, str]:
    """(interval, reason suffix). Tokens go to the nearest whole number of steps, at least one."""
    if amount.unit == "seconds":
        return IntervalPlan(seconds=amount.value), ""
    if amount.unit == "tokens":
        steps = max(1, round(amount.value / pace.tokens_per_step))
        return IntervalPlan(steps=steps), f": {format_count(amount.value)} tokens / {pace.tokens_per_step} a step"
    return IntervalPlan(steps=max(1, round(amount.value))), ""


def plan_evaluation(config: RunConfig, data: DataFacts, steps: int, pace: Pace, ledger: Ledger) -> IntervalPlan:
    """Ten evaluations over the run unless told otherwise; never without held-out data."""
    asked, key = config.train.eval_every, "evaluate"
    if data.eval_windows < 1:
        ledger.because(key, "never: there is no held-out data (data.eval)")
        return IntervalPlan()
    if asked is None:
        ledger.because(key, "never: train.eval_every is null")
        return IntervalPlan()
    if asked == "auto":
        every = max(1, min(-(-steps // _EVALUATIONS), _MOST_STEPS_APART))
        ledger.because(key, f"{_EVALUATIONS} evaluations over {steps} steps, at most {_MOST_STEPS_APART} steps apart")
        return IntervalPlan(steps=every)
    plan, suffix = interval(asked, pace)
    ledger.because(key, f"train.eval_every{suffix}")
    return plan


def plan_checkpoint(config: RunConfig, pace: Pace, ledger: Ledger) -> CheckpointPlan:
    """Every half hour of wall time unless told otherwise: what a crash can cost is time, not steps."""
    asked, key = config.checkpoint.every, "checkpoint.every"
    if asked is None:
        every, reason = IntervalPlan(), "checkpoint.every is null: at the end only"
    elif asked == "auto":
        every = IntervalPlan(seconds=_CHECKPOINT_SECONDS)
        reason = f"no fault loses more than {format_seconds(_CHECKPOINT_SECONDS)}"
    else:
        every, suffix = interval(asked, pace)
        reason = f"checkpoint.every{suffix}"
    ledger.because(key, reason)
    return CheckpointPlan(every=every, keep=config.checkpoint.keep, at_end=config.checkpoint.at_end)
