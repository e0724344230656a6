"""Every key of the run file is explained: what the plan made of it, or that memory and time do not depend on it."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.plans import LAPTOP, SMALL, facts_of, plan_of, run_of
from headway.config.keys import every_key
from headway.errors import PlanError
from headway.plan.asked import ASIDE, LEADS_TO, is_asked, without_effect
from headway.plan.explain import explain
from headway.plan.make import make_plan

# One other value of each key that is said to change neither memory nor time, where a plan of text can have one.
OTHERWISE: dict[str, Any] = {
    "name": "another",
    "runs": "elsewhere",
    "data.cache": "elsewhere",
    "data.workers": 3,
    "train.seed": 7,
    "train.log_every": 50,
    "optimizer.lr": 1e-5,
    "optimizer.betas": [0.8, 0.9],
    "optimizer.eps": 1e-6,
    "optimizer.weight_decay": 0.0,
    "optimizer.clip": 0.5,
    "optimizer.schedule": "linear",
    "optimizer.warmup": "50 steps",
    "optimizer.min_lr_ratio": 0.0,
    "checkpoint.at_end": False,
    "launch.timeout": "1 min",
    "launch.grace": "1 min",
    "launch.port": 29999,
    "launch.debug": True,
    "certify": "required",
    "export.at_end": False,
    "export.dtype": "bf16",
    "export.max_shard": "1GB",
}


def test_every_key_of_the_schema_is_explained() -> None:
    run = run_of(SMALL)
    plan = make_plan(run, facts_of(run, LAPTOP))
    for key in every_key():
        rows = explain(plan, key, run.config)
        assert rows, key
        assert all(name and why for name, _, why in rows), key


def test_the_tables_name_keys_that_exist() -> None:
    assert all(is_asked(key) for key in (*ASIDE, *LEADS_TO))
    assert not is_asked("optimizer.learning")


@pytest.mark.parametrize("key", OTHERWISE)
def test_what_has_no_effect_changes_neither_memory_nor_batch(key: str) -> None:
    section, _, name = key.rpartition(".")
    inner = {**SMALL.get(section, {}), name: OTHERWISE[key]} if section else OTHERWISE[key]
    before, after = plan_of(SMALL, LAPTOP), plan_of({**SMALL, section or name: inner}, LAPTOP)
    assert without_effect(key).startswith("has no effect on memory or time: ")
    assert (after.memory, after.batch, after.strategy) == (before.memory, before.batch, before.strategy)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("data.workers", "2", "has no effect on memory or time: processes that tokenise"),
        ("runs", "runs-here", "has no effect on memory or time: where run directories"),
        ("certify", "optional", "has no effect on memory or time: whether the run must"),
        ("track.mlflow.experiment", "nightly", "the item `trackers` of memory.items"),
        ("data.train.text_key", "body", "what was read is counted"),
        ("optimizer.eps", "1e-08", "has no effect on memory or time: a number in the update"),
        ("adapter.rank", "not said", "there is no adapter"),
        ("train.sequence", "256", "as the run file"),
    ],
)
def test_what_the_run_file_says_is_shown(key: str, value: str, why: str) -> None:
    data = {
        **SMALL,
        "runs": "runs-here",
        "data": {"train": {"paths": ["books.jsonl"], "text_key": "body"}, "workers": 2},
        "track": {"mlflow": {"uri": "http://nowhere", "experiment": "nightly"}},
    }
    run = run_of(data)
    [(_, said, reason)] = explain(make_plan(run, facts_of(run, LAPTOP)), key, run.config)
    assert said == value
    assert why in reason


def test_an_unknown_key_is_refused_with_near_ones() -> None:
    with pytest.raises(PlanError, match=r"no value 'data\.wrokers'"):
        explain(plan_of(SMALL, LAPTOP), "data.wrokers")
