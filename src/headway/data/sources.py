"""Opening a source: by its kind, or by the endings of its files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from headway import registry
from headway.config.schema import SourceConfig
from headway.data.archives import ARROW_ENDINGS, Arrow, Tar, TfRecord
from headway.data.files import TextFiles
from headway.data.paths import expand
from headway.data.records import Csv, JsonLines, Parquet, RecordSource
from headway.data.seam import DataSource, InputFile
from headway.data.shapes import TEXT, Found, Keys, detect, expected
from headway.data.synthetic import Synthetic
from headway.data.unpacking import ending, is_compressed
from headway.errors import DataError, Problem

__all__ = ["Arrow", "Csv", "JsonLines", "Parquet", "Synthetic", "Tar", "TextFiles", "TfRecord"]
__all__ += ["concrete", "open_source", "with_shape"]

KIND_OF_ENDING = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".tar": "tar",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    **dict.fromkeys(ARROW_ENDINGS, "arrow"),
}
_PACKED = frozenset({".zip", ".7z", ".rar"})
_NOT_TEXT = frozenset({".pdf", ".docx", ".doc", ".epub", ".bin", ".npy", ".pt", ".safetensors", ".png", ".jpg"})
# Beside the Arrow files of a folder that datasets' save_to_disk wrote.
_OF_SAVED_DATASETS = frozenset({"state.json", "dataset_info.json", "dataset_dict.json"})
_WHOLE = ("parquet", "arrow")  # read by parts of their own, so not through a stream that unpacks


def concrete(config: SourceConfig, base: Path, key: str) -> SourceConfig:
    """The same source with `kind: auto` replaced by the kind that the files' endings say. Every other ending is text.

    Raises:
        DataError: no paths, paths that name nothing, files of several kinds, or files that hold no plain text.
    """
    if config.kind == "synthetic" or ":" in config.kind:
        return config
    if not config.paths:
        fix = f"write {key}.paths, e.g. ['corpus/**/*.txt'], or {key}.kind: synthetic"
        raise DataError(problems=[Problem(f"{key}.paths", "names no files", fix=fix)])
    if config.kind != "auto":
        return config
    exclude = config.options.get("exclude", ())
    files = expand(config.paths, base, (exclude,) if isinstance(exclude, str) else exclude, key)
    by_kind: dict[str, list[InputFile]] = defaultdict(list)
    saved = any(PurePosixPath(file.name).suffix == ".arrow" for file in files)
    for file in files:
        last = ending(file.name)
        kind = KIND_OF_ENDING.get(last, "text")
        if saved and PurePosixPath(file.name).name in _OF_SAVED_DATASETS:
            continue
        unreadable = last in _PACKED | _NOT_TEXT or (kind in _WHOLE and is_compressed(file.name))
        by_kind["" if unreadable else kind].append(file)
    problems = [_unreadable(file, key) for file in by_kind.pop("", [])[:20]]
    if len(by_kind) > 1:
        problems.append(_mixed(by_kind, key))
    if problems:
        raise DataError(problems=problems)
    return config.model_copy(update={"kind": next(iter(by_kind))})


def with_shape(
    config: SourceConfig, base: Path, key: str, accepted: Sequence[str] = (TEXT,)
) -> tuple[SourceConfig, Found | None]:
    """A concrete source with `shape: auto` replaced by the accepted shape that its first records have, and where.

    Raises:
        DataError: the records (or plain text) are of no accepted shape; names the first and what would do.
    """
    if config.shape != "auto":
        if config.shape in accepted:
            return config, None
        rule = f"is not what the task learns from: {', '.join(accepted)}"
        raise DataError(problems=[Problem(f"{key}.shape", rule, config.shape, "remove it, or change the task")])
    if ":" in config.kind:
        return config, None  # a user's own source: each of its documents says what it is
    source = open_source(config, base, key)
    if isinstance(source, RecordSource):
        found = detect(source.first_records(), accepted, source.keys)
        shape = found.shape if found else accepted[0]
        return config.model_copy(update={"shape": shape}), found
    if TEXT not in accepted:
        wanted = " or ".join(expected(shape, Keys.of(config, key)) for shape in accepted)
        fix = "give a .jsonl, .csv or .parquet file of such records, or write task: causal_lm"
        raise DataError(problems=[Problem(key, f"is plain text, but the task learns from {wanted}", fix=fix)])
    return config.model_copy(update={"shape": TEXT}), None


def open_source(config: SourceConfig, base: Path, key: str = "data.train") -> DataSource:
    """The source of a concrete config (see `concrete`). A user's class is made as `Class(config, base, key)`."""
    source: DataSource = registry.resolve("data", config.kind)(config, base, key)
    return source


def _unreadable(file: InputFile, key: str) -> Problem:
    last = ending(file.name)
    if last in _PACKED or is_compressed(file.name):
        rule = "is packed in a way that is not read"
        return Problem(f"{key}.paths", rule, file.name, "unpack it, and name what was in it")
    rule = f"a {last} file holds no plain text"
    fix = f"leave it out with {key}.options.exclude: ['*{last}'], or say {key}.kind: text if it is text all the same"
    return Problem(f"{key}.paths", rule, file.name, fix)


def _mixed(by_kind: dict[str, list[InputFile]], key: str) -> Problem:
    held = ", ".join(f"{len(files)} {kind} (such as {files[0].name})" for kind, files in sorted(by_kind.items()))
    most = max(by_kind, key=lambda kind: len(by_kind[kind]))
    endings = sorted({f"*{PurePosixPath(f.name).suffix}" for kind in by_kind if kind != most for f in by_kind[kind]})
    fix = (
        f"one source reads one kind: name one kind's files in {key}.paths (a pattern such as '**/*.jsonl'), "
        f"leave the others out with {key}.options.exclude: {endings}, or say {key}.kind: {most}"
    )
    return Problem(f"{key}.paths", f"the files are of several kinds: {held}", fix=fix)
