"""An exported folder: what plain transformers needs, the record, and nothing half-written."""

from __future__ import annotations

import errno
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import headway.model.huggingface
from fakes.exports import make_export
from fakes.models import CONFIGS
from headway.errors import ExportError
from headway.export.folder import read_record
from headway.export.tokenizer import load_tokenizer


def stored(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as handle:
            found |= {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    return found


@pytest.mark.parametrize("arch", CONFIGS)
def test_plain_transformers_loads_the_model(tmp_path: Path, arch: str) -> None:
    export = make_export(tmp_path, arch)
    written = export.write()
    assert set(written.files) == {path.name for path in export.folder.iterdir()}
    assert written.bytes == sum(path.stat().st_size for path in export.folder.iterdir())
    loaded: Any = AutoModelForCausalLM.from_pretrained(export.folder)
    mine = export.model.state_dict()
    assert [name for name, value in loaded.state_dict().items() if not torch.equal(value, mine[name])] == []
    assert load_tokenizer(export.folder)[0]("w5 w9")["input_ids"] == [5, 9]
    check = export.again()
    assert check.verified, check.sentence()
    assert check.max_difference <= 1e-5


def test_the_uncommitted_changes_go_with_the_model(tmp_path: Path) -> None:
    """A commit alone does not say what code a model comes from."""
    export = make_export(tmp_path, "llama")
    export.write()
    assert not (export.folder / "record.diff").exists()
    export.provenance = replace(export.provenance, diff=b"-a\n+b\n")
    export.write()
    assert (export.folder / "record.diff").read_bytes() == b"-a\n+b\n"
    assert "record.diff" in read_record(export.folder)["files"]


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    export = make_export(tmp_path, "llama")
    export.write()
    assert "lm_head.weight" not in stored(export.folder)
    loaded: Any = AutoModelForCausalLM.from_pretrained(export.folder)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_shards_are_bounded_and_indexed(tmp_path: Path) -> None:
    export = make_export(tmp_path, "llama", export={"max_shard_bytes": 20_000})
    export.write()
    shards = sorted(export.folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert shards[0].name == f"model-00001-of-{len(shards):05d}.safetensors"
    assert all(shard.stat().st_size < 20_000 + 4096 for shard in shards)
    index = json.loads((export.folder / "model.safetensors.index.json").read_text())
    tensors = stored(export.folder)
    assert set(index["weight_map"]) == set(tensors)
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    assert export.again().verified


def test_fused_experts_are_stored_as_the_ecosystem_names_them(tmp_path: Path) -> None:
    export = make_export(tmp_path, "mixtral")
    export.write()
    assert "model.layers.0.block_sparse_moe.experts.3.w1.weight" in stored(export.folder)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_dtype_follows_the_plan(tmp_path: Path, dtype: str) -> None:
    export = make_export(tmp_path, "llama", export={"dtype": dtype})
    export.write()
    expected = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    assert {tensor.dtype for tensor in stored(export.folder).values()} == {expected}
    assert AutoModelForCausalLM.from_pretrained(export.folder, dtype="auto").dtype == expected
    check = export.again()
    assert check.verified
    assert check.max_difference > 0  # rounded: it is not the same function to the bit


def test_config_says_how_to_use_the_model(tmp_path: Path) -> None:
    export = make_export(tmp_path, "llama")
    export.write()
    config = json.loads((export.folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "float32"
    assert config["use_cache"] is True
    assert "headway" not in json.dumps(config)  # a private attention would not load elsewhere
    generation = GenerationConfig.from_pretrained(export.folder)
    assert (generation.bos_token_id, generation.eos_token_id) == (0, 1)  # the tokenizer's


def test_the_record_traces_the_model(tmp_path: Path) -> None:
    export = make_export(tmp_path, "llama")
    export.write()
    record = json.loads((export.folder / "headway.json").read_text())
    assert record["verified"] is None
    assert record["plan_digest"] == export.plan.digest()
    assert record["data_hash"] == export.plan.data.store_hash
    assert record["record"]["git"]["commit"] == "0123abcd"
    assert (record["step"], record["tokens"]) == (7, 4242)
    file = export.folder / "model.safetensors"
    assert record["files"][file.name]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert set(record["tensors"]) == {name for name, _ in export.model.named_parameters()}
    card = (export.folder / "README.md").read_text()
    for words in ("0123abcd with uncommitted changes", export.plan.digest(), "3.2500", "torch 2.13.0", "Not verified"):
        assert words in card
    export.again()
    assert "Verified: loaded in plain transformers" in (export.folder / "README.md").read_text()
    assert json.loads((export.folder / "headway.json").read_text())["verified"] is True


def test_a_new_export_replaces_the_old_one(tmp_path: Path) -> None:
    export = make_export(tmp_path, "llama", export={"max_shard_bytes": 20_000})
    export.write()
    (export.folder / "left-over.txt").write_text("old")
    export.write()
    assert not (export.folder / "left-over.txt").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    export = make_export(tmp_path, "llama")
    export.folder.mkdir()
    (export.folder / "thesis.txt").write_text("years of work")
    with pytest.raises(ExportError, match="no export of Headway"):
        export.write()
    assert [path.name for path in export.folder.iterdir()] == ["thesis.txt"]


def test_a_full_disk_leaves_the_earlier_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export = make_export(tmp_path, "llama")
    export.write()
    before = (export.folder / "model.safetensors").read_bytes()

    def full(*_: object) -> list[str]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(headway.model.huggingface, "write_shards", full)
    with pytest.raises(ExportError, match="No space left") as caught:
        export.write()
    assert caught.value.exit_code == 7
    assert (export.folder / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "tokenizer"]


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    export = make_export(tmp_path, "llama")
    for path in (tmp_path / "tokenizer").iterdir():
        path.unlink()
    with pytest.raises(ExportError, match="no tokenizer files"):
        export.write()


def test_a_tokenizer_that_transformers_reads_otherwise_is_noted(tmp_path: Path) -> None:
    """transformers puts its own class in place of a qwen2 folder's tokenizer, whatever the folder says."""
    export = make_export(tmp_path, "qwen2")
    export.write()
    assert AutoTokenizer.from_pretrained(export.folder)("w5 w9")["input_ids"] != [5, 9]
    check = export.again()
    assert check.verified
    assert "PreTrainedTokenizerFast" in check.remarks[0]
    assert "PreTrainedTokenizerFast" in (export.folder / "README.md").read_text()


def test_padding_and_truncation_in_a_tokenizers_file_are_no_difference(tmp_path: Path) -> None:
    """As sentence encoders are published: padded to 128. transformers drops both where nobody asks for them."""
    export = make_export(tmp_path, "llama")
    export.write()
    file = export.folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_padding(length=128, pad_id=1, pad_token="</s>")
    tokenizer.enable_truncation(2)
    tokenizer.save(str(file))
    assert load_tokenizer(export.folder)[1] == ""


def test_a_link_to_another_disk_stays_a_link_and_a_file_a_file(tmp_path: Path) -> None:
    export = make_export(tmp_path, "llama")
    (tmp_path / "large disk").mkdir()
    export.folder.symlink_to(tmp_path / "large disk")
    for _ in range(2):
        export.write()
        assert export.folder.is_symlink()
        assert (tmp_path / "large disk" / "model.safetensors").is_file()
    export.folder.unlink()
    export.folder.write_text("mine")
    with pytest.raises(ExportError, match=r"is a file\n.*name a folder"):
        export.write()
    assert export.folder.read_text() == "mine"
