"""What was exported, tensor by tensor: written down while it is saved, counted again when it is loaded."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class TensorRecord:
    """A tensor as it was saved: shape, dtype, CRC-32 of its bytes."""

    shape: tuple[int, ...]
    dtype: str
    crc32: int

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorRecord:
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return TensorRecord(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), zlib.crc32(data.data))


@dataclass(frozen=True)
class Census:
    """How the tensors of a loaded model compare with those that were exported. Empty lists: all is as it was.

    lost: exported, but not in the loaded model, or not in the files. added: in the loaded model only, freshly made.
    changed: not the same bytes. untied: two tensors that should be one.
    """

    tensors: int
    tied: tuple[tuple[str, str], ...] = ()
    lost: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    untied: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        return not (self.lost or self.added or self.changed or self.untied)

    def words(self) -> list[str]:
        """One line for each kind of difference, with at most five names."""
        kinds = ("lost", "added", "changed", "untied")
        found = [(kind, getattr(self, kind)) for kind in kinds]
        return [
            f"{len(names)} {kind}: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
            for kind, names in found
            if names
        ]


@dataclass
class Recorder:
    """Writes down each tensor that passes on its way to the files."""

    dtype: torch.dtype
    tensors: dict[str, TensorRecord] = field(default_factory=dict)

    def watch(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The same tensors, floating ones in the export's dtype."""
        for name, tensor in weights:
            saved = tensor.detach().to("cpu", self.dtype if tensor.is_floating_point() else tensor.dtype)
            self.tensors[name] = TensorRecord.of(saved)
            yield name, saved

    def as_json(self) -> dict[str, Any]:
        return {name: asdict(record) for name, record in self.tensors.items()}


def count(
    loaded: Mapping[str, torch.Tensor], recorded: Mapping[str, Mapping[str, Any]], tied: Iterable[tuple[str, str]]
) -> Census:
    """Compare a loaded model's `state_dict()` with what was recorded.

    Args:
        tied: (name, the name that it is the same tensor as), as the trained model had them.
    """
    pairs = tuple((str(name), str(other)) for name, other in tied)
    names = dict(pairs)
    lost = [name for name in recorded if name not in loaded]
    added = [name for name in loaded if name not in recorded and names.get(name, name) not in recorded]
    changed = [name for name, record in recorded.items() if name in loaded and not _equal(loaded[name], record)]
    untied = [name for name, other in pairs if not _same(loaded.get(name), loaded.get(other))]
    return Census(len(recorded), pairs, tuple(lost), tuple(added), tuple(changed), tuple(untied))


def _equal(loaded: torch.Tensor, record: Mapping[str, Any]) -> bool:
    # transformers loads a few tensors in fp32 whatever the rest is in; in the saved dtype they are the same again.
    again = TensorRecord.of(loaded.to(getattr(torch, record["dtype"])))
    return (list(again.shape), again.crc32) == (list(record["shape"]), record["crc32"])


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is not None and other is not None and one.data_ptr() == other.data_ptr() and one.shape == other.shape
