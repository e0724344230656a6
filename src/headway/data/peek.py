"""A look at the beginning of each data file before anything is built: readable, and text in its encoding."""

from __future__ import annotations

import codecs
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from headway.check.report import Verdict, green, red
from headway.config.load import LoadedRun
from headway.config.schema import SourceConfig
from headway.data.files import FileSource
from headway.data.sources import concrete, open_source
from headway.data.unpacking import is_compressed, open_unpacked
from headway.errors import HeadwayError, Problem

_PEEK_BYTES = 256 * 1024  # of each file; the build reads all of them, and names what lies further on
_MOST_FILES = 200
_TEXT_KINDS = ("text", "jsonl", "csv")
_EMPTY_ARRAY = re.compile(rb"(\xef\xbb\xbf)?\s*\[\s*\]\s*")


def text(name: str, loaded: LoadedRun) -> Verdict:
    """The first file, line and byte that is no text, in the training and the held-out data."""
    data = loaded.config.data
    sources = [("data.train", source) for source in (data.train, *data.more)]
    if isinstance(data.eval, SourceConfig):
        sources.append(("data.eval", data.eval))
    problems: list[Problem] = []
    count = 0
    for key, config in sources:
        try:
            source = open_source(concrete(config, loaded.base, key), loaded.base, key)
        except HeadwayError as error:
            problems += error.problems
            continue
        if isinstance(source, FileSource) and not source.skips_errors and source.config.kind in _TEXT_KINDS:
            files = source.files()
            count += len(files)
            problems += _faults(source)
    if not problems:
        return green(name, f"{count} files begin as text in their encoding")
    first = problems[0]
    more = f", and {len(problems) - 1} more files" if len(problems) > 1 else ""
    return red(name, f"{first.rule}{more}", first.fix, evidence=first.where or first.key)


def _faults(source: FileSource) -> Iterator[Problem]:
    files, blank = source.files(), True
    for file in files[:_MOST_FILES]:
        path = Path(source.path(file.name))
        try:
            with open_unpacked(path) as opened:
                raw = opened.read(_PEEK_BYTES)
        except PermissionError as error:
            yield Problem(source.key, f"cannot be read: {error.strerror}", where=file.name, fix=f"chmod a+r {path}")
            blank = False
            continue
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            fix = "copy the file again, or leave it out" if is_compressed(file.name) else f"see ls -l {path}"
            yield Problem(source.key, f"cannot be read: {error}", where=file.name, fix=fix)
            blank = False
            continue
        holds_nothing = not raw.strip() or (source.config.kind == "jsonl" and _EMPTY_ARRAY.fullmatch(raw))
        blank = blank and len(raw) < _PEEK_BYTES and bool(holds_nothing)
        torn = source.cut_short(file.name)
        if torn is not None and torn.problem is not None:
            yield torn.problem
            continue
        decoder = codecs.getincrementaldecoder(source.encoding)()
        try:
            decoder.decode(raw, final=len(raw) < _PEEK_BYTES)  # a character may be cut at the end of the peek
        except UnicodeDecodeError as error:
            mark = 3 if source.encoding == "utf-8-sig" and raw.startswith(codecs.BOM_UTF8) else 0
            offset = error.start + mark
            line = raw.count(b"\n", 0, offset) + 1
            fault = source.undecodable(file.name, line, offset, raw[offset], raw[:4]).problem
            if fault is not None:
                yield fault
    if blank and len(files) <= _MOST_FILES:
        rule = f"holds no document: {'the file is' if len(files) == 1 else 'all files are'} empty"
        yield Problem(source.key, rule, fix=f"check {source.key}.paths")
