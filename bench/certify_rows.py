"""The plans that `make certify-matrix` certifies: every pair of two settings occurs in at least one of them."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

_OFFLOADS: dict[str, dict[str, str]] = {
    "": {},
    "+optimizer": {"optimizer": "cpu"},
    "+both": {"optimizer": "cpu", "parameters": "cpu"},
}


def _strategy(name: str) -> str:
    kind, plus, offload = name.partition("+")
    value = {"kind": kind, "offload": _OFFLOADS[plus + offload]} if plus else {"kind": kind}
    return f"strategy={json.dumps(value)}"


STRATEGIES = (
    *("single", "ddp", "zero-0", "zero-1", "zero-2", "zero-3"),
    *("zero-1+optimizer", "zero-2+optimizer", "zero-3+optimizer", "zero-3+both"),
)
ARCHITECTURES = ("llama", "gpt2", "qwen2", "mistral", "gpt_neox", "phi", "gemma", "qwen3", "gemma2")

# Setting -> value -> overrides of the plan in tests/certify/faults.py.
SETTINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "strategy": {
        name: (_strategy(name), *(("launch.processes=1",) if name == "single" else ())) for name in STRATEGIES
    },
    "precision": {"fp32": ("train.precision=fp32",), "bf16": ("train.precision=bf16",)},
    "batch": {
        "2x4": ("train.micro_batch=2",),
        "8x1": ("train.micro_batch=8",),
        "2x4, 13": ("train.micro_batch=2", "train.global_batch=13 sequences"),
    },
    "packing": {"packed": (), "ragged": ("data.packing=false",)},
    "recompute": {"no": (), "yes": ("train.activation_checkpointing=true",)},
    "optimizer": {
        "adamw": (),
        "adam": ("optimizer.kind=adam", "optimizer.schedule=linear"),
        "sgd": ("optimizer.kind=sgd", "optimizer.schedule=constant"),
        "rmsprop": ("optimizer.kind=rmsprop", "optimizer.clip=0"),
    },
    "head": {"untied": (), "tied": ("model.config.tie_embeddings=true",)},
    "architecture": {name: (f"model.config.arch={name}",) for name in ARCHITECTURES},
}
Row = dict[str, str]


def allowed(row: Row) -> bool:
    """What no plan may be: refused when it is made or built, so that there is nothing to certify."""
    if row.get("strategy") == "zero-0" and row.get("precision") == "bf16":
        return False
    return not (row.get("strategy") == "single" and row.get("batch") == "8x1")  # one process takes 16 as 2 x 8


def covering_rows(seed: int = 2) -> list[Row]:
    """Greedy all-pairs. Pairs of a strategy and an architecture are left out: they would double the rows."""
    names = list(SETTINGS)
    pairs = {
        pair
        for a, b in itertools.combinations(names, 2)
        if {a, b} != {"strategy", "architecture"}
        for pair in itertools.product([(a, x) for x in SETTINGS[a]], [(b, y) for y in SETTINGS[b]])
        if allowed(dict(pair))
    }
    chance = random.Random(seed)
    rows: list[Row] = []
    while pairs:
        first = chance.choice(sorted(pairs))
        candidates = [row for row in (_drawn(chance, dict(first)) for _ in range(60)) if allowed(row)]
        best = max(candidates, key=lambda row: len(_new(row, pairs)))
        pairs -= _new(best, pairs)
        rows.append(best)
    return rows


def _drawn(chance: random.Random, fixed: Row) -> Row:
    return {name: fixed.get(name) or chance.choice(list(values)) for name, values in SETTINGS.items()}


def _new(row: Row, pairs: set[Any]) -> set[Any]:
    return pairs & set(itertools.combinations(row.items(), 2))


def words_of(row: Row) -> tuple[str, ...]:
    """The overrides that make the row's plan."""
    found = [word for name, value in row.items() for word in SETTINGS[name][value]]
    if row["architecture"] in ("gemma2",):
        found.append("model.attention=eager")  # its soft cap is no attention of SDPA's
    return tuple(found)
