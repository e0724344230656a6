"""From the run file's `model` section to a complete transformers config, as JSON. No torch, no transformers."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from headway.config.schema import ModelArch, ModelConfig
from headway.errors import ConfigError, ModelError, Problem
from headway.facts.architectures import ARCHITECTURES, SCRATCH, Arch
from headway.facts.hub import hub_snapshot

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_FFN_MULTIPLE = 64


_ENCODERS = frozenset(
    [
        "albert",
        "bert",
        "big_bird",
        "camembert",
        "canine",
        "convbert",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "ernie",
        "esm",
        "eurobert",
        "flaubert",
        "fnet",
        "funnel",
        "ibert",
        "layoutlm",
        "longformer",
        "megatron-bert",
        "mobilebert",
        "modernbert",
        "mpnet",
        "mra",
        "nezha",
        "nystromformer",
        "qdqbert",
        "rembert",
        "roberta",
        "roberta-prelayernorm",
        "roc_bert",
        "roformer",
        "splinter",
        "squeezebert",
        "xlm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
        "yoso",
    ]
)

# Of architectures that have no row of their own: a table of positions, beyond which there is none.
_LEARNED_POSITIONS = frozenset(
    ["albert", "biogpt", "camembert", "distilbert", "electra", "mobilebert", "mpnet", "opt", "roberta", "xlm-roberta"]
)


@dataclass(frozen=True)
class ModelOrigin:
    """The resolved model: config ({} of an own module), folder and revision (None from scratch), notes for the user."""

    config: dict[str, Any]
    path: Path | None = None
    revision: str | None = None
    notes: tuple[str, ...] = ()


def resolve_model_config(model: ModelConfig, *, vocab: int, sequence: int, base: Path) -> dict[str, Any]:
    """The complete transformers config of the run's model, as `config.json` would hold it.

    Args:
        vocab: entries of the tokenizer.
        sequence: tokens of a training sample.
        base: the run file's folder; `model.from` is relative to it.

    Raises:
        ConfigError: the short words do not make a legal model (all problems at once).
        ModelError: a pretrained model is absent, unreadable, or does not fit the tokenizer or the sequence.
    """
    return resolve_model(model, vocab=vocab, sequence=sequence, base=base).config


def resolve_model(model: ModelConfig, *, vocab: int, sequence: int, base: Path, task: str = "causal_lm") -> ModelOrigin:
    """As `resolve_model_config`, with the folder, the revision and notes that the plan and the checks show.

    task: a classifier may be an encoder.
    """
    if model.factory is not None:
        return ModelOrigin({})
    if model.config is not None:
        return ModelOrigin(scratch_config(model.config, vocab=vocab, sequence=sequence, task=task))
    if model.from_ is None:
        fix = "write model.config (from scratch), model.from (a folder or a Hub id) or model.factory (your own)"
        raise ConfigError(problems=[Problem("model", "needs one of `config` and `from`", fix=fix)])
    folder, revision, notes = locate_pretrained(model.from_, model.revision, base)
    config = read_config(folder)
    if task != "classification":
        _require_decoder(config, folder, task)
    check_fit(config, vocab=vocab, sequence=sequence, where=str(folder))
    return ModelOrigin(config, folder, revision, (*notes, *stored_notes(config), *sequence_notes(config, sequence)))


def _require_decoder(config: dict[str, Any], folder: Path, task: str) -> None:
    """An encoder sees what comes after a token, so its next-token loss falls to nothing and means nothing.

    Of some, transformers has a class with such a loss all the same. Raises ModelError.
    """
    if is_encoder(config):
        kind = config["model_type"]
        rule = f"{kind} is an encoder: it reads a text from both ends, so it cannot learn to continue one ({task})"
        fix = "write task: classification, or take a decoder such as llama, qwen2 or gpt2"
        raise ModelError(problems=[Problem("model.from", rule, str(folder), fix)])


def is_encoder(config: dict[str, Any]) -> bool:
    return str(config["model_type"]) in _ENCODERS and config.get("is_decoder") is not True


def encoder_notes(config: dict[str, Any], task: str) -> tuple[str, ...]:
    """What to say of a plan of an encoder for a task that a run of it refuses."""
    if task == "classification" or not is_encoder(config):
        return ()
    return (
        f"{config['model_type']} is an encoder: planned with its language head, but a run needs task=classification",
    )


def locate_pretrained(name: str, revision: str | None, base: Path) -> tuple[Path, str | None, tuple[str, ...]]:
    """(folder, revision, notes) of a local folder or a Hub id. Raises ModelError if it is neither."""
    folder = (base / os.path.expanduser(name)).resolve()  # Path's own raises where a home is not known
    if folder.is_dir():
        notes = (f"model.revision {revision} has no meaning for the local folder {name}",) if revision else ()
        return folder, None, notes
    if name.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(name):
        raise ModelError(f"model.from = {name!r}: there is no folder {folder}", fix="give a model folder or a Hub id")
    snapshot = hub_snapshot(name, revision)
    return snapshot.path, snapshot.revision, snapshot.notes


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a model folder. Raises ModelError if it is absent, not JSON, or names no model_type."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        fix = "point model.from at a folder that save_pretrained wrote"
        raise ModelError(f"{folder} is not a model folder: config.json: {error.strerror}", fix=fix) from error
    except ValueError as error:
        raise ModelError(f"{file} is not JSON: {error}", fix="save the model again, or restore the file") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):  # pyright: ignore[reportUnknownMemberType]
        raise ModelError(f"{file} has no model_type", fix="save the model with transformers' save_pretrained")
    return config  # pyright: ignore[reportUnknownVariableType]


def value_of(config: dict[str, Any], word: str) -> Any:
    """A config's value for one of the run file's words (`vocab`, `max_sequence`, ...), by its architecture's key."""
    arch = ARCHITECTURES.get(str(config.get("model_type")))
    keys = [arch.key(word)] if arch else []
    for name in [*keys, Arch("", "rms", gated=True).key(word)]:
        if config.get(name) is not None:
            return config[name]
    return arch.defaults.get(arch.key(word)) if arch else None


