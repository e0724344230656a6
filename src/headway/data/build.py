"""Text to a token store, once: the folder's name follows from what it is made from, and it appears when it is whole."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.config.schema import SourceConfig
from headway.data.accelerated import PACKAGE, REFERENCE, IdsDiffer, is_installed, library_version
from headway.data.arrays import is_complete
from headway.data.assemble import assemble, fill_manifest, write_manifest
from headway.data.crew import run_tasks
from headway.data.lock import only_builder
from headway.data.manifest import FORMAT, TEXT_FORMAT
from headway.data.raw import RawData, hash_raw
from headway.data.reading import Reading
from headway.data.room import room_for
from headway.data.seam import DataSource, ProgressReporter, Silent
from headway.data.shapes import Keys, expected, identity
from headway.data.sources import concrete, open_source, with_shape
from headway.data.templates import ChatTemplate, read_template
from headway.data.vocabulary import Vocabulary, read_vocabulary
from headway.data.work import Task, WorkSpec
from headway.errors import DataError, Problem

# Small enough that all cores end at about the same time, large enough that the tasks of a large corpus are few. The
# size follows from the data alone: so does, then, which documents share a token file.
TASKS, SMALLEST_TASK_BYTES, LARGEST_TASK_BYTES = 512, 2**20, 2**24
# What `gzip -9` is measured on; beyond it a sample is scaled up.
GZIP_SAMPLE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class StoreRequest:
    """What a token store is made from.

    sources: to train on. eval: a share of their documents, or a source that is held out as a whole. tokenizer: a folder
    with tokenizer.json (see prepare_tokenizer). cache: where stores are kept; it and the sources' paths are relative to
    `base`, the run file's folder. workers: processes; None leaves it to the size of the data. seed: of the held-out
    split, not of the run: runs of several seeds are judged on the same documents. min_tokens: shorter documents are
    left out. reading: what the task makes of the records. encoder: auto, tokenizers or tokie; the ids are the same.
    """

    sources: tuple[SourceConfig, ...]
    eval: float | SourceConfig | None
    tokenizer: Path
    cache: Path
    base: Path
    workers: int | None = None
    seed: int = 0
    min_tokens: int = 1
    reading: Reading = field(default_factory=Reading)
    encoder: str = "auto"

    @property
    def eval_share(self) -> float:
        return self.eval if isinstance(self.eval, float) else 0.0

    @property
    def cache_folder(self) -> Path:
        return self.base / self.cache


@dataclass(frozen=True)
class Survey:
    """A request looked up: what there is to read, and the name of the store that follows from it.

    sources: (key in the run file, concrete config, source) each; those from `first_eval` on are held out as a whole.
    shapes: what the first records were, in words.
    """

    sources: tuple[tuple[str, SourceConfig, DataSource], ...]
    shapes: tuple[str, ...]
    first_eval: int
    raw: RawData
    vocabulary: Vocabulary
    settings: dict[str, Any]
    key: str
    folder: Path


@dataclass(frozen=True)
class Opened:
    """A source at hand: its key in the run file, its concrete config, and what its first records were, in words."""

    key: str
    config: SourceConfig
    source: DataSource
    shape: str = ""


def source_key(number: int) -> str:
    """The run file's key of a training source."""
    return "data.train" if number == 0 else f"data.more[{number - 1}]"


def open_sources(request: StoreRequest) -> tuple[Opened, ...]:
    """Every source of a request, the held-out one last. Raises DataError with the problems of all of them."""
    asked = [(source_key(number), config) for number, config in enumerate(request.sources)]
    if isinstance(request.eval, SourceConfig):
        asked.append(("data.eval", request.eval))
    opened: list[Opened] = []
    problems: list[Problem] = []
    for key, config in asked:
        try:
            exact = concrete(config, request.base, key)
            exact, found = with_shape(exact, request.base, key, request.reading.shapes)
            source = open_source(exact, request.base, key)
            source.shards()
            seen = f"{key} holds {expected(exact.shape, Keys.of(exact, key))}; read off {found.where}" if found else ""
            opened.append(Opened(key, exact, source, seen))
        except DataError as error:
            problems += error.problems or [Problem(key, str(error))]
    if problems:
        raise DataError(problems=problems)
    return tuple(opened)


def survey(request: StoreRequest) -> Survey:
    """Look up the sources and the tokenizer, and hash the raw files that are not known yet."""
    vocabulary = read_vocabulary(request.base / request.tokenizer)
    opened = open_sources(request)
    raw = hash_raw([file for each in opened for file in each.source.files()], request.cache_folder)
    settings: dict[str, Any] = {
        "sources": [[each.key, identity(each.config)] for each in opened],
        "eval_share": request.eval_share,
        "seed": request.seed,
        "min_tokens": request.min_tokens,
    }
    shapes = [each.shape for each in opened if each.shape]
    is_text = request.reading.kind == "text"
    if not is_text:
        settings |= {"reading": asdict(request.reading), "framed": [vocabulary.adds_begin, vocabulary.adds_end]}
    if request.reading.kind in ("chat", "preference"):
        template = read_template(vocabulary.folder)
        settings |= {"template": template.sha256 if template else None}
        shapes.append(_template_words(template))
    form = TEXT_FORMAT if is_text else FORMAT
    what = [form, raw.sha256, vocabulary.sha256, vocabulary.begin, vocabulary.end, settings]
    key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
    folder = request.cache_folder / f"store-{key[:16]}"
    sources = tuple((each.key, each.config, each.source) for each in opened)
    return Survey(sources, tuple(shapes), len(request.sources), raw, vocabulary, settings, key, folder)


