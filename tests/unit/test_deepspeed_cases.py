"""Reports of DeepSpeed files that were misread, each with the right outcome: named by the case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.deepspeed_files import VALID
from fakes.plans import A100_8, LAPTOP, facts_of
from headway.api.in_force import effective_of
from headway.config.deepspeed_json import DeepSpeedJson, read_deepspeed_json
from headway.config.json_text import parse_json
from headway.config.load import LoadedRun, from_mapping, load_run, read_text
from headway.errors import ConfigError, HeadwayError, PlanError, Problem
from headway.parallel.deepspeed_config import deepspeed_config
from headway.plan.deepspeed_json import resolved_autos
from headway.plan.make import make_plan
from headway.plan.schema import Plan

CASES = Path(__file__).parents[1] / "cases"


def read(case: str) -> DeepSpeedJson:
    path = CASES / case
    return read_deepspeed_json(read_text(path), path.name)


def load(case: str, **train: Any) -> LoadedRun:
    """A run file beside the case's DeepSpeed JSON, with what the case's trainer says."""
    overrides = [f"{key.replace('__', '.')}={value}" for key, value in train.items()]
    data = {
        "model": {"config": {"arch": "llama", "hidden": 64, "layers": 2, "heads": 4}, "tokenizer": {"train": 300}},
        "data": {"train": "*.txt"},
        "train": {"length": "20 steps", "sequence": 32},
        "optimizer": {},
        "strategy": {"kind": "deepspeed", "config": (CASES / case).name},
    }
    return from_mapping(data, base=(CASES / case).parent, overrides=overrides)


def plan(case: str, processes: int = 1, **train: Any) -> Plan:
    run = load(case, launch__processes=processes, **train)
    return make_plan(run, facts_of(run, LAPTOP))


def problems(case: str, processes: int = 1, **train: Any) -> tuple[Problem, ...]:
    with pytest.raises((ConfigError, PlanError)) as caught:
        plan(case, processes, **train)
    error: HeadwayError = caught.value
    assert all(problem.where for problem in error.problems), "each with its file and line"
    assert all(problem.fix for problem in error.problems)
    return error.problems


def test_cfg_01_a_misspelt_key_at_the_top_is_refused() -> None:
    (problem,) = problems("cfg-01/ds_config.json")
    assert problem.key == "gradient_cliping"
    assert "gradient_clipping" in problem.rule
    assert problem.where == "ds_config.json:13"


def test_cfg_03_a_block_at_the_wrong_depth_is_told_its_place() -> None:
    (problem,) = problems("cfg-03/ds_config.json")
    assert problem.key == "offload_optimizer"
    assert "zero_optimization.offload_optimizer" in problem.rule
    assert "strategy.offload.optimizer" not in read("cfg-03/ds_config.json").firm


@pytest.mark.parametrize(
    ("file", "key", "got", "fix"),
    [
        ("cfg-05/ds_config.json", "gradient_accumulation_steps", 'expected integer, got string "6"', "6"),
        ("cfg-05/ds_config_stage.json", "zero_optimization.stage", 'expected integer, got string "2"', "2"),
        ("cfg-07/ds_config.json", "zero_optimization.reduce_bucket_size", 'got string "3e8"', "300000000"),
    ],
)
def test_cfg_05_cfg_07_a_number_in_quotes_is_refused_with_both_types(file: str, key: str, got: str, fix: str) -> None:
    (problem,) = problems(file)
    assert problem.key == key
    assert got in problem.rule
    assert fix in problem.fix


def test_cfg_07_a_whole_number_may_be_written_with_an_exponent() -> None:
    said = read("cfg-07/ds_config_unquoted.json")
    assert said.firm["strategy.reduce_bucket"].value == 300_000_000
    assert isinstance(said.firm["strategy.reduce_bucket"].value, int)
    assert not said.problems
    assert not said.notices


@pytest.mark.parametrize(("file", "stage"), [("cfg-09/ds_config.json", 1), ("cfg-09/ds_config_false.json", 0)])
def test_cfg_09_the_old_boolean_says_which_stage_it_is(file: str, stage: int) -> None:
    said = read(file)
    assert said.firm["strategy.stage"].value == stage
    assert any(f'{{"stage": {stage}}}' in notice for notice in said.notices)
    assert deepspeed_config(plan(file))["zero_optimization"]["stage"] == stage


def test_cfg_11_a_batch_that_does_not_divide_is_refused_with_the_nearest() -> None:
    (problem,) = problems("cfg-11/ds_config.json", processes=6)
    assert problem.where == "ds_config.json:12"
    assert "100" in f"{problem.value} {problem.rule}"
    assert "4 (micro batch) x 6 (processes) = 24" in problem.rule
    assert "96 or 120" in problem.fix


def test_cfg_13_three_numbers_made_for_other_ranks_are_refused_with_both_repairs() -> None:
    (problem,) = problems("cfg-13/ds_config.json", processes=2)
    assert "48 != 4 x 3 x 2 = 24" in problem.rule
    assert "gradient_accumulation_steps: 6 keeps 48" in problem.fix
    assert "train_batch_size: 24" in problem.fix
    assert deepspeed_config(plan("cfg-13/ds_config.json", processes=4))["train_batch_size"] == 48


def test_cfg_15_auto_where_nothing_resolves_it_is_refused() -> None:
    (problem,) = problems("cfg-15/ds_config.json")
    assert problem.key == "zero_optimization.stage"
    assert "does not support auto" in problem.rule
    assert "0, 1, 2, 3" in problem.fix


@pytest.mark.parametrize(("train", "clip"), [({}, 1.0), ({"optimizer__clip": 0.5}, 0.5)])
def test_cfg_15_auto_clipping_is_the_run_files_and_is_said(train: dict[str, Any], clip: float) -> None:
    run = load("cfg-15/ds_config_clip.json", **train)
    made = make_plan(run, facts_of(run, LAPTOP))
    assert deepspeed_config(made)["gradient_clipping"] == clip
    (said,) = [str(resolved) for resolved in resolved_autos(run, made)]
    assert said.startswith("ds_config_clip.json:13: gradient_clipping is auto: ")
    assert str(clip) in said


def test_cfg_17_every_value_out_of_range_is_named_at_once() -> None:
    (bucket,) = problems("cfg-17/ds_config.json")
    assert (bucket.key, bucket.value) == ("zero_optimization.reduce_bucket_size", 0)
    assert "at least 1" in bucket.rule
    found = {problem.key: problem for problem in problems("cfg-17/ds_config_more.json")}
    assert set(found) == {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"}
    assert all("at least" in problem.rule for problem in found.values())
    assert [problem.value for problem in found.values()] == [0, -1, -1.0]


def test_cfg_19_a_default_never_joins_the_users_precision() -> None:
    said = read("cfg-19/ds_config.json")
    assert said.firm["train.precision"].value == "fp16"
    run = load("cfg-19/ds_config.json")
    config = deepspeed_config(make_plan(run, facts_of(run, A100_8)))
    assert (config["fp16"]["enabled"], config["bf16"]["enabled"]) == (True, False)
    (problem,) = problems("cfg-19/ds_config_both.json")
    assert problem.key == "fp16.enabled"
    assert "bf16.enabled (ds_config_both.json:17)" in problem.rule


def test_cfg_21_comments_commas_and_windows_marks_are_read() -> None:
    read_text_of = (CASES / "cfg-21/ds_config.json").read_bytes()
    assert read_text_of.startswith(b"\xef\xbb\xbf")
    assert b"\r\n" in read_text_of
    source = parse_json(read_text(CASES / "cfg-21/ds_config.json"), "ds_config.json")
    clean = json.loads((CASES / "cfg-21/clean.json").read_text())
    assert source.data == clean
    assert source.data["csv_monitor"] == {"enabled": False, "output_path": "file://logs/#run//1", "job_name": "a, b }"}
    assert not source.problems
    assert not read("cfg-21/ds_config.json").problems


@pytest.mark.parametrize("file", ["cfg-23/ds_config.json", "cfg-23/ds_config_blank.json"])
def test_cfg_23_an_unknown_optimizer_is_refused_with_the_nearest_and_the_list(file: str) -> None:
    (problem,) = problems(file, optimizer__lr=1e-3)
    assert problem.key == "optimizer.type"
    assert "did you mean AdamW?" in problem.rule
    assert "AdamW, Adam, SGD, RMSprop" in problem.fix


RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize(("number", "stage"), [(1, 2), (2, 3)])
def test_the_guides_files_plan_as_they_stand_on_gpus_and_by_one_word_on_a_cpu(number: int, stage: int) -> None:
    path = RECIPES / f"tiny-causal_lm-zero{stage}-json.yaml"
    assert (RECIPES / f"ds_config_guide{number}.json").read_bytes() == (
        CASES / f"ds_config_guide{number}.json"
    ).read_bytes()
    on_gpus = load_run(path)
    made = make_plan(on_gpus, facts_of(on_gpus, A100_8, vocab=2000))
    config = deepspeed_config(made)
    assert (config["fp16"]["enabled"], config["bf16"]["enabled"]) == (True, False)
    assert config["zero_optimization"]["stage"] == stage
    assert config["train_batch_size"] == (16 * 8 if number == 1 else 32)
    on_a_cpu = load_run(path, ["train.precision=fp32"])
    assert make_plan(on_a_cpu, facts_of(on_a_cpu, LAPTOP, vocab=2000)).numerics.precision == "fp32"
    with pytest.raises(PlanError, match="fp16"):
        make_plan(on_gpus, facts_of(on_gpus, LAPTOP, vocab=2000))


def test_every_value_in_force_names_its_place() -> None:
    run = load("cfg-13/ds_config.json", train__seed=7, launch__processes=4)
    found = effective_of(run, make_plan(run, facts_of(run, LAPTOP)))
    origins = {row.key: (row.value, row.origin) for row in found.run}
    assert origins["train.seed"] == (7, "override (--set)")
    assert origins["train.micro_batch"] == (4, "ds_config.json:2")
    assert origins["train.log_every"] == (1, "default")
    assert origins["train.sequence"][1] == "<dict>"
    assert origins["launch.threads"][1].startswith("derived: ")
    assert origins["optimizer.betas"] == (
        [0.9, 0.999],
        "ds_config.json:6 (DeepSpeed's default of optimizer.params.betas)",
    )
    engine = {row.key: (row.value, row.origin) for row in found.engine}
    assert engine["train_batch_size"] == (48, "train.global_batch: ds_config.json:13")
    assert engine["zero_optimization.stage"] == (1, "strategy.stage: ds_config.json:11")
    assert all(row.origin for row in (*found.run, *found.engine))


def test_the_run_file_may_not_contradict_and_an_override_may() -> None:
    with pytest.raises(ConfigError) as caught:
        from_mapping(
            {
                "model": {
                    "config": {"arch": "llama", "hidden": 8, "layers": 1, "heads": 1},
                    "tokenizer": {"train": 300},
                },
                "data": {"train": "*.txt"},
                "train": {"length": "20 steps", "sequence": 32, "micro_batch": 2, "accumulation": 3},
                "optimizer": {"lr": 3e-4, "clip": 0.5},
                "strategy": {"kind": "deepspeed", "config": "ds_config.json", "stage": 3},
            },
            base=CASES / "cfg-13",
        )
    found = {problem.key: problem.rule for problem in caught.value.problems}
    assert found == {
        "train.micro_batch": "contradicts train_micro_batch_size_per_gpu = 4 (ds_config.json:2)",
        "strategy.stage": "contradicts zero_optimization.stage = 1 (ds_config.json:11)",
    }
    run = load("cfg-13/ds_config.json", train__micro_batch=2, train__accumulation=6)
    assert run.deepspeed is not None
    said = [notice for notice in run.deepspeed.notices if "is overridden" in notice]
    assert len(said) == 2
    assert run.config.train.micro_batch == 2


def test_auto_of_the_models_width_is_as_in_transformers(tmp_path: Path) -> None:
    zero = {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    }
    data = {"train_batch_size": 8, "zero_optimization": zero}
    (tmp_path / "ds.json").write_text(json.dumps(data))
    run = from_mapping(
        {
            "model": {"config": {"arch": "llama", "hidden": 64, "layers": 2, "heads": 4}, "tokenizer": {"train": 300}},
            "data": {"train": "*.txt"},
            "train": {"length": "20 steps", "sequence": 32},
            "optimizer": {"lr": 1e-3},
            "strategy": {"kind": "deepspeed", "config": "ds.json"},
        },
        base=tmp_path,
    )
    made = make_plan(run, facts_of(run, LAPTOP))
    config = deepspeed_config(made)["zero_optimization"]
    assert config["reduce_bucket_size"] == 64 * 64
    assert config["stage3_prefetch_bucket_size"] == int(0.9 * 64 * 64)
    assert config["stage3_param_persistence_threshold"] == 640
    assert all("hidden" in str(found) for found in resolved_autos(run, made))


@pytest.mark.parametrize("name", VALID)
def test_every_valid_file_makes_a_run_and_nothing_auto_is_left(name: str, tmp_path: Path) -> None:
    """Planned on GPUs, where all of it can be; where the JSON leaves a batch to the trainer, the run file names one."""
    (tmp_path / "ds.json").write_text(json.dumps(VALID[name]))
    train: dict[str, Any] = {"length": "90 steps", "sequence": 32}
    if VALID[name].get("train_batch_size") == "auto":
        train |= {"global_batch": "16 sequences"}
    optimizer: dict[str, Any] = {} if name in ("plain", "sgd", "rmsprop", "warm-up") else {"lr": 1e-3}
    run = from_mapping(
        {
            "model": {"config": {"arch": "llama", "hidden": 64, "layers": 2, "heads": 4}, "tokenizer": {"train": 300}},
            "data": {"train": "*.txt"},
            "train": train,
            "optimizer": optimizer,
            "strategy": {"kind": "deepspeed", "config": "ds.json"},
        },
        base=tmp_path,
        overrides=["launch.processes=2"],
    )
    config = deepspeed_config(make_plan(run, facts_of(run, A100_8)))
    assert "auto" not in json.dumps(config)
    assert config["train_batch_size"] % 2 == 0
    assert config["zero_optimization"]["stage"] == VALID[name].get("zero_optimization", {}).get("stage", 0)


@pytest.mark.parametrize(("name", "says"), [("dss.json", "did you mean ds.json"), (".", "names a folder")])
def test_a_json_that_is_not_there_or_is_a_folder(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text("{}")
    data = {"strategy": {"kind": "deepspeed", "config": name}}
    with pytest.raises(ConfigError) as caught:
        from_mapping(data, base=tmp_path, overrides=())
    (problem,) = caught.value.problems
    assert problem.key == "strategy.config"
    assert says in f"{problem.rule} {problem.fix}"
