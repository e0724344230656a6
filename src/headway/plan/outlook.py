"""All that `headway plan` says beside the plan: needs, time, cost, alternatives. Pure; nothing is started."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from headway.config.schema import TrainConfig
from headway.plan.alternatives import Candidate, candidates, caution, verdict
from headway.plan.cost import Bill, CostRequest, bills
from headway.plan.degrees import NOTHING_ASKED, Advice, Asked, advise, check, remarks
from headway.plan.forecast import Basis, Forecast, forecast
from headway.plan.scaling import Planner, Scale, scan, smallest
from headway.plan.schema import Plan
from headway.plan.storage import Storage, storage_of

_ADVICE_GAIN = 1.10  # what the engine lacks is worth a line where it is so much faster


@dataclass(frozen=True)
class Outlook:
    """The plan's forecast and what surrounds it. bills: (on demand, spot); none without a price."""

    plan: Plan
    forecast: Forecast
    storage: Storage
    days: float
    bills: tuple[Bill, ...]
    currency: str
    priced: str  # where the price comes from, with its date
    candidates: tuple[Candidate, ...]
    verdict: str
    caution: str
    scales: tuple[Scale, ...]
    smallest: Scale | None
    advice: Advice | None
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Question:
    """What is asked of the plan. hosts: numbers of hosts to scan; asked: degrees that the engine does not have."""

    train: TrainConfig
    basis: Basis
    make: Planner
    hosts: Sequence[int] = ()
    asked: Asked = NOTHING_ASKED
    assumed: tuple[str, ...] = ()


def outlook(plan: Plan, question: Question) -> Outlook:
    """Raises PlanError for degrees that cannot be."""
    basis, cluster = question.basis, plan.cluster
    check(question.asked, plan.shape, basis.machine, plan.data.sequence)
    found = forecast(plan, basis)
    storage = storage_of(plan, basis.rates.disk_bytes_per_second if basis.rates else None)
    seconds = found.run_seconds(plan.schedule.steps)
    others = candidates(plan, question.train, basis)
    on_gpu = cluster.device == "cuda"
    hosts = question.hosts or ((cluster.hosts, cluster.hosts + 1) if on_gpu else ())
    return Outlook(
        plan=plan,
        forecast=found,
        storage=storage,
        days=seconds / 86400,
        bills=_bills(plan, found, storage, basis),
        currency=basis.prices.currency,
        priced=_priced(basis),
        candidates=others,
        verdict=verdict(found, others),
        caution=caution(plan, found, question.train, basis),
        scales=scan(cluster, hosts, question.make, basis),
        smallest=smallest(cluster, question.make, basis) if on_gpu else None,
        advice=_advice(plan, found, question) if on_gpu else None,
        assumed=(*question.assumed, *remarks(question.asked, plan.shape)),
    )


def _advice(plan: Plan, found: Forecast, question: Question) -> Advice | None:
    best = advise(plan, question.basis.machine, question.asked)
    if best is None or question.asked.anything:
        return best
    gain = best.forecast.tokens_per_second / found.tokens_per_second
    return best if gain >= _ADVICE_GAIN or not found.fits else None


def _bills(plan: Plan, found: Forecast, storage: Storage, basis: Basis) -> tuple[Bill, ...]:
    if basis.price is None:
        return ()
    every = plan.checkpoint.every
    request = CostRequest(
        compute_seconds=found.run_seconds(plan.schedule.steps),
        time_band=min(found.time_band, 0.99),
        devices=plan.launch.processes,
        hosts=plan.cluster.hosts,
        checkpoint_bytes=storage.checkpoint_bytes,
        checkpoints_kept=plan.checkpoint.keep,
        save_seconds=storage.save_seconds,
        interval_seconds=every.seconds or (every.steps * found.step_seconds if every.steps else None),
    )
    return bills(request, basis.price, basis.prices)


def _priced(basis: Basis) -> str:
    if basis.price is None:
        return "no price of this device is known: --prices FILE, or `price` in a cluster file"
    source = f"{basis.price.source or 'as the cluster file says'}; table of {basis.prices.date:%Y-%m-%d}"
    return f"UNCHECKED, from memory: {source}" if basis.price.unchecked else source


def as_json(found: Outlook) -> dict[str, Any]:
    """For scripts: figures by name, in bytes, seconds and the table's currency; plans are named, not repeated."""

    def figures(each: Forecast) -> dict[str, Any]:
        return {
            **{name: value for name, value in vars(each).items() if name not in ("items", "times", "passes")},
            "fits": each.fits,
            "items": [item.model_dump() for item in each.items],
            "times": [asdict(item) for item in each.times],
            "passes": [asdict(each_pass) for each_pass in each.passes],
        }

    return _finite({
        "forecast": figures(found.forecast),
        "days": found.days,
        "storage": asdict(found.storage),
        "cost": {"currency": found.currency, "priced": found.priced, "bills": [asdict(bill) for bill in found.bills]},
        "candidates": [
            {
                "family": c.family,
                "setting": c.label,
                "fits": c.fits,
                "reason": c.reason,
                "forecast": figures(c.forecast),
            }
            for c in found.candidates
        ],
        "verdict": found.verdict,
        "caution": found.caution,
        "scales": [_scale(scale) for scale in found.scales],
        "smallest": _scale(found.smallest) if found.smallest else None,
        "advice": {"setting": found.advice.label, "engine_has_it": False, "forecast": figures(found.advice.forecast)}
        if found.advice
        else None,
        "assumed": list(found.assumed),
    })  # fmt: skip


def _finite(value: Any) -> Any:
    """JSON has no infinity: null for what never ends."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _scale(scale: Scale) -> dict[str, Any]:
    return {
        "hosts": scale.hosts,
        "devices": scale.devices,
        "strategy": scale.label,
        "tokens_per_second": scale.forecast.tokens_per_second if scale.forecast else None,
        "days": scale.days if scale.forecast else None,
        "cost": scale.cost,
        "efficiency": scale.efficiency if scale.forecast else None,
        "reason": scale.reason,
    }
