"""Weights of a pretrained folder, tensor by tensor: which stored tensors make which parameter, read only when asked.

Names, prefixes and fused layers follow transformers' own conversion rules, so that each value is what `from_pretrained`
would load. A parameter that the folder does not hold is an error, never a fresh value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    SkipParameters,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)
from transformers.utils.loading_report import LoadStateDictInfo

from headway.errors import ModelError, Problem
from headway.model.naming import unwrapped_names
from headway.model.skeleton import tied_names

_SHOWN = 8  # names listed of each kind of difference


@dataclass
class _Group:
    """Stored tensors that are read together: one renamed tensor, or those that a converter splits or merges."""

    first: str  # the first parameter that they make
    converter: WeightConverter | None
    sources: list[tuple[str, str]] = field(default_factory=list)  # (stored name, the pattern that it matched)
    targets: tuple[str, ...] = ()


class PretrainedWeights:
    """The safetensors of a model folder, seen as the parameters and buffers of a skeleton.

    body_only: the head is not the folder's. Nothing is read for it, a pooler may be absent, and what the folder holds
    beside the body is left alone.

    Names are read without the wrappers that a model was saved in (`module.`, `_orig_mod.`).

    Raises:
        ModelError: no safetensors, a damaged or absent file, missing or unexpected tensors, other shapes, two different
            tensors for one tied parameter.
    """

    def __init__(self, folder: Path, skeleton: PreTrainedModel, *, body_only: bool = False):
        self._folder, self._skeleton, self._body_only = folder, skeleton, body_only
        self._state = skeleton.state_dict()
        self._files = stored_names(folder)  # tensor -> file
        self._handles: dict[str, Any] = {}
        self._ready: dict[str, torch.Tensor] = {}  # converted together with another parameter, not yet asked for
        self._groups: dict[str, _Group] = {}  # parameter -> what makes it
        unexpected = self._assign()
        self._same = self._tie()
        self._require_complete(unexpected)
        self._require_shapes()

    def holds(self, name: str) -> bool:
        """Whether the folder gives this parameter or buffer (tied ones under any of their names)."""
        return self._same.get(name, name) in self._groups

    def read(self, name: str) -> torch.Tensor:
        """The whole tensor on the host, in the dtype in which it is stored."""
        name = self._same.get(name, name)
        if name not in self._ready:
            self._ready |= self._convert(self._groups[name])
        return self._ready.pop(name)

    def close(self) -> None:
        """Let go of the files; they are opened again when something is read."""
        self._handles.clear()
        self._ready.clear()

    def _assign(self) -> set[str]:
        """Fill the groups; returns the names that the model has no place for."""
        rules = get_model_conversion_mapping(self._skeleton)
        renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
        converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
        by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
        prefix, unexpected = self._skeleton.base_model_prefix, set[str]()
        plain = unwrapped_names(self._files, self._state)
        for stored in sorted(self._files, key=dot_natural_key):
            name, pattern = rename_source_key(plain[stored], renamings, converters, prefix, self._state)
            if name not in self._state and plain[stored] in self._state:
                name, pattern = rename_source_key(plain[stored], [], [], prefix, self._state)
            if self._body_only and not self._in_body(name):
                continue
            if name not in self._state:
                unexpected.add(name)
                continue
            converter = by_pattern[pattern] if pattern is not None else None
            group = self._groups.setdefault(name, _Group(name, converter))
            group.sources.append((stored, plain[stored] if pattern is None else pattern))
            patterns = [] if converter is None else converter.target_patterns
            group.targets = tuple(name.replace(patterns[0], other) for other in patterns) or (name,)
            for target in group.targets:
                self._groups[target] = group
        # Saving in the form that was read is transformers' rule too, and it reads the rules that applied from here.
        self._skeleton._weight_conversions = [rule for rule in rules if rule.was_used()]  # pyright: ignore
        return unexpected

    def _in_body(self, name: str) -> bool:
        """Whether a name, with the body's prefix or without, is of the body."""
        prefix = self._skeleton.base_model_prefix
        parts = dict(getattr(self._skeleton, prefix).named_children())
        return name.partition(".")[0] in (prefix, *parts)

    def _may_be_fresh(self, name: str) -> bool:
        return self._body_only and (not self._in_body(name) or "pooler" in name.split("."))

    def _tie(self) -> dict[str, str]:
        """Parameter -> the stored name of the tied set that it belongs to."""
        same: dict[str, str] = {}
        problems: list[Problem] = []
        for target, source in tied_names(self._skeleton).items():
            source = same.get(source, source)
            if target not in self._groups:
                same[target] = source
            elif source not in self._groups:
                same[source] = target
            elif not torch.equal(self._peek(target), self._peek(source)):
                rule = f"the config ties it to {source}, but the folder holds two different tensors"
                problems.append(Problem(target, rule, fix='write "tie_word_embeddings": false into config.json'))
        if problems:
            raise ModelError(problems=problems)
        return same

    def _peek(self, name: str) -> torch.Tensor:
        return self._convert(self._groups[name])[name]

    def _require_complete(self, unexpected: set[str]) -> None:
        missing = {name for name in self._state if not self.holds(name) and not self._may_be_fresh(name)}
        info = _info(set(missing), unexpected)
        self._skeleton._adjust_missing_and_unexpected_keys(info)
        # transformers lets some names be absent; buffers it can make again, a parameter nobody can.
        info.missing_keys |= missing & {name for name, _ in self._skeleton.named_parameters(remove_duplicate=False)}
        said = [
            f"{len(names)} {what}: {', '.join(sorted(names)[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
            for what, names in (
                ("tensors of the model are missing", info.missing_keys),
                ("tensors have no place in the model", info.unexpected_keys),
            )
            if names
        ]
        if said:
            kind = type(self._skeleton).__name__
            fix = "the weights must belong to the folder's config.json, whole: save the model again"
            raise ModelError(f"{self._folder} does not hold a {kind}:\n" + "\n".join(said), fix=fix)

    def _require_shapes(self) -> None:
        problems: list[Problem] = []
        for name, group in self._groups.items():
            if group.converter is not None:
                continue
            stored, wanted = tuple(self._slice(group.sources[0][0]).get_shape()), tuple(self._state[name].shape)
            if stored != wanted:
                rule = f"is stored as {list(stored)}, the config makes it {list(wanted)}"
                problems.append(Problem(name, rule, fix="use the config.json that the weights were saved with"))
        if problems:
            raise ModelError(f"{self._folder}: weights and config.json differ", problems=problems[:_SHOWN])

    def _slice(self, stored: str) -> Any:
        file = self._files[stored]
        try:
            if file not in self._handles:
                self._handles[file] = safe_open(self._folder / file, framework="pt")
            return self._handles[file].get_slice(stored)
        except (SafetensorError, OSError) as error:
            raise _damaged(self._folder / file, error) from error

    def _reader(self, stored: str) -> Callable[[], torch.Tensor]:
        return lambda: self._slice(stored)[...]

    def _convert(self, group: _Group) -> dict[str, torch.Tensor]:
        if group.converter is None:
            return {group.first: self._reader(group.sources[0][0])()}
        converter, info = deepcopy(group.converter), _info(set(), set())
        for stored, pattern in group.sources:
            converter.add_tensor(group.first, stored, pattern, self._reader(stored))  # pyright: ignore
        try:
            made = converter.convert(group.first, self._skeleton, self._skeleton.config, loading_info=info)
        except SkipParameters as error:
            said = "; ".join(info.conversion_errors.values())
            raise ModelError(f"{self._folder}: {group.first} cannot be made of the stored tensors: {said}") from error
        tensors = {name: value[0] if isinstance(value, list) else value for name, value in made.items()}
        wrong = [name for name, value in tensors.items() if value.shape != self._state[name].shape]
        if wrong:
            raise ModelError(f"{self._folder}: other shapes than the config makes: {', '.join(sorted(wrong)[:_SHOWN])}")
        return tensors


