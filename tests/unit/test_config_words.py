"""Short forms, overrides, secrets, the starter file and the reference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headway.config.keys import ELSEWHERE, every_key, field_at
from headway.config.load import LoadedRun, load_text
from headway.config.reference import reference
from headway.config.schema import (
    DataConfig,
    MlflowConfig,
    ModelConfig,
    OffloadConfig,
    SourceConfig,
    StrategyConfig,
    TokenizerConfig,
    TrackConfig,
    WandbConfig,
)
from headway.config.shorthands import written_out
from headway.config.starter import STARTER
from headway.errors import ConfigError
from headway.units import Amount

BASE = """\
model: ./folder
data: {train: corpus}
train: {length: 100 steps, sequence: 128, global_batch: 8 sequences}
optimizer: {lr: 1e-3}
"""
DOCS = Path(__file__).parents[2] / "docs"


def load(*overrides: str, text: str = BASE) -> LoadedRun:
    return load_text(text, Path("/nowhere/run.yaml"), overrides)


def refused(*overrides: str, text: str = BASE) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(*overrides, text=text)
    return caught.value


ZERO_2 = StrategyConfig(kind="deepspeed", stage=2)
CORPUS = SourceConfig(paths=("corpus",))


@pytest.mark.parametrize(
    ("short", "section", "long"),
    [
        ({"model": "./m"}, "model", ModelConfig.model_validate({"from": "./m"})),
        (
            {"model": {"from": "./m", "tokenizer": "./t"}},
            "model",
            ModelConfig.model_validate({"from": "./m", "tokenizer": TokenizerConfig.model_validate({"from": "./t"})}),
        ),
        (
            {"model": {"from": "./m", "tokenizer": "32k"}},
            "model",
            ModelConfig.model_validate({"from": "./m", "tokenizer": TokenizerConfig(train=32_000)}),
        ),
        ({"data": "corpus"}, "data", DataConfig(train=CORPUS)),
        ({"data": ["corpus"]}, "data", DataConfig(train=CORPUS)),
        ({"data": {"train": {"paths": "corpus"}}}, "data", DataConfig(train=CORPUS)),
        ({"data": {"train": {"kind": "synthetic"}}}, "data", DataConfig(train=SourceConfig(kind="synthetic"))),
        ({"data": {"train": "corpus", "eval": "0.5%"}}, "data", DataConfig(train=CORPUS, eval=0.005)),
        ({"data": {"train": "corpus", "eval": 0.005}}, "data", DataConfig(train=CORPUS, eval=0.005)),
        ({"data": {"train": "corpus", "eval": ["corpus"]}}, "data", DataConfig(train=CORPUS, eval=CORPUS)),
        ({"data": {"train": "corpus", "eval": "corpus"}}, "data", DataConfig(train=CORPUS, eval=CORPUS)),
        (
            {"data": {"train": [{"path": "a", "weight": 0.7}, {"paths": ["b", "c"], "weight": 0.3}]}},
            "data",
            DataConfig(
                train=SourceConfig(paths=("a",), weight=0.7), more=(SourceConfig(paths=("b", "c"), weight=0.3),)
            ),
        ),
        ({"strategy": "zero-2"}, "strategy", ZERO_2),
        ({"strategy": "ZeRO2"}, "strategy", ZERO_2),
        ({"strategy": {"kind": "zero", "stage": 2}}, "strategy", ZERO_2),
        ({"strategy": {"kind": "zero-2", "stage": 2}}, "strategy", ZERO_2),
        ({"strategy": "zero"}, "strategy", StrategyConfig(kind="deepspeed")),
        ({"strategy": "ddp"}, "strategy", StrategyConfig(kind="ddp")),
        (
            {"strategy": {"kind": "zero-2", "offload": "cpu"}},
            "strategy",
            StrategyConfig(kind="deepspeed", stage=2, offload=OffloadConfig(optimizer="cpu")),
        ),
        (
            {"strategy": {"kind": "zero-3", "offload": ["optimizer", "parameters"]}},
            "strategy",
            StrategyConfig(kind="deepspeed", stage=3, offload=OffloadConfig(optimizer="cpu", parameters="cpu")),
        ),
        ({"strategy": {"kind": "zero-3", "offload": "none"}}, "strategy", StrategyConfig(kind="deepspeed", stage=3)),
        ({"track": "tensorboard"}, "track", TrackConfig(tensorboard=True)),
        (
            {"track": ["tensorboard", "mlflow", {"wandb": {"mode": "offline"}}, "my.module:Tracker", "jsonl"]},
            "track",
            TrackConfig(
                tensorboard=True,
                mlflow=MlflowConfig(),
                wandb=WandbConfig(mode="offline"),
                own=("my.module:Tracker",),
            ),
        ),
        (
            {"track": {"mlflow": {"uri": "http://mlflow:5000"}, "tensorboard": {}}},
            "track",
            TrackConfig(tensorboard=True, mlflow=MlflowConfig(uri="http://mlflow:5000")),
        ),
    ],
)
def test_short_forms(short: dict[str, Any], section: str, long: object):
    overrides = [f"{key}={value!r}".replace("'", '"') for key, value in short.items()]
    assert getattr(load(*overrides).config, section) == long
    assert written_out(written_out(dict(short))) == written_out(dict(short))


def test_short_forms_leave_their_input_alone():
    data = {"strategy": {"kind": "zero-2"}, "data": {"train": "a"}}
    written_out(data)
    assert data == {"strategy": {"kind": "zero-2"}, "data": {"train": "a"}}


def test_overrides_replace_values_and_refine_sections():
    run = load("train.length=500 steps", "train.seed = 7", "checkpoint.every=10 min", "optimizer.betas=[0.9, 0.99]")
    assert run.config.train.length == Amount(500, "steps")
    assert run.config.train.seed == 7
    assert run.config.checkpoint.every == Amount(600, "seconds")
    assert run.config.optimizer.betas == (0.9, 0.99)
    assert run.origins["train.length"] == run.origins["checkpoint.every"] == "--set"
    assert run.origins["train.sequence"] == "run.yaml:3"
    assert run.overrides[0] == "train.length=500 steps"


def test_later_overrides_win_and_may_refine_short_forms():
    run = load("strategy=zero-2", "strategy=zero-3", "strategy.offload=cpu", "strategy.offload.parameters=cpu")
    assert run.config.strategy.stage == 3
    assert run.config.strategy.offload == OffloadConfig(optimizer="cpu", parameters="cpu")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Once: upon", "Once: upon"),
        ("*.txt # all", "*.txt # all"),
        ("{{ x", None),
        ("'12'", "12"),
        ("null", None),
        ("", None),
        ("@user", "@user"),
        ("no", "no"),
        ("a=b", "a=b"),
    ],
)
def test_override_values_need_no_second_quoting(text: str, value: str | None):
    if text.startswith("{{"):
        assert "has a value that cannot be read" in str(refused(f"export.sample={text}"))
    else:
        assert load(f"export.sample={text}").config.export.sample == value


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("train.lenght=5 steps", "--set: train.lenght = '5 steps': is not a key; did you mean 'length'?"),
        ("trian.length=5 steps", "did you mean 'train.length'?"),
        ("lr=1e-3", "write optimizer.lr"),
        ("train.lr=1e-3", "lr belongs to optimizer"),
        ("train.learning_rate=1e-3", "write optimizer.lr"),
        ("train.length.x=1", "there are no keys below this one"),
        ("train.length", "is not KEY=VALUE"),
        ("=5", "is not KEY=VALUE"),
        ("train.length=5", "--set: train.length = 5: needs a number with a unit"),
        ("hf_token=hf_0123456789abcdefghij", "looks like a secret"),
    ],
)
def test_wrong_overrides_say_what_to_write(override: str, expected: str):
    message = str(refused(override))
    assert expected in message
    assert "hf_0123456789" not in message


def test_an_override_below_a_plain_value_is_refused():
    text = BASE + "checkpoint: 5\n"
    assert "cannot be set: checkpoint has a plain value" in str(refused("checkpoint.keep=1", text=text))


def test_free_sections_take_any_key():
    run = load('model={"config": {"arch": "llama", "hidden": 64, "layers": 1, "heads": 1}, "tokenizer": "1k"}')
    assert run.config.model.config is not None
    text = BASE.replace("./folder", "{config: {arch: llama, hidden: 64, layers: 1, heads: 1}, tokenizer: 1k}")
    run = load("model.config.extra.rope_theta=1e4", "model.config.extra.nested.pad_token=x", text=text)
    assert run.config.model.config is not None
    assert run.config.model.config.extra == {"rope_theta": 1e4, "nested": {"pad_token": "x"}}


@pytest.mark.parametrize(
    "line",
    [
        "hf_token: s3cr3tvalue",
        "launch: {password: s3cr3tvalue}",
        "task: {kind: causal_lm, options: {api_key: s3cr3tvalue}}",
        "task: {kind: causal_lm, options: {note: hf_s3cr3tvalue0123456789}}",
        "track: [hf_s3cr3tvalue0123456789]",
        "runs: s3://me:s3cr3tvalue@bucket/x",
    ],
)
def test_secrets_are_refused_and_never_repeated(line: str):
    message = str(refused(text=BASE + line + "\n"))
    assert "run.yaml:5" in message
    assert "looks like a secret" in message
    assert "set it in the environment" in message
    assert "s3cr3t" not in message


def test_the_starter_file_is_valid_and_so_are_its_comments():
    assert load(text=STARTER).config.train.length == Amount(100_000_000, "tokens")
    everything = re.sub(r"^( *)# ([a-z_]+: )", r"\1\2", STARTER, flags=re.MULTILINE)
    config = load(text=everything).config
    assert everything != STARTER
    assert (config.strategy, config.launch.gpus, config.track) == (
        *(ZERO_2, 8),
        TrackConfig(tensorboard=True),
    )
    assert config.train.stop_after == 41_400


def test_the_reference_page_is_the_generated_one():
    text = reference()
    assert (DOCS / "reference.md").read_text() == text, "headway init --reference > docs/reference.md"
    for key in every_key():
        assert f"| `{key.rpartition('.')[2]}` |" in text
        info = field_at(tuple(key.split(".")))
        assert info is not None
        assert info.description, key


def test_what_others_call_it_points_at_real_keys():
    assert set(ELSEWHERE.values()) <= set(every_key())
    assert "write train.precision" in str(refused("train.dtype=bf16"))
