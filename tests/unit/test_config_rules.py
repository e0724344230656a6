"""What is refused: each rule with its key, all of them at once, with the line and a fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.config import rules
from headway.config.load import load_text
from headway.errors import ConfigError, Problem

GOOD = """\
model: {config: {arch: llama, hidden: 64, layers: 2, heads: 4}, tokenizer: {train: 1k}}
data: {train: corpus, eval: 1%}
train: {length: 100 steps, sequence: 128, global_batch: 8 sequences}
optimizer: {lr: 1e-3}
"""


def problems(*overrides: str, text: str = GOOD) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load_text(text, Path("/nowhere/run.yaml"), overrides)
    return caught.value.problems


CASES = [
    (["model.from=./x"], "model", "has both from and config"),
    (["model={tokenizer: 1k}"], "model", "needs from or config"),
    (["model.tokenizer.from=./x"], "model.tokenizer", "has both from and train"),
    (["model.tokenizer=null"], "model.tokenizer", "is required for a model"),
    (
        ["model.tokenizer=null", "data.train={kind: synthetic}"],
        "model.tokenizer",
        "is required for a model from scratch",
    ),
    (["model.tokenizer.train=100"], "model.tokenizer.train", "must be at least 257"),
    (["model.revision=abc"], "model.revision", "only with model.from"),
    (["model.config.heads=5"], "model.config.heads", "must divide model.config.hidden (64)"),
    (["model.config.kv_heads=3"], "model.config.kv_heads", "must divide model.config.heads (4)"),
    (["model.config.vocab=500"], "model.config.vocab", "smaller than the tokenizer"),
    (["model.config.max_sequence=64"], "train.sequence", "longer than model.config.max_sequence (64)"),
    (["train.sequence=1"], "train.sequence", "nothing to predict"),
    (["data.train={kind: text}"], "data.train", "names no files"),
    (["data.train={kind: synthetic, paths: [a]}"], "data.train.paths", "no meaning"),
    (["data.train.kind=txt"], "data.train.kind", "must be one of"),
    (["data.eval={kind: jsnl, paths: [a]}"], "data.eval.kind", "must be one of"),
    (["model={factory: net:make, tokenizer: 1k}"], "data.packing", "your module is not told where they begin"),
    (["model={factory: net, tokenizer: 1k}", "data.packing=false"], "model.factory", "must be package.module:name"),
    (["model=net:make", "data.packing=false"], "model.tokenizer", "is required for a model from scratch"),
    (["model.options={width: 3}"], "model.options", "only with model.factory"),
    (["adapter=lora"], "adapter", "needs a pretrained model"),
    (["model={from: ./x}", "adapter={kind: lora, targets: []}"], "adapter.targets", "names no layer"),
    (
        ["model={factory: 'net:make', tokenizer: {train: 1k}}", "data.packing=false", "adapter=qlora"],
        "adapter",
        "needs a pretrained model",
    ),
    (["adapter={kind: dora}"], "adapter.kind", "must be 'lora'"),
    (["data.train=[{path: a.jsonl}, {path: b.jsonl, txt_key: t}]"], "data.more[0].txt_key", "did you mean 'text_key'?"),
    (["adapter={quantization: fp4}", "model={from: ./x}"], "adapter.quantization", "no effect with kind: lora"),
    (["task=casual_lm"], "task.kind", "must be one of"),
    (["task.loss_on=all"], "task.loss_on", "no effect with task: causal_lm"),
    (["task.loss_on=user"], "task.loss_on", "must be 'assistant' or 'all'"),
    (["task={kind: instruction, class_weights: balanced}"], "task.class_weights", "no effect with task: instruction"),
    (["task={kind: instruction, options: {a: 1}}"], "task.options", "of a task of your own"),
    (["task=instruction", "data.encoder=tokie"], "data.encoder", "no effect with task: instruction"),
    (["task={kind: preference, label_smoothing: 0.5}"], "task.label_smoothing", "must be below 0.5"),
    (["task.beta=0.2"], "task.beta", "no effect with task: causal_lm"),
    (["task=preference", "data.packing=true"], "data.packing", "each pair stands alone"),
    (["task=classification", "data.packing=true"], "data.packing", "no effect with task: classification"),
    (["train.global_batch=100 tokens"], "train.global_batch", "less than one sequence (128 tokens)"),
    (["train.length=1000 tokens"], "train.length", "less than one step"),
    (["train.length=4 sequences"], "train.length", "less than one step"),
    (["optimizer.warmup=100 steps"], "optimizer.warmup", "not shorter than the run"),
    (["optimizer.warmup=200k tokens"], "optimizer.warmup", "not shorter than the run"),
    (["optimizer.warmup=100%"], "optimizer.warmup", "below 100%"),
    (["train.eval_every=10 steps", "data.eval=null"], "train.eval_every", "nothing to evaluate"),
    (["train.eval_every=10"], "train.eval_every", "'N steps' or 'N tokens' or a time"),
    (["train.length=3 h"], "train.length", "is a wall time"),
    (["strategy=zero-4"], "strategy.kind", "is no stage"),
    (["strategy=zero-2", "strategy.kind=zero-3"], "strategy.kind", "name two stages"),
    (["strategy=dpp"], "strategy.kind", "must be one of"),
    (["strategy={kind: ddp, stage: 2}"], "strategy.stage", "no effect with kind: ddp"),
    (["strategy.stage=2"], "strategy.stage", "no effect with kind: auto"),
    (["strategy.stage=5"], "strategy.stage", "must be 0, 1, 2 or 3"),
    (["strategy.stage=true"], "strategy.stage", "must be 0, 1, 2 or 3"),
    (["strategy={kind: ddp, offload: cpu}"], "strategy.offload.optimizer", "needs DeepSpeed"),
    (["strategy={kind: ddp, reduce_bucket: 1M}"], "strategy.reduce_bucket", "no effect with kind: ddp"),
    (["strategy={kind: zero-2, offload: [parameters]}"], "strategy.offload.parameters", "needs ZeRO stage 3"),
    (["strategy={kind: zero, offload: [parameters]}"], "strategy.offload.parameters", "the stage is not set"),
    (["strategy={kind: zero-0, offload: cpu}"], "strategy.offload.optimizer", "needs ZeRO stage 1, 2 or 3"),
    (["strategy={kind: zero-2, prefetch_bucket: 1M}"], "strategy.prefetch_bucket", "below ZeRO stage 3"),
    (
        ["strategy={kind: zero-2, offload: nvme}"],
        "strategy.offload.optimizer",
        "is not driven by Headway: its checkpoints",
    ),
    (["strategy={kind: zero-2, gradient_compression: bf16}"], "strategy.gradient_compression", "is of kind: ddp"),
    (
        ["strategy={kind: ddp, gradient_compression: {kind: powersgd, start_step: 1}}"],
        "strategy.gradient_compression.start_step",
        "must be at least 2",
    ),
    (["strategy={kind: zero-2, quantized_weights: true}"], "strategy.quantized_weights", "is of ZeRO stage 3"),
    (["strategy={kind: ddp, config: ds.json}"], "strategy.config", "the kind is ddp"),
    (["train.global_batch=auto"], "train.global_batch", "not both given"),
    (["launch={gpus: 2, processes: 2}"], "launch", "has both gpus and processes"),
    (["launch={gpus: 2, device: cpu}"], "launch.gpus", "contradicts launch.device: cpu"),
    (["launch=slurmy"], "launch.kind", "must be one of"),
    (["launch.processes=2", "strategy=single"], "launch.processes", "more than strategy: single can use"),
    (["launch.timeout=600"], "launch.timeout", "needs a number with a unit"),
    (["train.precision=fp16", "launch.device=cpu"], "train.precision", "cannot be trained on a CPU"),
    (["train.tf32=true", "launch.device=cpu"], "train.tf32", "no effect on a CPU"),
    (["model.attention=flash", "launch.device=cpu"], "model.attention", "no kernel on a CPU"),
    (["data.train={paths: [a], weight: 0.5}"], "data.train.weight", "beside other sources only"),
    (["data.train=[{path: a, weight: 0.5}, {path: b}]"], "data.more[0].weight", "is missing"),
    (["track=[tensorbord]"], "track.tensorbord", "did you mean 'tensorboard'?"),
    (["track={mlflow: {url: 'http://a'}}"], "track.mlflow.url", "did you mean 'uri'?"),
    (["track={own: [tracker]}"], "track.own[0]", "must be package.module:Class"),
    (["track={mlflow: {uri: localhost:5000}}"], "track.mlflow.uri", "is the URL of no server or database"),
    (["name=../x"], "name", "becomes a folder"),
]


@pytest.mark.parametrize(("overrides", "key", "rule"), CASES)
def test_each_rule_names_its_key_and_says_what_to_do(overrides: list[str], key: str, rule: str):
    found = problems(*overrides)
    assert [problem.key for problem in found] == [key]
    assert rule in found[0].rule
    assert found[0].where == "--set" or found[0].where.startswith("run.yaml")


def test_the_cases_above_break_every_rule(monkeypatch: pytest.MonkeyPatch):
    """A rule that no case breaks is a rule that nobody has seen fail."""
    broken: set[str] = set()

    def watched(rule: rules.Rule) -> rules.Rule:
        def run(*sections: object) -> list[Problem]:
            found = list(rule(*sections))
            broken.update([rule.__name__] * bool(found))
            return found

        return run

    every = {rule.__name__ for _, rule in rules.RULES}
    monkeypatch.setattr(rules, "RULES", tuple((names, watched(rule)) for names, rule in rules.RULES))
    for overrides, _, _ in CASES:
        problems(*overrides)
    assert broken == every


@pytest.mark.parametrize(
    "override",
    [
        "strategy={kind: my.module:Strategy, stage: 2}",
        "task=my.module:Task",
        "data.train={kind: 'my.module:Source'}",
        "track=[my.module:Tracker, jsonl]",
        "strategy={kind: zero, offload: cpu}",
        "train.length=2 epochs",
        "optimizer.warmup=50 steps",
        "data.eval=0%",
        "train.eval_every=null",
        "model.tokenizer=./folder",
    ],
)
def test_what_is_legal_passes(override: str):
    assert load_text(GOOD, Path("/nowhere/run.yaml"), [override])


@pytest.mark.parametrize(
    ("line", "rule", "fix"),
    [
        ("train: {micro_batch: '4'}", "must be a whole number, or 'auto'", ""),
        ("train: {micro_batch: 4.5}", "must be a whole number, or 'auto'", ""),
        ("train: {micro_batch: true}", "must be a whole number, or 'auto'", ""),
        ("train: {micro_batch: 0}", "must be above 0", ""),
        ("train: {precision: BF16}", "must be 'auto', 'fp32', 'bf16' or 'fp16'", "did you mean bf16?"),
        ("train: {compile: yes}", "must be true or false", "in YAML 1.2 'yes' is a word"),
        ("train: {seed: 1e3}", "must be a whole number", ""),
        ("optimizer: {lr: -1}", "must be above 0", "for example `lr: 0.0006`"),
        ("optimizer: {lr: .inf}", "must be a finite number", ""),
        ("optimizer: {lr: '1e-3'}", "must be a number", "write it without quotes"),
        ("optimizer: {lr: true}", "must be a number", ""),
        ("optimizer: {betas: [0.9]}", "is one entry short", ""),
        ("optimizer: {betas: [0.9, 0.9, 0.9]}", "must have 2 entries, not 3", ""),
        ("optimizer: {betas: [0.9, 1.0]}", "must be below 1", ""),
        ("optimizer: {betas: 0.9}", "must be a list", ""),
        ("name: 2026", "must be a text", 'put it in quotes: "2026"'),
        ("export: {max_shard: big}", "must be a size such as 5GB", "for example `max_shard: 5GB`"),
        ("checkpoint: {keep: [3]}", "must be a whole number", ""),
        ("checkpoint: 5", "must be a section with keys of: every, keep, at_end", ""),
        ("launch: {port: 70000}", "must be at most 65535", ""),
        ("data: {eval: [1]}", "must be a text", 'put it in quotes: "1"'),
        ("data: {eval: 2}", "must be at least 0% and below 100%", ""),
        ("data: {eval: {pats: a}}", "is not a key; did you mean 'paths'?", "write data.eval.paths"),
        ("train: {sequence: 0}", "must be above 0", ""),
        ("train: {sequence: many}", "must be a whole number such as 512, 32k or 0.5M", "for example `sequence: 2048`"),
        ("trian: {}", "is not a key; did you mean 'train'?", "write train"),
        ("zero_optimization: {stage: 2}", "is not a key of Headway", "write strategy.stage"),
        ("frobnicate: 1", "is not a key", "one of: name, runs, model"),
    ],
)
def test_values_of_the_wrong_kind(line: str, rule: str, fix: str):
    """Each replaces its section, so required keys may be missing as well: the named rule must be among the findings."""
    kept = [other for other in GOOD.splitlines() if other.partition(":")[0] != line.partition(":")[0]]
    found = problems(text="\n".join([line, *kept]) + "\n")
    matching = [problem for problem in found if rule in problem.rule and fix in problem.fix]
    assert len(matching) == 1, "\n".join(map(str, found))
    assert matching[0].where == "run.yaml:1"


def test_missing_keys_show_an_example():
    found = {problem.key: problem for problem in problems(text="train: {sequence: 128}\n")}
    assert set(found) == {"model", "data", "optimizer", "train.length", "train.global_batch"}
    assert found["train.length"].fix == "add it, for example `length: 10B tokens`"
    assert found["train.length"].where == "run.yaml:1"
    assert found["model"].where == "run.yaml"


def test_everything_wrong_is_said_at_once():
    text = """\
name: my run
model: {from: ./x, config: {arch: llama, hidden: 100, layers: "12", heads: 12}}
lr: 3
train: {length: 3 h, sequence: 2048, global_batch: 16 tokens, precission: bf16}
optimiser: {lr: 1e-3}
strategy: {kind: ddp, offload: [optimizer, parameter]}
launch: {gpus: 2, processes: 3}
"""
    found = problems("trian.length=5", text=text)
    keys = [problem.key for problem in found]
    assert set(keys) == {
        "trian.length",
        "name",
        "model",
        "model.config.layers",
        "lr",
        "data",
        "train.length",
        "train.precission",
        "optimiser",
        "strategy.offload.parameter",
        "strategy.offload.optimizer",
        "launch",
    }
    lines = [int(problem.where.partition(":")[2]) for problem in found if "yaml:" in problem.where]
    assert lines == sorted(lines)


def test_an_unknown_key_does_not_hide_a_broken_rule():
    found = problems("optimizer.warmup=500 steps", text=GOOD + "checkpoint: {kep: 3}\n")
    assert {problem.key for problem in found} == {"optimizer.warmup", "checkpoint.kep"}
