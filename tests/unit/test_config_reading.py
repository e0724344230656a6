"""Run files as text: YAML 1.2, JSON, TOML; lines of keys; what cannot be read says where and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.config.load import LoadedRun, from_mapping, load_run, load_text
from headway.config.reader import parse, read_text
from headway.config.schema import RunConfig
from headway.errors import ConfigError
from headway.units import Amount

EXAMPLE = """\
model:  {config: {arch: llama, hidden: 768, layers: 12, heads: 12}, tokenizer: {train: 32k}}
data:   {train: ["corpus/**/*.txt"], eval: 0.5%}
task:   causal_lm
train:  {length: 10B tokens, sequence: 2048, global_batch: 0.5M tokens}
optimizer: {lr: 6e-4, schedule: cosine, warmup: 1%}
checkpoint: {every: 30 min, keep: 3}
launch: {gpus: 8}
"""
TOML = """\
task = "causal_lm"

[model]
tokenizer.train = "32k"
config = {arch = "llama", hidden = 768, layers = 12, heads = 12}

[data]
train = ["corpus/**/*.txt"]
eval = "0.5%"

[train]
length = "10B tokens"
sequence = 2048
global_batch = "0.5M tokens"

[optimizer]
lr = 6e-4
schedule = "cosine"
warmup = "1%"

[checkpoint]
every = "30 min"
keep = 3

