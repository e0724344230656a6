"""The installed DeepSpeed's own config models, read as syntax: nothing of DeepSpeed is imported.

Most of a DeepSpeed JSON's sections are pydantic models in its source. Each field's name, alias, type, range and default
stand there as annotations, so the schema is that of whatever release is installed. What no model describes is in
`headway.config.deepspeed_table`.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from headway.errors import ConfigError

_FORMAT = 3  # of the cached schema
_CACHE = Path("~/.cache/headway/deepspeed")
_UNKNOWN = "?"  # a default that the syntax alone does not tell


@dataclass(frozen=True)
class Key:
    """One legal key. kind: bool, int, float, text, list, mapping, section or any; `section`: its model's name.

    canonical: the name that the engine is given (fields have a name and an alias); instead: what replaces a
    deprecated key.
    """

    kind: str
    canonical: str
    section: str = ""
    values: tuple[Any, ...] = ()
    null: bool = False
    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False
    default: Any = _UNKNOWN
    instead: str = ""


Fields = Mapping[str, Key]

# Where a model's fields stand in the JSON -> the file and the class. Absent files and classes belong to other releases.
MODELS: dict[tuple[str, ...], tuple[str, str]] = {
    ("zero_optimization",): ("runtime/zero/config.py", "DeepSpeedZeroConfig"),
    ("fp16",): ("runtime/precision_config.py", "DeepSpeedFP16Config"),
    ("bf16",): ("runtime/precision_config.py", "DeepSpeedBF16Config"),
    ("tensorboard",): ("monitor/config.py", "TensorBoardConfig"),
    ("wandb",): ("monitor/config.py", "WandbConfig"),
    ("csv_monitor",): ("monitor/config.py", "CSVConfig"),
    ("comet",): ("monitor/config.py", "CometConfig"),
    ("comms_logger",): ("comm/config.py", "CommsLoggerConfig"),
    ("compile",): ("compile/config.py", "CompileConfig"),
    ("tensor_parallel",): ("runtime/tensor_parallel/config.py", "TPTrainingConfig"),
    ("hybrid_engine",): ("runtime/config.py", "HybridEngineConfig"),
    ("timers", "throughput"): ("utils/config.py", "DeepSpeedThroughputTimerConfig"),
}
_MORE_FILES = (
    "runtime/zero/offload_config.py",
    "runtime/zero/leaf_module_config.py",
    "runtime/zenflow/zenflow_config.py",
    "comm/constants.py",
)


@dataclass(frozen=True)
class Release:
    """A DeepSpeed release: its version, and model name -> legal key -> Key."""

    version: str
    models: Mapping[str, Fields]


def installed_release() -> Release:
    """The installed DeepSpeed. Raises ConfigError where there is none."""
    version, folder = installed()
    return Release(version, models_of(version, folder))


def installed() -> tuple[str, Path]:
    """(version, folder) of the installed DeepSpeed. Raises ConfigError where there is none."""
    spec = importlib.util.find_spec("deepspeed")
    if spec is None or spec.origin is None:
        raise ConfigError(
            "a DeepSpeed JSON is judged by the installed DeepSpeed, and none is", fix="pip install deepspeed"
        )
    return metadata.version("deepspeed"), Path(spec.origin).parent


@cache
def models_of(version: str, folder: Path, keep: Path | None = _CACHE) -> dict[str, dict[str, Key]]:
    """Model name -> legal key -> Key, of the release in `folder`; kept in a file per version under `keep`."""
    stamp = f"{_FORMAT}:{folder}:{(folder / 'runtime' / 'zero' / 'config.py').stat().st_mtime_ns}"
    folder_kept = keep and os.path.expanduser(keep)
    # A user without a home (a container's bare number) keeps nothing.
    path = Path(folder_kept, f"{version}.json") if folder_kept and not folder_kept.startswith("~") else None
    if path is not None and (known := _kept(path, stamp)) is not None:
        return known
    models = _Reading(folder).models()
    if path is not None:
        with suppress(OSError):  # a read-only home costs some milliseconds, no more
            path.parent.mkdir(parents=True, exist_ok=True)
            plain = {name: {key: asdict(field) for key, field in fields.items()} for name, fields in models.items()}
            temporary = path.with_suffix(f".{hash(stamp) & 0xFFFF:x}.tmp")
            temporary.write_text(json.dumps({"stamp": stamp, "models": plain}), encoding="utf-8")
            temporary.replace(path)
    return models


def _kept(path: Path, stamp: str) -> dict[str, dict[str, Key]] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["stamp"] != stamp:
            return None
        return from_plain(content["models"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def from_plain(models: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Key]]:
    """Models from their JSON."""
    return {name: {key: _key_of(field) for key, field in fields.items()} for name, fields in models.items()}


def _key_of(field: Mapping[str, Any]) -> Key:
    told: dict[str, Any] = {**field, "values": tuple(field["values"])}
    return Key(**told)


class _Reading:
    """One release's files as syntax trees."""

    def __init__(self, folder: Path):
        self._classes: dict[str, ast.ClassDef] = {}
        self._values: dict[str, Any] = {"True": True, "False": False, "None": None}
        self._aliases: dict[str, ast.expr] = {}
        for name in dict.fromkeys([*_MORE_FILES, *(file for file, _ in MODELS.values())]):
            with suppress(FileNotFoundError):
                self._take(ast.parse((folder / name).read_text(encoding="utf-8")))

    def _take(self, tree: ast.Module) -> None:
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                self._classes[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._aliases[node.targets[0].id] = node.value
                if (value := self._value(node.value)) != _UNKNOWN:
                    self._values[node.targets[0].id] = value

    def models(self) -> dict[str, dict[str, Key]]:
        return {name: self._fields(node) for name, node in self._classes.items() if self._is_model(node)}

    def _is_model(self, node: ast.ClassDef) -> bool:
        return any(isinstance(base, ast.Name) and base.id == "DeepSpeedConfigModel" for base in node.bases)

    def _fields(self, node: ast.ClassDef) -> dict[str, Key]:
        fields: dict[str, Key] = {}
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                name = statement.target.id
                field, alias = self._field(name, statement)
                fields[name] = field
                if alias:
                    fields[alias] = field
        return fields

    def _field(self, name: str, statement: ast.AnnAssign) -> tuple[Key, str]:
        """(the key, its alias or '')."""
        told: dict[str, Any] = self._kind(statement.annotation)
        value, alias, instead = statement.value, "", ""
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "Field":
            named = {word.arg: word.value for word in value.keywords if word.arg}
            for bound, (end, is_open) in _BOUNDS.items():
                if bound in named:
                    told |= {end: self._value(named[bound])} | ({f"{end}_open": True} if is_open else {})
            alias = str(self._value(named["alias"])) if "alias" in named else ""
            instead = self._replacement(named.get("json_schema_extra"))
            value = value.args[0] if value.args else named.get("default")
        default = self._value(value) if value is not None else _UNKNOWN
        return Key(canonical=alias or name, default=default, instead=instead, **told), alias

    def _replacement(self, extra: ast.expr | None) -> str:
        if not isinstance(extra, ast.Dict):
            return ""
        told = {
            key.value: self._value(value)
            for key, value in zip(extra.keys, extra.values, strict=True)
            if isinstance(key, ast.Constant)
        }
        return str(told.get("new_param", "")) if told.get("deprecated") is True else ""

    def _kind(self, node: ast.expr) -> dict[str, Any]:
        """What an annotation says: kind, section, values, null."""
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            outer = node.value.id
            if outer == "Optional":
                return self._kind(node.slice) | {"null": True}
            if outer == "Literal":
                parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
                return {"kind": "text", "values": tuple(self._value(part) for part in parts)}
            return {"kind": {"List": "list", "list": "list", "Dict": "mapping", "dict": "mapping"}.get(outer, "any")}
        if not isinstance(node, ast.Name):
            return {"kind": "any"}
        if node.id in _PLAIN:
            return {"kind": _PLAIN[node.id]}
        if node.id in self._classes:
            known = self._classes[node.id]
            return {"kind": "section", "section": node.id} if self._is_model(known) else self._enumeration(known)
        return self._kind(self._aliases[node.id]) if node.id in self._aliases else {"kind": "any"}

    def _enumeration(self, node: ast.ClassDef) -> dict[str, Any]:
        assigned = [item for item in node.body if isinstance(item, ast.Assign)]
        values = tuple(dict.fromkeys(self._value(item.value) for item in assigned))
        return {"kind": "int" if all(isinstance(value, int) for value in values) else "text", "values": values}

    def _value(self, node: ast.expr) -> Any:
        """A constant, a name of one, or pp_int(constant); '?' for everything else."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "pp_int":
            value = self._value(node.args[0])
            return int(value) if isinstance(value, float) else value
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.maxsize":
            return sys.maxsize
        if isinstance(node, ast.Name):
            return self._values.get(node.id, _UNKNOWN)
        try:
            return ast.literal_eval(node)
        except ValueError:
            return _UNKNOWN


_BOUNDS = {"ge": ("low", False), "gt": ("low", True), "le": ("high", False), "lt": ("high", True)}
_PLAIN = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "str": "text",
    "Path": "text",
    "list": "list",
    "List": "list",
    "dict": "mapping",
    "Dict": "mapping",
    "tuple": "list",
}