def uses_rotary(config: dict[str, Any]) -> bool:
    """Whether positions are rotary: the weights hold no longest sequence. Unknown architectures count as rotary."""
    kind = str(config.get("model_type"))
    arch = ARCHITECTURES.get(kind)
    return arch.rotary if arch else kind not in _LEARNED_POSITIONS


def check_fit(config: dict[str, Any], *, vocab: int, sequence: int, where: str) -> None:
    """Tokenizer against embedding, sequence against learned positions. Raises ModelError with every problem."""
    problems: list[Problem] = []
    rows, longest = value_of(config, "vocab"), value_of(config, "max_sequence")
    if isinstance(rows, int) and vocab > rows:
        has = f"the tokenizer has {vocab} entries (ids to {vocab - 1})"
        rule = f"{has}, but the model's embedding only {rows} rows ({where})"
        problems.append(Problem("model.tokenizer", rule, fix="use the tokenizer that belongs to the model"))
    if isinstance(longest, int) and sequence > longest and not uses_rotary(config):
        rule = f"the model has learned positions for {longest} tokens and no more ({where})"
        problems.append(Problem("train.sequence", rule, sequence, f"train.sequence={longest}"))
    if problems:
        raise ModelError(problems=problems)


def stored_notes(config: dict[str, Any]) -> tuple[str, ...]:
    """What to say of weights that are stored in few bits: the run refuses to train them, the plan counts them all."""
    stored = config.get("quantization_config")
    if not stored:
        return ()
    how = stored.get("quant_method", "few bits") if isinstance(stored, dict) else stored  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return (
        f"the config says that the weights are quantised ({how}): such weights cannot be trained as they are; planned "
        "as the unquantised model, which the run needs (adapter.kind: qlora quantises it by itself)",
    )


def sequence_notes(config: dict[str, Any], sequence: int) -> tuple[str, ...]:
    """What to say of a sequence that rotary positions allow but the model was not made for."""
    longest = value_of(config, "max_sequence")
    if isinstance(longest, int) and sequence > longest and uses_rotary(config):
        return (
            f"train.sequence {sequence} is longer than the {longest} positions the model was made for: rotary "
            "positions allow it, but quality beyond them has to be learnt (or scaled in, by rope_parameters)",
        )
    return ()


def scratch_config(arch: ModelArch, *, vocab: int, sequence: int, task: str = "causal_lm") -> dict[str, Any]:
    """A complete config from the run file's short words. Raises ConfigError with every problem at once."""
    known = tuple(ARCHITECTURES) if task == "classification" else SCRATCH
    row = ARCHITECTURES.get(arch.arch) if arch.arch in known else None
    if row is None:
        near = get_close_matches(arch.arch.lower().replace("-", "_"), known, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(known)}"
        fix = "for any other, give model.from a folder with its config.json"
        raise ConfigError(
            problems=[Problem("model.config.arch", f"is not a known architecture; {hint}", arch.arch, fix)]
        )
    problems = _head_problems(arch, row) + _size_problems(arch, vocab, sequence)
    config = _written(arch, row, vocab, sequence)
    problems += [
        Problem(
            f"model.config.extra.{key}",
            f"is already set, to {config[key]!r}",
            value,
            "say it once: drop one of the two",
        )
        for key, value in arch.extra.items()
        if key in _said_by_words(row)
    ]
    if problems:
        raise ConfigError(problems=problems)
    config |= arch.extra
    return config


