"""The trackers, with their options as keyword arguments."""

from __future__ import annotations

from headway.config.schema import TrackConfig
from headway.plan.schema import TrackPlan


def plan_trackers(track: TrackConfig) -> tuple[TrackPlan, ...]:
    """Each tracker that the run file names; options that are left to a tracker are left out."""
    plans = [TrackPlan(kind="tensorboard")] if track.tensorboard else []
    for kind, section in (("mlflow", track.mlflow), ("wandb", track.wandb)):
        if section is not None:
            options = section.model_dump(by_alias=True)
            plans.append(TrackPlan(kind=kind, options={k: v for k, v in options.items() if v not in (None, "auto")}))
    return (*plans, *(TrackPlan(kind=path) for path in track.own))