def _template_words(template: ChatTemplate | None) -> str:
    if template is None:
        return "the tokenizer has no chat template: each response follows its prompt plainly"
    how = "marked by the chat template" if template.is_marked else "found by rendering each chat up to it"
    date = "; the template writes the date of the day into each chat" if template.writes_the_date else ""
    return f"what the assistant wrote is {how}{date}"


def find_store(request: StoreRequest) -> Path | None:
    """The request's store, if it was built before; reads only what was not hashed yet."""
    found = survey(request).folder
    return found if is_complete(found) else None


def build_store(request: StoreRequest, report: ProgressReporter | None = None) -> Path:
    """The request's token store: found, or built by all cores. Two builders at once make one store.

    Raises:
        DataError: absent or bad data (every problem with file, line and byte), nothing left to train on, a full disk.
        ModelError: the tokenizer cannot be used.
    """
    report = report or Silent()
    found = survey(request)
    if is_complete(found.folder):
        return found.folder
    size = sum(_size_bytes(source) for _, _, source in found.sources)
    with (
        room_for(size, request.cache_folder),
        only_builder(request.cache_folder / "locks" / f"{found.folder.name}.lock", report),
    ):
        if not is_complete(found.folder):
            _clean(found.folder)
            part = Path(tempfile.mkdtemp(dir=found.folder.parent, prefix=f"part-{found.folder.name}-"))
            try:
                _build(request, found, part, report)
                part.rename(found.folder)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return found.folder


def _clean(folder: Path) -> None:
    """Remove what a builder that was killed left behind; the lock says that none is at work."""
    for leftover in folder.parent.glob(f"part-{folder.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _build(request: StoreRequest, found: Survey, part: Path, report: ProgressReporter) -> None:
    began = time.monotonic()
    tasks = share_out(found)
    spec = _spec(request, found, part)
    report.start(sum(task.size_bytes for task in tasks))
    try:
        with run_tasks(spec, tasks, request.workers, report) as results:
            assembled = assemble(spec, results, part)
    except IdsDiffer as differ:
        report.note(f"{PACKAGE} does not give the ids that {REFERENCE} gives ({differ}): encoding with {REFERENCE}")
        for leftover in part.iterdir():
            leftover.unlink()
        spec = replace(spec, library=REFERENCE)
        report.start(sum(task.size_bytes for task in tasks))
        with run_tasks(spec, tasks, request.workers, report) as results:
            assembled = assemble(spec, results, part)
    changed = found.raw.changed()
    if changed:
        problems = [Problem("data", "the file changed while it was read", where=path) for path in changed[:20]]
        raise DataError(problems=problems, fix="wait until nothing writes to the data, then start again")
    manifest = fill_manifest(assembled, spec)
    manifest |= {
        "key": found.key,
        "raw_sha256": found.raw.sha256,
        "tokenizer": {
            "path": str(found.vocabulary.folder),
            "sha256": found.vocabulary.sha256,
            "vocab": found.vocabulary.size,
            "begin": found.vocabulary.begin,
            "end": found.vocabulary.end,
        },
        "settings": found.settings,
        "shapes": list(found.shapes),
        "library": library_version(spec.library),
        "seconds": round(time.monotonic() - began, 3),
    }
    write_manifest(part, manifest)
    for note in manifest["shapes"]:
        report.note(note)


def _size_bytes(source: DataSource) -> int:
    return sum(source.size_bytes(shard) for shard in source.shards())


def share_out(found: Survey) -> list[Task]:
    """Neighbouring shards together in tasks of about equal size."""
    total = sum(_size_bytes(source) for _, _, source in found.sources)
    enough = min(max(total // TASKS, SMALLEST_TASK_BYTES), LARGEST_TASK_BYTES)
    tasks: list[Task] = []
    shards: list[tuple[int, str]] = []
    size = 0
    for index, (_, _, source) in enumerate(found.sources):
        for shard in source.shards():
            shards.append((index, shard))
            size += source.size_bytes(shard)
            if size >= enough:
                tasks.append(Task(len(tasks), tuple(shards), size))
                shards, size = [], 0
    if shards:
        tasks.append(Task(len(tasks), tuple(shards), size))
    return tasks


def _spec(request: StoreRequest, found: Survey, part: Path) -> WorkSpec:
    held_out = sum(_size_bytes(source) for _, _, source in found.sources[found.first_eval :])
    train = sum(_size_bytes(source) for _, _, source in found.sources[: found.first_eval])
    expected = max(1.0, held_out + train * request.eval_share)
    return WorkSpec(
        sources=tuple((key, config.model_dump(mode="json")) for key, config, _ in found.sources),
        first_eval=found.first_eval,
        eval_share=request.eval_share,
        gzip_share=min(1.0, GZIP_SAMPLE_BYTES / expected),
        seed=request.seed,
        min_tokens=request.min_tokens,
        base=str(request.base.resolve()),
        tokenizer=str(found.vocabulary.folder.resolve()),
        begin=found.vocabulary.begin,
        end=found.vocabulary.end,
        dtype="<u2" if found.vocabulary.size <= 2**16 else "<u4",
        out=str(part.resolve()),
        reading=asdict(request.reading),
        framed=(found.vocabulary.adds_begin, found.vocabulary.adds_end),
        library=_library(request),
    )


def _library(request: StoreRequest) -> str:
    """What encodes: of chats and preferences, the places of tokens in the text are needed, which tokie does not say."""
    if request.reading.kind in ("chat", "preference"):
        return REFERENCE
    return PACKAGE if request.encoder == PACKAGE or (request.encoder == "auto" and is_installed()) else REFERENCE
