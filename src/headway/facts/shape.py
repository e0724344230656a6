"""What the planner must know of a model, counted from its config alone: exact formulas, or a probe for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headway.facts.architectures import ARCHITECTURES, HEADS, Arch
from headway.facts.counting import count_shape
from headway.facts.dimensions import Dimensions
from headway.facts.dropout import drops_attention, drops_hidden
from headway.facts.labels import label_count
from headway.facts.model_config import value_of
from headway.facts.needed import require_heads, require_sizes
from headway.facts.probing import ask_probe
from headway.facts.schema import AdapterShape, ModelShape

_LABELLED = "classification"  # the one task whose model has another head than a language model's


def shape_of(config: dict[str, Any], task: str = "causal_lm") -> ModelShape:
    """Parameter counts and dimensions of a transformers config (the content of config.json), with the task's head.

    llama, mistral, qwen2, qwen3, gemma, gemma2, gpt2, gpt_neox, phi and bert by formula, exact, and the causal models
    of `headway.facts.counting`; any other architecture is built on the meta device by
    `python -m headway.model.probe`, in a process of its own. How the weights are stored (`quantization_config`) changes
    no shape.

    Raises:
        ModelError: a needed field is missing, or the probe cannot build the model.
    """
    arch = ARCHITECTURES.get(str(config.get("model_type")))
    plain = not config.get("add_cross_attention")
    drops = {"hidden_dropout": drops_hidden(config), "attention_dropout": drops_attention(config)}
    if plain and task != _LABELLED and (counted := count_shape(config)) is not None:
        return counted.model_copy(update=drops)
    if arch is None or not plain:
        return probe_shape(config, task)
    return _counted(config, arch, task).model_copy(update=drops)


def _counted(config: dict[str, Any], arch: Arch, task: str) -> ModelShape:
    size = read_dimensions(config, arch)
    block = _block(config, size, arch)
    embedding = size.vocab * size.hidden
    labelled = task == _LABELLED
    head, extra = _label_head(config, size) if labelled else _head(config, size)
    total = embedding + head + extra + size.layers * block
    return ModelShape(
        arch=str(config["model_type"]),
        parameters=total,
        trainable_parameters=total,
        embedding_parameters=embedding + head,
        hidden=size.hidden,
        layers=size.layers,
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_dim,
        ffn=size.ffn,
        vocab=size.vocab,
        max_sequence=size.positions,
        tied=size.tied and not labelled,
        largest_layer_parameters=max(block, embedding),
        estimated=True,
        gated=arch.gated,
        layer_norm=arch.norm == "layer",
        head=HEADS.get(str(config["model_type"]), "linear"),
    )


def read_dimensions(config: dict[str, Any], arch: Arch) -> Dimensions:
    """The config's numbers. Raises ModelError naming every needed field that is missing or no size."""

    def read(word: str) -> Any:
        return value_of(config, word)

    words = ("vocab", "hidden", "layers", "heads")
    ffn_by_rule = arch.key("ffn") == "n_inner"  # gpt2 leaves it null for 4 x hidden
    needed = (*words, *(() if ffn_by_rule and read("ffn") is None else ("ffn",)))
    found = {arch.key(word): read(word) for word in needed} | {"model_type": config.get("model_type")}
    require_sizes(found, [arch.key(word) for word in needed])
    hidden, heads = int(read("hidden")), int(read("heads"))
    kv_heads = int(read("kv_heads") or heads) if arch.kv else heads
    width = read("head_dim") if arch.kv else None
    require_heads(hidden, heads, kv_heads, free=bool(width))
    return Dimensions(
        vocab=int(read("vocab")),
        hidden=hidden,
        layers=int(read("layers")),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=int(width or hidden // heads),
        ffn=int(read("ffn") or 4 * hidden),
        positions=int(read("max_sequence") or 0),
        tied=bool(read("tie_embeddings")),
    )


def _block(config: dict[str, Any], size: Dimensions, arch: Arch) -> int:
    """Parameters of one transformer block."""
    model = str(config["model_type"])
    norm = size.hidden * (2 if arch.norm == "layer" else 1)
    norms = {"gemma2": 4, "phi": 1}.get(model, 2) * norm  # phi: attention and MLP in parallel behind one norm
    return norms + _attention(config, size, model) + _mlp(config, size, arch, model)


def _attention(config: dict[str, Any], size: Dimensions, model: str) -> int:
    weights, bias_in, bias_out = size.attention, size.bias, size.hidden
    by_key = bool(config.get("attention_bias", ARCHITECTURES[model].defaults.get("attention_bias", False)))
    if model == "qwen2":
        return weights + bias_in
    if model in ("gpt2", "bert", "phi"):
        norms = 4 * size.head_dim if model == "phi" and config.get("qk_layernorm") else 0
        return weights + bias_in + bias_out + norms
    if model == "mistral":
        return weights
    norms = 2 * size.head_dim if model == "qwen3" else 0
    return weights + norms + (bias_in + bias_out if by_key else 0)


def _mlp(config: dict[str, Any], size: Dimensions, arch: Arch, model: str) -> int:
    if not arch.gated:
        return 2 * size.hidden * size.ffn + size.ffn + size.hidden
    biases = 2 * size.ffn + size.hidden if model == "llama" and config.get("mlp_bias") else 0
    return 3 * size.hidden * size.ffn + biases


def _head(config: dict[str, Any], size: Dimensions) -> tuple[int, int]:
    """(output head without what it shares with the embedding, everything else outside of the blocks)."""
    model = str(config["model_type"])
    arch = ARCHITECTURES[model]
    matrix = 0 if size.tied else size.vocab * size.hidden
    final_norm = size.hidden * (2 if arch.norm == "layer" else 1)
    if model == "bert":  # masked LM: transform and its norm before the head; word, position and segment embeddings
        segments = int(value_of(config, "max_sequence")) + int(config.get("type_vocab_size", 2))
        transform = size.hidden * size.hidden + size.hidden + final_norm
        # untied, transformers keeps the predictions' own bias beside the head's
        unused_bias = 0 if size.tied else size.vocab
        return matrix + size.vocab, segments * size.hidden + final_norm + transform + unused_bias
    if model == "gpt2":
        return matrix, size.positions * size.hidden + final_norm
    return matrix + (size.vocab if model == "phi" else 0), final_norm


def _label_head(config: dict[str, Any], size: Dimensions) -> tuple[int, int]:
    """As `_head`, of a classifier: one output a label in place of the vocabulary."""
    model = str(config["model_type"])
    norm = size.hidden * (2 if ARCHITECTURES[model].norm == "layer" else 1)
    outputs = label_count(config) * size.hidden
    if model == "bert":
        places = int(value_of(config, "max_sequence")) + int(config.get("type_vocab_size", 2))
        pooler = size.hidden * size.hidden + size.hidden
        return outputs + label_count(config), places * size.hidden + norm + pooler
    return outputs, norm + (size.positions * size.hidden if model == "gpt2" else 0)


def probe_shape(config: dict[str, Any], task: str = "causal_lm") -> ModelShape:
    """Build the model on the meta device in a process of its own and count. Raises ModelError with its words."""
    return ask_probe(ModelShape, config, ("--task", task) if task == _LABELLED else ())


def probe_adapter(config: dict[str, Any], rank: int, targets: Sequence[str] | str) -> AdapterShape:
    """As `probe_shape`: what an adapter adds to the model. Raises ModelError, also where a target means no layer."""
    words = [targets] if isinstance(targets, str) else list(targets)
    return ask_probe(AdapterShape, config, ("--rank", str(rank), "--targets", *words))


@dataclass(frozen=True)
class OwnModel:
    """A user's module for the probe: the factory's import path and arguments, and the folders to import from.

    rank, targets: of an adapter in it; rank 0: none.
    """

    factory: str
    options: dict[str, Any]
    vocab: int
    sequence: int
    folders: tuple[str, ...]
    rank: int = 0
    targets: tuple[str, ...] | str = ()

    def with_adapter(self, rank: int, targets: tuple[str, ...] | str) -> OwnModel:
        return replace(self, rank=rank, targets=targets)


def probe_own(model: OwnModel) -> ModelShape:
    """As `probe_shape`, of what a user's factory makes. Raises ModelError with what is wrong with it.

    The shape names the adapter, if one is asked for; `with_adapter` counts it in.
    """
    return ask_probe(ModelShape, {"model_type": model.factory, **asdict(model)}, ("--own",))
