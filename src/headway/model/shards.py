"""Tensors to safetensors files of bounded size, with the index that transformers reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file

INDEX = "model.safetensors.index.json"


def write_shards(folder: Path, tensors: Iterable[tuple[str, torch.Tensor]], max_shard_bytes: int) -> list[str]:
    """Write the tensors in the order in which they come; at most one shard is held in memory. Returns the file names.

    One tensor larger than `max_shard_bytes` gets a file of its own.
    """
    parts: list[tuple[Path, list[str]]] = []
    shard: dict[str, torch.Tensor] = {}
    shard_bytes = total_bytes = total_elements = 0

    def flush() -> None:
        part = folder / f"part-{len(parts) + 1:05d}.safetensors"
        save_file(shard, part, metadata={"format": "pt"})
        parts.append((part, list(shard)))
        shard.clear()

    for name, tensor in tensors:
        if shard and shard_bytes + tensor.nbytes > max_shard_bytes:
            flush()
            shard_bytes = 0
        # A view of a larger storage (a slice of a fused tensor, a map of a file) would be refused or written whole.
        shard[name] = (
            tensor.contiguous().clone() if tensor.untyped_storage().nbytes() != tensor.nbytes else tensor.contiguous()
        )
        shard_bytes += tensor.nbytes
        total_bytes += tensor.nbytes
        total_elements += tensor.numel()
    flush()
    names = [file_name(number, len(parts)) for number in range(1, len(parts) + 1)]
    for (part, _), name in zip(parts, names, strict=True):
        part.rename(folder / name)
    if len(parts) == 1:
        return names
    weight_map = {tensor: name for (_, inside), name in zip(parts, names, strict=True) for tensor in inside}
    index = {
        "metadata": {"total_size": total_bytes, "total_parameters": total_elements},
        "weight_map": dict(sorted(weight_map.items())),
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return [*names, INDEX]


def file_name(number: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
