"""`python -m headway.model.probe CONFIG.json`: the shape of any transformers model, counted on the built architecture.

Prints a ModelShape as JSON on the last line of its output; with `--rank N --targets NAME ...` an AdapterShape; with
`--own` the shape of a user's module, CONFIG.json being `headway.facts.shape.OwnModel`. `--read FILE` writes which files
of the user's were read for it, with their hashes. For the planner, which loads no torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from headway.errors import HeadwayError, ModelError, Problem
from headway.facts.adapters import ALL_LINEAR, adapter_shape
from headway.facts.dropout import drops_attention, drops_hidden
from headway.facts.schema import ExpertShape, ModelShape
from headway.model.heads import head_kind
from headway.model.own import NO_SOURCE, call_factory, callable_layers, is_source, load_factory, own_shape
from headway.model.skeleton import build_empty, build_skeleton, linear_layers, model_class, read_config
from headway.plan.schema import ModelPlan

# How transformers' architectures name the gate of a gated MLP.
_GATES = ("gate_proj", "gate_up_proj", ".w3.", "wi_1")
_EXPERTS = ".experts."
PACKAGE = Path(__file__).resolve().parents[1]


def shape_of_model(model: Any) -> ModelShape:
    """Counts of a model whose parameters may be on the meta device. Tied parameters count once."""
    config = model.config.get_text_config()
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    vocabulary = {id(p): p.numel() for part in (embedding, head) if part is not None for p in part.parameters()}
    hidden = int(config.hidden_size)
    heads = int(getattr(config, "num_attention_heads", 0) or 1)
    return ModelShape(
        arch=str(model.config.model_type),
        parameters=count(model),
        trainable_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        embedding_parameters=sum(vocabulary.values()),
        hidden=hidden,
        layers=int(config.num_hidden_layers),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or hidden // heads),
        ffn=int(_first(config, "intermediate_size", "n_inner", "ffn_dim", "d_ff") or 4 * hidden),
        vocab=int(config.vocab_size),
        max_sequence=int(_first(config, "max_position_embeddings", "n_positions", "max_seq_len") or 0),
        tied=head is not None and head.weight is embedding.weight,
        largest_layer_parameters=largest_layer(model),
        gated=any(word in name for name, _ in model.named_parameters() for word in _GATES),
        layer_norm=any(isinstance(part, nn.LayerNorm) for part in model.modules()),
        experts=experts_of(model, config),
        hidden_dropout=drops_hidden(config.to_dict()),
        attention_dropout=drops_attention(config.to_dict()),
        head="linear" if head is None else head_kind(model),
    )


def _built(kind: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    """On the meta device altogether: a skeleton's parameters pass through the host, tens of GB of a layer's experts.

    An architecture whose constructor reads its buffers is built as a skeleton after all.
    """
    try:
        with torch.device("meta"):
            return build_empty(kind, config)
    except (ModelError, NotImplementedError):
        return build_skeleton(kind, config)


def experts_of(model: Any, config: Any) -> ExpertShape | None:
    """A mixture's experts, by what architectures call them; None where there are none, or one of them takes all."""
    total = _first(config, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    each = _first(config, "num_experts_per_tok", "moe_top_k", "num_experts_per_token", "moe_k")
    routed = {name: p.numel() for name, p in model.named_parameters() if _EXPERTS in name}
    if not isinstance(total, int) or not isinstance(each, int) or not routed or each >= total:
        return None
    layers = len({name.partition(_EXPERTS)[0] for name in routed})
    shared = sum(p.numel() for name, p in model.named_parameters() if "shared_expert" in name and p.dim() == 2)
    matrices = (3 if any(gate in name for name in routed for gate in _GATES) else 2) * int(config.hidden_size)
    return ExpertShape(
        count=total,
        per_token=each,
        ffn=round(sum(n for name, n in routed.items() if "bias" not in name) / (total * layers * matrices)),
        layers=layers,
        shared_ffn=round(shared / (layers * matrices)),
        parameters=sum(routed.values()),
    )


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def largest_layer(model: nn.Module) -> int:
    """Parameters of the largest block, embedding or head: what ZeRO-3 gathers at once."""
    blocks = [block for part in model.modules() if isinstance(part, nn.ModuleList) for block in part]
    tables = [part for part in model.modules() if isinstance(part, nn.Embedding)]
    return max((count(part) for part in [*blocks, *tables]), default=0)


def _first(config: Any, *names: str) -> Any:
    return next((getattr(config, name) for name in names if getattr(config, name, None)), None)


def shape_of_own(asked: dict[str, Any]) -> ModelShape:
    """The shape of what the user's factory makes, on the meta device where its constructor allows that.

    Raises ModelError with the factory's own words where it fails.
    """
    sys.path[:0] = asked["folders"]
    kind = asked["factory"]
    made = _said_by(kind, lambda: load_factory(kind))
    plan = ModelPlan(kind=kind, options=asked["options"])
    if is_source(made):
        if asked["rank"]:
            raise ModelError(problems=[Problem("adapter", NO_SOURCE, kind, "name a factory, or remove adapter")])
        rule = "is a ModelSource class without a static method shape(options), which returns its ModelShape"
        shape: Any = getattr(made, "shape", None)
        if shape is None:
            raise ModelError(problems=[Problem("model.factory", rule, kind, "add it")])
        return shape(asked["options"])

    def built() -> nn.Module:
        return call_factory(made, plan, asked["vocab"], asked["sequence"])

    try:
        with torch.device("meta"):
            module = built()
    except ModelError:
        raise
    except Exception:  # a constructor that reads its values: it is run for real
        module = _said_by(kind, built)
    shape = own_shape(module, kind, asked["vocab"], asked["sequence"])
    if not asked["rank"]:
        return shape
    added = adapter_shape(callable_layers(module), asked["targets"], asked["rank"])
    return shape.model_copy(update={"adapter": added})


def _said_by(kind: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except HeadwayError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        rule = f"failed: {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        raise ModelError(problems=[Problem("model.factory", rule, kind, "correct it")]) from error


def watch_reads() -> set[str]:
    """Absolute paths of the files that are opened for reading from now on, as they are."""
    opened: set[str] = set()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            opened.add(os.path.abspath(arguments[0]))

    sys.addaudithook(note)
    return opened


def hashes_of_read(opened: Iterable[str], factory: str, beside: Path) -> dict[str, str]:
    """Hashes of the user's files: neither the interpreter's nor its packages', nor the system's, nor those `beside`.

    Of the packages the factory's own counts all the same. A module that came from its bytecode counts by its source.
    """
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    package = factory.partition(":")[0].partition(".")[0]
    of_factory = {file for name, file in files.items() if file and name.partition(".")[0] == package}
    paths = {*sysconfig.get_paths().values(), "/proc", "/sys", "/dev", PACKAGE, beside}
    apart = [Path(entry).resolve() for entry in paths]
    hashes: dict[str, str] = {}
    for name in sorted({*opened, *(file for file in files.values() if file)}):
        path = Path(name).resolve()
        own = name in of_factory or not any(path.is_relative_to(folder) for folder in apart)
        if own and "__pycache__" not in path.parts and path.is_file():
            hashes[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashes


def main(arguments: list[str]) -> int:
    """Exit code 0 with the shape on stdout, or the error's code with its message on stderr."""
    parser = argparse.ArgumentParser(prog="python -m headway.model.probe")
    parser.add_argument("config", type=Path)
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--task", default="causal_lm")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--targets", nargs="+", default=[ALL_LINEAR])
    parser.add_argument("--read", type=Path)
    asked = parser.parse_args(arguments)
    try:
        content = json.loads(asked.config.read_text(encoding="utf-8"))
        if asked.own:
            opened = watch_reads()
            print(shape_of_own(content).model_dump_json())
            if asked.read is not None:
                read = hashes_of_read(opened, content["factory"], asked.config.parent)
                asked.read.write_text(json.dumps(read), encoding="utf-8")
            return 0
        config = read_config(content)
        model = _built(model_class(config, asked.task), config)
        if not asked.rank:
            print(shape_of_model(model).model_dump_json())
            return 0
        targets = ALL_LINEAR if asked.targets == [ALL_LINEAR] else asked.targets
        print(adapter_shape(linear_layers(model), targets, asked.rank).model_dump_json())
    except HeadwayError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