def _written(arch: ModelArch, row: Arch, vocab: int, sequence: int) -> dict[str, Any]:
    # Special tokens come from the tokenizer: transformers' own defaults (50256 for gpt2, pad 0 for gemma) are rows of
    # another vocabulary, and a pad id in the config freezes that embedding row at zero.
    config: dict[str, Any] = {
        "model_type": arch.arch,
        "architectures": [row.causal_lm],
        row.key("vocab"): vocab if arch.vocab == "auto" else arch.vocab,
        row.key("hidden"): arch.hidden,
        row.key("layers"): arch.layers,
        row.key("heads"): arch.heads,
        row.key("ffn"): arch.ffn or default_ffn(arch.hidden, gated=row.gated),
        row.key("max_sequence"): sequence if arch.max_sequence == "auto" else arch.max_sequence,
        row.key("tie_embeddings"): arch.tie_embeddings if "tie_embeddings" in arch.model_fields_set else row.tied,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if row.kv:
        config[row.key("kv_heads")] = arch.kv_heads or arch.heads
    if row.head_dim_key:
        config["head_dim"] = arch.hidden // arch.heads
    if arch.arch == "gemma2":
        config["query_pre_attn_scalar"] = arch.extra.get("head_dim", config["head_dim"])
    return config | dict.fromkeys(row.dropout, arch.dropout) | row.scratch


def default_ffn(hidden: int, *, gated: bool) -> int:
    """Width of the MLP: 4 x hidden; gated, 8/3 x hidden, for the third matrix then costs what the wider two would.

    (3 x 8/3 = 2 x 4: Shazeer 2020, 'GLU Variants Improve Transformer'.) Rounded up to a multiple of 64, the tile of
    matrix units in every 16-bit precision.
    """
    if not gated:
        return 4 * hidden
    return -(-8 * hidden // (3 * _FFN_MULTIPLE)) * _FFN_MULTIPLE


def _said_by_words(row: Arch) -> set[str]:
    words = ("vocab", "hidden", "layers", "heads", "kv_heads", "ffn", "max_sequence", "tie_embeddings")
    return {row.key(word) for word in words if word != "kv_heads" or row.kv} | set(row.dropout) | {"model_type"}


def _head_problems(arch: ModelArch, row: Arch) -> list[Problem]:
    problems: list[Problem] = []
    free = row.head_dim_free and "head_dim" in arch.extra
    if arch.hidden % arch.heads and not free:
        rule = f"must divide model.config.hidden ({arch.hidden} is not a multiple of {arch.heads})"
        near = " or ".join(f"model.config.heads={n}" for n in nearest(arch.heads, divisors(arch.hidden)))
        multiple = round(arch.hidden / arch.heads) * arch.heads or arch.heads
        problems.append(Problem("model.config.heads", rule, arch.heads, f"{near}, or model.config.hidden={multiple}"))
    elif row.rotary and (head := arch.extra.get("head_dim", arch.hidden // arch.heads)) % 2:
        rule = f"gives heads of {head} dimensions: rotary positions turn pairs, so the number must be even"
        even = [n for n in divisors(arch.hidden) if arch.hidden // n % 2 == 0]
        near = " or ".join(f"model.config.heads={n}" for n in nearest(arch.heads, even))
        problems.append(Problem("model.config.heads", rule, arch.heads, near or "use an even model.config.hidden"))
    if arch.kv_heads is not None and not row.kv and arch.kv_heads != arch.heads:
        rule = f"{arch.arch} has as many key and value heads as heads"
        problems.append(Problem("model.config.kv_heads", rule, arch.kv_heads, "drop model.config.kv_heads"))
    elif arch.kv_heads is not None and arch.heads % arch.kv_heads:
        rule = f"must divide model.config.heads ({arch.heads} is not a multiple of {arch.kv_heads})"
        near = " or ".join(f"model.config.kv_heads={n}" for n in nearest(arch.kv_heads, divisors(arch.heads)))
        problems.append(Problem("model.config.kv_heads", rule, arch.kv_heads, near))
    return problems


def _size_problems(arch: ModelArch, vocab: int, sequence: int) -> list[Problem]:
    problems: list[Problem] = []
    if arch.vocab != "auto" and arch.vocab < vocab:
        rule = f"the tokenizer has {vocab} entries, but the embedding would have only {arch.vocab} rows"
        problems.append(Problem("model.config.vocab", rule, arch.vocab, f"model.config.vocab={vocab}, or leave it out"))
    if arch.max_sequence != "auto" and arch.max_sequence < sequence:
        rule = f"is shorter than train.sequence ({sequence})"
        fix = f"model.config.max_sequence={sequence}, or train.sequence={arch.max_sequence}"
        problems.append(Problem("model.config.max_sequence", rule, arch.max_sequence, fix))
    return problems


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def nearest(wanted: int, legal: list[int], count: int = 2) -> list[int]:
    """The legal values next to the wanted one, in order."""
    return sorted(sorted(legal, key=lambda n: (abs(n - wanted), n))[:count])
