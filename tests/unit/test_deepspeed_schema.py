"""DeepSpeed's schema, read off its source as syntax: kept per version, strict, and in words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.deepspeed_files import VALID
from headway.config.deepspeed_check import judge_json
from headway.config.deepspeed_json import DeepSpeedJson, read_deepspeed_json
from headway.config.deepspeed_models import Release, from_plain, installed, installed_release, models_of
from headway.config.deepspeed_table import AUTO, AUTO_BY_ACCELERATE, REMOVED, REMOVED_OPTIMIZERS
from headway.errors import ConfigError

STORED = Path(__file__).parents[1] / "cases" / "deepspeed-0.18.9-models.json"
OLD = Release("0.18.9", from_plain(json.loads(STORED.read_text())))


def test_the_schema_is_kept_per_version_and_read_back_the_same(tmp_path: Path) -> None:
    version, folder = installed()
    fresh = models_of(version, folder, tmp_path)
    models_of.cache_clear()
    assert (tmp_path / f"{version}.json").is_file()
    assert models_of(version, folder, tmp_path) == fresh
    (tmp_path / f"{version}.json").write_text("{ torn")
    models_of.cache_clear()
    assert models_of(version, folder, tmp_path) == fresh


def test_nothing_of_deepspeed_or_torch_is_imported() -> None:
    code = (
        "import sys; from headway.config.deepspeed_json import read_deepspeed_json as read;"
        "read('{\"zero_optimization\": {\"stage\": 2}}', 'ds.json'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not {"torch", "deepspeed", "transformers"} & set(done.stdout.split())


def read(data: dict[str, Any], release: Release) -> DeepSpeedJson:
    return read_deepspeed_json(json.dumps(data, indent=1), "ds.json", release)


@pytest.mark.parametrize("name", VALID)
def test_valid_files_are_valid_for_0_18_9_too(name: str) -> None:
    assert read(VALID[name], OLD).problems == ()


@pytest.mark.parametrize("path", REMOVED, ids=".".join)
@pytest.mark.parametrize("release", [OLD, installed_release()], ids=["0.18.9", "installed"])
def test_a_removed_key_says_since_when_and_what_to_write(path: tuple[str, ...], release: Release) -> None:
    data: dict[str, Any] = {"train_batch_size": 8}
    inner = data
    for part in path[:-1]:
        inner = inner.setdefault(part, {"stage": 3})
    inner[path[-1]] = {"enabled": False}
    (problem,) = read(data, release).problems
    assert problem.key == ".".join(path)
    assert REMOVED[path].since in problem.rule
    assert problem.fix


@pytest.mark.parametrize("name", REMOVED_OPTIMIZERS)
def test_a_removed_optimizer_names_what_compresses_today(name: str) -> None:
    data = {"train_batch_size": 8, "optimizer": {"type": name, "params": {"lr": 1e-3, "freeze_step": 100}}}
    problem = next(p for p in read(data, installed_release()).problems if p.key == "optimizer.type")
    assert "0.19.7" in problem.rule
    assert "powersgd" in problem.fix
    assert "zero_quantized_gradients" in problem.fix
    before = next(p for p in read(data, OLD).problems if p.key == "optimizer.type")
    assert before.rule.startswith("is not used")


def test_a_key_of_a_newer_release_is_refused_by_an_older_one() -> None:
    data = {"train_batch_size": 8, "gradient_allreduce_op": "mean"}
    (problem,) = read(data, OLD).problems
    assert "came with DeepSpeed 0.19.6" in problem.rule
    assert not read(data, installed_release()).problems


def test_defaults_that_changed_between_the_releases_are_written_out() -> None:
    """Whatever DeepSpeed's default is, the engine gets Headway's value."""
    from headway.parallel.deepspeed_config import zero_section
    from headway.plan.schema import StrategyPlan

    strategy = StrategyPlan(kind="deepspeed", stage=3, offload_optimizer=True, offload_parameters=True)
    written = {"DeepSpeedZeroConfig": zero_section(strategy, on_gpu=True)}
    written["DeepSpeedZeroOffloadOptimizerConfig"] = written["DeepSpeedZeroConfig"]["offload_optimizer"]
    written["DeepSpeedZeroOffloadParamConfig"] = written["DeepSpeedZeroConfig"]["offload_param"]
    written["DeepSpeedBF16Config"] = {"enabled": True, "check_grad_overflow": True}
    new = installed_release().models
    changed = [
        (model, name)
        for model, fields in new.items()
        for name, key in fields.items()
        if name in OLD.models.get(model, {}) and OLD.models[model][name].default != key.default
    ]
    assert ("DeepSpeedBF16Config", "check_grad_overflow") in changed
    assert [pair for pair in changed if pair[1] not in written.get(pair[0], {})] == []


def test_auto_is_legal_exactly_where_transformers_resolves_it() -> None:
    import transformers.integrations

    source = Path(transformers.integrations.__file__).with_name("deepspeed.py").read_text(encoding="utf-8")
    named = {".".join(path) for path in AUTO}
    assert all(f'"{name}"' in source for name in named)
    for part in ("fill_match(", "fill_only("):
        for piece in source.split(part)[1:]:
            key = piece.lstrip().split('"')[1] if piece.lstrip().startswith('"') else ""
            assert not key or key in named, key


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty"),
        ("[1]", "is no DeepSpeed JSON"),
        ('{"train_batch_size": 8', "is not closed"),
        ('{"a": 1 "b": 2}', "a comma or } is missing"),
        ('{"a": "x}', "a quote is not closed"),
        ("{a: 1}", "double quotes"),
        ('{"a": 1} x', "goes on after"),
        ("{/* }", "comment is not closed"),
        ('{"a"', "has no value"),
    ],
)
def test_a_text_without_structure_is_refused_with_its_line(text: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        judge_json(text, "ds.json")
    assert what in str(caught.value)
    assert "ds.json" in str(caught.value)


def test_twice_given_keys_and_bare_words_are_all_named() -> None:
    judged = judge_json(
        '{"train_batch_size": 8,\n"train_batch_size": 9,\n"dump_state": True, "prescale_gradients": no}', "ds.json"
    )
    assert {problem.key: problem.where for problem in judged.problems} == {
        "train_batch_size": "ds.json:2",
        "dump_state": "ds.json:3",
        "prescale_gradients": "ds.json:3",
    }
    assert "lines 1 and 2" in judged.problems[0].rule


@pytest.mark.parametrize(
    ("data", "key", "words"),
    [
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage", "write one of 0, 1, 2, 3"),
        ({"zero_optimization": 3}, "zero_optimization", 'write {"stage": 2}'),
        ({"zero_optimization": None}, "zero_optimization", "remove it"),
        ({"BF16": {"enabled": True}}, "BF16", "write bf16"),
        ({"max_grad_norm": 1.0}, "max_grad_norm", "write gradient_clipping"),
        ({"learning_rate": 1e-3}, "learning_rate", "write optimizer.params.lr"),
        ({"tr\u0430in_batch_size": 8}, "tr\u0430in_batch_size", r"'tr\u0430in_batch_size' holds a character"),
        ({"pin_memory": True}, "pin_memory", "write it where it is meant"),
        ({"zero_optimization": {"gradient_clipping": 1.0}}, "zero_optimization.gradient_clipping", "the top level"),
        ({"activation_checkpointing": {"enabled": True}}, "activation_checkpointing.enabled", "keys here are"),
        ({"zero_optimization": {"offload": {}}}, "zero_optimization.offload", "did you mean 'offload_"),
        ({"comms_logger": {"enabled": True, "prof_ops": [3]}}, "comms_logger.prof_ops", "list of strings"),
        ({"data_efficiency": {"enabled": "false"}}, "data_efficiency.enabled", "without quotes"),
        ({"tensor_parallel": {"tp": {"tp_size": 4}}}, "tensor_parallel", "does not drive"),
        (
            {"zero_optimization": {"stage": 2, "zero_hpz_partition_size": 8}},
            "zero_optimization.zero_hpz_partition_size",
            "is of ZeRO stage 3; the stage is 2",
        ),
        (
            {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "CPU"}}},
            "zero_optimization.offload_optimizer.device",
            'did you mean "cpu"?',
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/n"}}},
            "zero_optimization.offload_param.device",
            'write "cpu"; states then wait in host memory',
        ),
        (
            {"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_max_lr": 1e-3}}},
            "scheduler.params.warmup_max_lr",
            "is no parameter of WarmupCosineLR; WarmupLR, WarmupDecayLR take it",
        ),
        ({"optimizer": {"type": "auto", "params": {"lr": 1e-3}}}, "optimizer.type", "does not support auto"),
    ],
)
def test_what_to_write_instead_is_what_is_meant(data: dict[str, Any], key: str, words: str) -> None:
    (problem,) = read(data, installed_release()).problems
    assert problem.key == key
    assert words in f"{problem.rule} {problem.fix}"


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("Infinity", "write a finite one"),
        ("NaN", "write a finite one"),
        ("0x10", "write 16"),
        ("+8", "write 8"),
        ("08", "write 8"),
        (".5", "write 0.5"),
        ("1_000", "write 1000"),
        ("1e999", "finite"),
        ("None", "write null"),
    ],
)
def test_numbers_that_are_no_json_are_named_with_the_number_that_is(word: str, fix: str) -> None:
    (problem, *_) = judge_json(f'{{"train_batch_size": {word}}}', "ds.json").problems
    assert problem.key == "train_batch_size"
    assert fix in problem.fix


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "decay_lr_rate": 0.01}}}, "scheduler.type"),
        ({"scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_step_size": 9}}}, "scheduler.type"),
        ({"optimizer": {"type": "Lion", "params": {"lr": 1e-4, "caution": True}}}, "optimizer.type"),
        ({"optimizer": {"type": "OneBitLamb", "params": {"lr": 1e-4, "freeze_step": 9}}}, "optimizer.type"),
    ],
)
def test_parameters_of_a_type_that_is_not_offered_are_not_called_unknown(data: dict[str, Any], key: str) -> None:
    said = read({"train_batch_size": 8} | data, installed_release())
    assert [problem.key for problem in said.problems] == [key]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"fp16": {"loss_scale": 128}}, "fp16 is off: it names no `enabled`"),
        ({"wandb": {"team": "a"}}, "wandb is off"),
        ({"autotuning": {"enabled": False, "fast": True}}, "autotuning is off"),
        ({"data_efficiency": {"seed": 1}}, "data_efficiency is off"),
        ({"aio": {"block_size": 1048576}}, "aio has no effect"),
        ({"compile": {"free_activation": True}}, "compile has no effect"),
        (
            {"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": "auto"}},
            "Headway exports whole weights",
        ),
    ],
)
def test_what_is_off_is_said_and_refuses_nothing(data: dict[str, Any], words: str) -> None:
    said = read(data, installed_release())
    assert said.problems == ()
    assert any(words in notice for notice in said.notices)


def test_texts_that_deepspeed_reads_in_any_case() -> None:
    data = {"communication_data_type": "BF16", "checkpoint": {"tag_validation": "warn"}, "log_level": "INFO"}
    said = read(data, installed_release())
    assert said.problems == ()
    assert said.passed["communication_data_type"] == "bf16"


def test_auto_that_accelerates_settings_would_fill_is_the_run_files() -> None:
    import accelerate.utils

    source = Path(accelerate.utils.__file__).with_name("dataclasses.py").read_text(encoding="utf-8")
    assert all(f'"{".".join(path)}"' in source for path in AUTO_BY_ACCELERATE)
    zero = {"stage": 3, "offload_optimizer": {"device": "auto"}, "offload_param": {"device": "auto"}}
    said = read({"train_batch_size": 8, "zero_optimization": zero}, installed_release())
    assert said.problems == ()
    assert {key: value[0] for key, value in said.autos.items()} == {
        "zero_optimization.offload_optimizer.device": "strategy.offload.optimizer",
        "zero_optimization.offload_param.device": "strategy.offload.parameters",
    }
