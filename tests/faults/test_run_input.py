"""Bad input to `headway train`: one message that names the place and the fix, the right exit code, and no run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.runs import Workplace, run_file
from headway.errors import CheckFailed, ConfigError, DataError, ModelError, UserError

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("input"))


def refused(workplace: Workplace, content: dict[str, Any], code: int, *words: str) -> str:
    """What `headway train` says to this run file; nothing was started."""
    ended = workplace.headway("train", workplace.write("bad", content), *words).expect(code)
    assert ended.err.startswith("error: ")
    assert "fix:" in ended.err
    assert "Traceback" not in ended.out + ended.err
    assert "unexpected" not in ended.err
    assert not (workplace.folder / "runs").exists()
    return ended.err


def test_an_absent_data_path(workplace: Workplace) -> None:
    said = refused(workplace, run_file("ddp", data={"train": "corpos/*.txt"}), DataError.exit_code)
    assert "data.train" in said
    assert "corpos/*.txt" in said


@pytest.mark.parametrize("content", ["", " \n\t\n"], ids=["no byte", "blanks"])
def test_an_empty_data_set(content: str, workplace: Workplace) -> None:
    (workplace.folder / "empty").mkdir(exist_ok=True)
    (workplace.folder / "empty" / "a.txt").write_text(content)
    said = refused(workplace, run_file("ddp", data={"train": "empty/*.txt"}), DataError.exit_code)
    assert "data.train" in said


def test_text_that_does_not_decode(workplace: Workplace) -> None:
    (workplace.folder / "latin").mkdir()
    (workplace.folder / "latin" / "good.txt").write_text("quietly\n" * 50)
    (workplace.folder / "latin" / "bad.txt").write_bytes(b"first line\nsecond caf\xe9\n")
    said = refused(workplace, run_file("ddp", data={"train": "latin/*.txt"}), DataError.exit_code)
    assert "latin/bad.txt:2: data.train: byte 0xe9 at offset 21 is not utf-8 text" in said


def test_a_tokenizer_larger_than_the_embedding(workplace: Workplace) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=270, **sizes)).save_pretrained(workplace.folder / "small")
    content = run_file("ddp") | {"model": {"from": "./small", "tokenizer": {"train": 300}}}
    said = refused(workplace, content, ModelError.exit_code)
    assert "the tokenizer has 300 entries (ids to 299), but the model's embedding only 270 rows" in said


def test_no_model_there(workplace: Workplace) -> None:
    content = run_file("ddp") | {"model": {"from": "./nothing-here", "tokenizer": {"train": 300}}}
    assert "nothing-here" in refused(workplace, content, ModelError.exit_code)


def test_an_unknown_override(workplace: Workplace) -> None:
    said = refused(workplace, run_file("ddp"), ConfigError.exit_code, "train.lenght=5 steps")
    assert "train.lenght" in said
    assert "train.length" in said


def test_several_faults_are_told_at_once(workplace: Workplace) -> None:
    content = run_file("ddp", train={"sequence": "many"}, optimizer={"lr": -1, "learning_rate": 1e-3})
    said = refused(workplace, content, ConfigError.exit_code)
    for key in ("train.sequence", "optimizer.lr", "optimizer.learning_rate"):
        assert key in said


def test_fp16_on_a_cpu(workplace: Workplace) -> None:
    said = refused(workplace, run_file("ddp", train={"precision": "fp16"}), ConfigError.exit_code)
    assert "train.precision = 'fp16': cannot be trained on a CPU" in said
    assert "reading the data" not in said, "it is known before the data are built"
    assert "precision: fp32" in said


def test_a_disk_too_small_for_the_checkpoints(workplace: Workplace) -> None:
    """Found before the start: a checkpoint of this model needs more than any disk here has."""
    model = {"config": {"arch": "llama", "hidden": 65536, "layers": 400, "heads": 64}, "tokenizer": {"train": 300}}
    said = refused(workplace, run_file("ddp") | {"model": model}, CheckFailed.exit_code)
    assert "disk:" in said
    assert "memory:" in said


def test_a_run_that_is_not_there(workplace: Workplace) -> None:
    ended = workplace.headway("resume", "nobody").expect(UserError.exit_code)
    assert "nobody" in ended.err
    assert "Traceback" not in ended.err


def test_a_run_file_that_is_no_yaml(workplace: Workplace) -> None:
    path = Path(workplace.folder / "broken.yaml")
    path.write_text("model: {config: [\n")
    ended = workplace.headway("train", path).expect(ConfigError.exit_code)
    assert "broken.yaml" in ended.err
    assert "Traceback" not in ended.err