def _info(missing: set[str], unexpected: set[str]) -> LoadStateDictInfo:
    return LoadStateDictInfo(
        missing_keys=missing,
        unexpected_keys=unexpected,
        mismatched_keys=set(),
        error_msgs=[],
        conversion_errors={},
        skipped_pp_keys=set(),
    )


def _damaged(file: Path, error: Exception) -> ModelError:
    return ModelError(f"{file} cannot be read: {error}", fix="copy or download the model again")


def stored_names(folder: Path) -> dict[str, str]:
    """Tensor name -> file name, of a model folder's safetensors. Raises ModelError where one is absent or damaged."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        files = ["model.safetensors"]
    elif index.is_file():
        try:
            files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(index, error) from error
    else:
        raise _no_safetensors(folder)
    absent = [name for name in files if not (folder / name).is_file()]
    if absent:
        raise ModelError(f"{folder}: {index.name} names files that are absent: {', '.join(absent)}")
    names: dict[str, str] = {}
    for file in files:
        try:
            with safe_open(folder / file, framework="pt") as handle:
                names |= dict.fromkeys(handle.keys(), file)
        except (SafetensorError, OSError) as error:
            raise _damaged(folder / file, error) from error
    return names


def _no_safetensors(folder: Path) -> ModelError:
    if not folder.is_dir():
        return ModelError(f"there is no model folder {folder}", fix="check model.from")
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if pickles:
        code = f"M.from_pretrained({str(folder)!r}).save_pretrained('OTHER-FOLDER')"
        return ModelError(
            f"{folder} holds its weights as pickles ({pickles[0]}), which can run code when they are read",
            fix=f'if you trust them: python -c "from transformers import AutoModelForCausalLM as M; {code}"',
        )
    return ModelError(f"{folder} has no safetensors", fix="point model.from at a folder that save_pretrained wrote")