[launch]
gpus = 8
"""


def load(text: str, name: str = "run.yaml", *overrides: str) -> LoadedRun:
    return load_text(text, Path("/nowhere") / name, overrides)


def refused(text: str, name: str = "run.yaml") -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, name)
    return str(caught.value)


def test_the_twelve_line_example_loads_as_it_stands():
    config = load(EXAMPLE).config
    assert config.train.length == Amount(10_000_000_000, "tokens")
    assert config.train.global_batch == Amount(500_000, "tokens")
    assert config.model.tokenizer is not None
    assert config.model.tokenizer.train == 32_000
    assert (config.data.train.paths, config.data.eval) == (("corpus/**/*.txt",), 0.005)
    assert (config.optimizer.lr, config.optimizer.warmup) == (6e-4, Amount(0.01, "share"))
    assert config.checkpoint.every == Amount(1800, "seconds")
    assert config.launch.gpus == 8


def test_defaults_are_what_they_would_be_if_written():
    config = load(EXAMPLE).config
    again = RunConfig.model_validate(
        from_mapping(config.model_dump(by_alias=True), base=Path()).config.model_dump(by_alias=True)
    )
    assert again == config


def test_json_and_toml_say_the_same_as_yaml():
    values = parse(EXAMPLE, "run.yaml").data
    expected = load(EXAMPLE).config
    assert load(json.dumps(values, indent="\t"), "run.json").config == expected
    assert load(json.dumps(values), "run.json").config == expected
    assert load(TOML, "run.toml").config == expected


def test_every_key_knows_its_line():
    run = load(EXAMPLE)
    assert run.origins["train.length"] == "run.yaml:4"
    assert run.origins["launch.gpus"] == "run.yaml:7"
    lines = {key: place for key, place in load(TOML, "run.toml").origins.items() if "." in key}
    assert lines["model.tokenizer.train"] == "run.toml:4"
    assert lines["model.config.heads"] == "run.toml:5"
    assert lines["optimizer.warmup"] == "run.toml:19"
    text = json.dumps(parse(EXAMPLE, "run.yaml").data, indent=2)
    number = next(n for n, line in enumerate(text.split("\n"), 1) if '"sequence"' in line)
    assert load(text, "run.json").origins["train.sequence"] == f"run.json:{number}"


def test_toml_lines_survive_multi_line_texts_and_arrays_of_tables():
    text = '[a]\nx = """\ny = 1\n"""\n[[b.c]]\nd = 1\n[[b.c]]\nd = 2\n"quoted key" = 3\n'
    lines = parse(text, "run.toml").lines
    assert (lines["a", "x"], lines["b", "c", 0, "d"], lines["b", "c", 1, "d"]) == (2, 6, 8)
    assert lines["b", "c", 1, "quoted key"] == 9
    assert ("a", "y") not in lines


def test_yaml_is_version_1_2():
    text = "a: 5e-5\nb: no\nc: on\nd: 010\ne: 2026-01-01\nf: 1:30\ng: true\nh: ~\n"
    expected = {"a": 5e-5, "b": "no", "c": "on", "d": 10, "e": "2026-01-01", "f": "1:30", "g": True, "h": None}
    assert parse(text, "x.yaml").data == expected


def test_json_escapes_and_aliases():
    assert parse('{"a": "\\ud83d\\ude00 \\/"}', "x.json").data == {"a": "\U0001f600 /"}
    assert parse("a: &x [1, 2]\nb: *x\n", "x.yaml").data == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_byte_order_marks_and_line_ends(tmp_path: Path, encoding: str, line_end: str):
    path = tmp_path / "run.yaml"
    path.write_bytes(EXAMPLE.replace("\n", line_end).encode(encoding))
    run = load_run(path)
    assert run.origins["launch.gpus"] == "run.yaml:7"
    assert run.text == EXAMPLE
    assert run.base == tmp_path


def test_undecodable_bytes_are_named(tmp_path: Path):
    path = tmp_path / "run.yaml"
    path.write_bytes(b"name: a\ntask: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"run\.yaml:2: is not UTF-8: byte 17 is 0xe9"):
        read_text(path)


def test_absent_files_and_folders(tmp_path: Path):
    (tmp_path / "quickstart.yaml").write_text(EXAMPLE)
    with pytest.raises(ConfigError, match=r"did you mean .*quickstart\.yaml"):
        load_run(tmp_path / "quikstart.yaml")
    with pytest.raises(ConfigError, match="headway init"):
        load_run(tmp_path / "else.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        load_run(tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\n b: 2\n", "run.yaml:2: cannot be read as YAML: mapping values are not allowed here"),
        ("a:\n\tb: 1\n", "indent with spaces"),
        ("a: [1,\n  2\n", "run.yaml:1: "),
        ("a: [1,\n  2\n", "close the quote or bracket"),
        ("a: 1\n---\nb: 2\n", "keep one document"),
        ("a: \x07\n", "run.yaml:1: contains the control character U+0007"),
        ("%YAML 1.1\n---\na: no\n", "run.yaml:1: only YAML 1.2 is read"),
        ("", "run.yaml is empty"),
        ("# nothing\n", "run.yaml is empty"),
        ("- a\n", "is not a mapping of sections"),
        ("a: *b\n", "undefined alias"),
        ("train: !!python/name:os.system x\n", "run.yaml:1: train: has the tag"),
        ("train: &t {x: *t}\n", "run.yaml:1: train.x: contains itself"),
        ("? [a]\n: 1\n", "the file: has a key that is not a word"),
        ("data: !mine {train: a}\n", "run.yaml:1: data: has the tag '!mine'"),
        ("task: !mine [a]\n", "run.yaml:1: task: has the tag '!mine'"),
        ("data: &d {train: a}\ntask: {<<: *d}\n", "run.yaml:2: task: merges keys by <<"),
        (f"name: {'1' * 5000}\n", "run.yaml:1: name: cannot be read as a number"),
        ("name: " + "[" * 500 + "]" * 500, "run.yaml is nested too deeply"),
        (
            "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
            + "".join(f"{n}: &{n} [{', '.join([f'*{last}'] * 10)}]\n" for last, n in ("ab", "bc", "cd", "de", "ef")),
            "run.yaml holds more than 100000 values",
        ),
    ],
)
def test_what_cannot_be_read_says_where_and_why(text: str, expected: str):
    assert expected in refused(text)


def test_toml_errors_have_a_line():
    message = refused("task = 'x'\nlength = 500 steps\n", "run.toml")
    assert "run.toml:2: cannot be read as TOML" in message
    assert '"500 steps"' in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = " + "[" * 3000 + "]" * 3000, "run.toml is nested too deeply"),
        (f"a = {'1' * 5000}", "run.toml: cannot be read as TOML"),
    ],
)
def test_toml_beyond_what_python_reads(text: str, expected: str):
    assert expected in refused(text, "run.toml")


def test_keys_given_twice_are_refused_with_both_lines():
    message = refused(EXAMPLE + "train: {length: 5 steps}\ndata: {train: a, train: b}\n")
    assert "run.yaml:8: train: is given twice, in lines 4 and 8" in message
    assert "run.yaml:9: data: is given twice, in lines 2 and 9" in message


def test_a_mapping_is_read_like_a_file(tmp_path: Path):
    data = {
        "model": tmp_path / "model",
        "data": ["a.txt"],
        "train": {"length": Amount(500, "steps"), "sequence": "1k", "global_batch": "64 sequences"},
        "optimizer": {"lr": 1e-3, "warmup": Amount(0.1, "share")},
    }
    run = from_mapping(data, base=tmp_path)
    assert run.config.model.from_ == str(tmp_path / "model")
    assert (run.config.train.length, run.config.optimizer.warmup) == (Amount(500, "steps"), Amount(0.1, "share"))
    assert run.base == tmp_path
    assert load(run.text, "run.json").config == run.config
    with pytest.raises(ConfigError, match="notebook: train"):
        from_mapping({"model": "./m", "data": "a"}, where="notebook", base=tmp_path)
