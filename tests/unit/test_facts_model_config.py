"""From the run file's words to a transformers config, and everything that is refused on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.config.schema import ModelArch, ModelConfig
from headway.errors import ConfigError, ModelError
from headway.facts.architectures import SCRATCH
from headway.facts.model_config import (
    default_ffn,
    divisors,
    nearest,
    resolve_model,
    resolve_model_config,
    scratch_config,
)


def words(**changes: Any) -> ModelArch:
    return ModelArch(**{"arch": "llama", "hidden": 768, "layers": 12, "heads": 12, **changes})


def scratch(vocab: int = 32000, sequence: int = 2048, **changes: Any) -> dict[str, Any]:
    return scratch_config(words(**changes), vocab=vocab, sequence=sequence)


def test_the_readmes_example() -> None:
    config = scratch()
    assert config["model_type"] == "llama"
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["vocab_size"], config["hidden_size"], config["intermediate_size"]) == (32000, 768, 2048)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (12, 12, 64)
    assert config["max_position_embeddings"] == 2048
    assert config["tie_word_embeddings"] is False
    assert json.loads(json.dumps(config)) == config


@pytest.mark.parametrize("hidden", [64, 100, 256, 768, 2048, 4096])
def test_default_width_of_the_mlp(hidden: int) -> None:
    gated = default_ffn(hidden, gated=True)
    assert gated % 64 == 0
    assert 0 <= gated - 8 * hidden / 3 < 64
    assert default_ffn(hidden, gated=False) == 4 * hidden


def test_every_architecture_takes_the_words() -> None:
    for arch in SCRATCH:
        config = scratch(arch=arch, dropout=0.25, ffn=1000)
        assert 0.25 in config.values(), arch
        assert 1000 in config.values(), arch
        assert config["pad_token_id"] is None, arch  # a pad id freezes that row of the embedding


def test_dropout_goes_to_the_architectures_own_keys() -> None:
    assert {k: v for k, v in scratch(dropout=0.1).items() if v == 0.1} == {"attention_dropout": 0.1}
    assert {k for k, v in scratch(arch="gpt2", dropout=0.1).items() if v == 0.1} == {
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
    }


def test_tied_embeddings_follow_the_architecture_until_said() -> None:
    assert scratch(arch="gpt2")["tie_word_embeddings"] is True
    assert scratch(arch="gpt2", tie_embeddings=False)["tie_word_embeddings"] is False
    assert scratch(tie_embeddings=True)["tie_word_embeddings"] is True


def test_sliding_windows_are_off_from_scratch() -> None:
    assert scratch(arch="mistral")["sliding_window"] is None
    assert scratch(arch="qwen2")["use_sliding_window"] is False


def test_extra_passes_through() -> None:
    rope = {"rope_theta": 500000.0, "rope_type": "default"}
    config = scratch(extra={"rope_parameters": rope, "rms_norm_eps": 1e-5})
    assert config["rope_parameters"] == rope
    assert config["rms_norm_eps"] == 1e-5
    assert scratch(arch="qwen3", heads=12, hidden=100, extra={"head_dim": 64})["head_dim"] == 64


def test_extra_must_not_say_what_the_words_say() -> None:
    with pytest.raises(ConfigError, match=r"model.config.extra.hidden_size = 1024: is already set, to 768"):
        scratch(extra={"hidden_size": 1024})


def test_an_unknown_architecture_names_the_near_ones() -> None:
    with pytest.raises(ConfigError, match="did you mean qwen3 or qwen2"):
        scratch(arch="qwen")
    with pytest.raises(ConfigError, match=r"one of llama, mistral"):
        scratch(arch="zzz")
    with pytest.raises(ConfigError, match="did you mean gpt_neox"):
        scratch(arch="gpt-neox")


def test_all_problems_at_once_with_the_nearest_legal_values() -> None:
    arch = words(heads=25, kv_heads=4, max_sequence=1024, extra={"vocab_size": 3}, vocab=32000)
    with pytest.raises(ConfigError) as caught:
        scratch_config(arch, vocab=50000, sequence=2048)
    text = str(caught.value)
    assert "must divide model.config.hidden (768 is not a multiple of 25)" in text
    assert "model.config.heads=24 or model.config.heads=32" in text
    assert "must divide model.config.heads (25 is not a multiple of 4)" in text
    assert "model.config.kv_heads=1 or model.config.kv_heads=5" in text
    assert "the tokenizer has 50000 entries, but the embedding would have only 32000 rows" in text
    assert "is shorter than train.sequence (2048)" in text
    assert "model.config.extra.vocab_size" in text
    assert len(caught.value.problems) == 5


def test_rotary_heads_must_be_even() -> None:
    with pytest.raises(ConfigError, match="heads of 3 dimensions"):
        scratch(hidden=12, heads=4)
    scratch(arch="gpt2", hidden=12, heads=4)  # learned positions turn nothing


def test_fewer_key_heads_only_where_the_architecture_has_them() -> None:
    assert scratch(kv_heads=4)["num_key_value_heads"] == 4
    with pytest.raises(ConfigError, match="as many key and value heads as heads"):
        scratch(arch="gpt2", kv_heads=4)


def test_divisors_and_nearest() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert nearest(5, divisors(12)) == [4, 6]
    assert nearest(100, [1, 5, 25]) == [5, 25]


def pretrained(folder: Path, **config: Any) -> ModelConfig:
    folder.mkdir(exist_ok=True)
    base = {"model_type": "llama", "vocab_size": 100, "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(base | config))
    return ModelConfig.model_validate({"from": folder.name})


def test_a_local_folder(tmp_path: Path) -> None:
    model = pretrained(tmp_path / "model")
    config = resolve_model_config(model, vocab=100, sequence=64, base=tmp_path)
    assert config["vocab_size"] == 100
    origin = resolve_model(model, vocab=90, sequence=64, base=tmp_path)
    assert (origin.path, origin.revision, origin.notes) == (tmp_path / "model", None, ())
    pinned = ModelConfig.model_validate({"from": "model", "revision": "main"})
    assert "no meaning for the local folder" in resolve_model(pinned, vocab=9, sequence=8, base=tmp_path).notes[0]


def test_a_tokenizer_larger_than_the_embedding(tmp_path: Path) -> None:
    model = pretrained(tmp_path / "model")
    with pytest.raises(
        ModelError, match=r"tokenizer has 101 entries \(ids to 100\), but the model's embedding only 100 rows"
    ) as caught:
        resolve_model(model, vocab=101, sequence=64, base=tmp_path)
    assert "fix: use the tokenizer that belongs to the model" in str(caught.value)


def test_a_sequence_beyond_the_positions(tmp_path: Path) -> None:
    rotary = pretrained(tmp_path / "model")
    notes = resolve_model(rotary, vocab=100, sequence=128, base=tmp_path).notes
    assert "train.sequence 128 is longer than the 64 positions" in notes[0]
    learned = pretrained(tmp_path / "gpt2", model_type="gpt2", n_positions=64)
    with pytest.raises(ModelError, match="learned positions for 64 tokens") as caught:
        resolve_model(learned, vocab=101, sequence=128, base=tmp_path)
    assert len(caught.value.problems) == 2  # the tokenizer's too
    assert "train.sequence=64" in str(caught.value)


def test_what_is_no_model_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, message in (("empty", "is not a model folder"), ("./gone", "there is no folder"), ("a/b/c", "no folder")):
        with pytest.raises(ModelError, match=message):
            resolve_model(ModelConfig.model_validate({"from": name}), vocab=1, sequence=1, base=tmp_path)
    for text, message in (("{", "is not JSON"), ("[]", "has no model_type"), ("{}", "has no model_type")):
        (tmp_path / "empty" / "config.json").write_text(text)
        with pytest.raises(ModelError, match=message):
            resolve_model(ModelConfig.model_validate({"from": "empty"}), vocab=1, sequence=1, base=tmp_path)


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_an_encoder_cannot_learn_to_continue_a_text(tmp_path: Path, kind: str) -> None:
    """transformers has a class for it, whose every token sees the next one."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "vocab_size": 9, "hidden_size": 8}))
    model = ModelConfig.model_validate({"from": str(tmp_path)})
    with pytest.raises(ModelError, match=rf"{kind} is an encoder: .* \(instruction\)") as caught:
        resolve_model(model, vocab=9, sequence=8, base=tmp_path, task="instruction")
    assert "task: classification" in caught.value.problems[0].fix
    assert resolve_model(model, vocab=9, sequence=8, base=tmp_path, task="classification").path == tmp_path
