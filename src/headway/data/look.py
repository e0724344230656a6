"""A look at the first records before the token store is built: known labels, chats that render, something to learn.

    python -m headway.data.look      the same for chats: transformers' renderer runs in a process of its own

The build reads every record; this finds in a moment what is wrong with all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, cast

from headway.check.report import Verdict, green, note, red
from headway.config.load import LoadedRun
from headway.config.schema import SourceConfig
from headway.data.readers import ChatReader, Reader, reader_for
from headway.data.reading import Reading
from headway.data.seam import Document
from headway.data.shapes import PAIR, SETS, TASK_SHAPES, BadRecord, Keys
from headway.data.sources import concrete, open_source, with_shape
from headway.data.templates import load_renderer_alone, read_template
from headway.data.vocabulary import load_tokenizer
from headway.errors import HeadwayError, Problem

_MOST = 64  # records of a source
_RENDER_SECONDS = 2.4  # a record may be long; all checks together have 3 s


@dataclass(frozen=True)
class Look:
    """What is looked at, in plain values. sources: (key, SourceConfig as JSON); tokenizer '': it is yet to be trained.

    reading: the fields of a Reading.
    """

    name: str
    base: str
    tokenizer: str
    reading: dict[str, Any]
    sources: tuple[tuple[str, dict[str, Any]], ...]


@dataclass
class _Seen:
    """What the first records hold. labels: each with its first place, of the training and of the held-out data."""

    count: int = 0
    skipped: int = 0
    whole: bool = True  # no source has more records than were looked at
    problems: list[Problem] = field(default_factory=list[Problem])
    labels: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])


def records(name: str, run: LoadedRun, tokenizer: Path | None) -> Verdict:
    """Whether the first records of every source can be learnt from. `tokenizer`: its folder, None where it is not here.

    Red where one of them would stop the build; never longer than the checks' time.
    """
    task = run.config.task
    if task.kind not in TASK_SHAPES:
        return green(name, "the task reads plain text")
    asked = run.config.model.tokenizer
    trained = asked is not None and asked.train is not None
    if tokenizer is None and not trained and task.kind != "classification":
        return green(name, "not looked at: the tokenizer and its chat template are not here yet")
    data = run.config.data
    sources = [("data.train", source) for source in (data.train, *data.more)]
    if isinstance(data.eval, SourceConfig):
        sources.append(("data.eval", data.eval))
    look = Look(
        name,
        str(run.base),
        str(tokenizer or ""),
        asdict(Reading(task.kind, task.loss_on or "assistant")),
        tuple((key, source.model_dump(mode="json")) for key, source in sources),
    )
    templated = task.kind != "classification" and tokenizer is not None and read_template(tokenizer) is not None
    return _apart(look) if templated else examine(look)


def _apart(look: Look) -> Verdict:
    command = [sys.executable, "-m", "headway.data.look"]
    late = f"not looked at: transformers' renderer gave no answer within {_RENDER_SECONDS:g} s; the build reads each"
    try:
        done = subprocess.run(
            command,
            input=json.dumps(asdict(look)),
            capture_output=True,
            text=True,
            timeout=_RENDER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return note(look.name, late)
    try:
        return Verdict(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return note(look.name, f"not looked at: transformers' renderer does not start ({last}); the build reads each")


def examine(look: Look) -> Verdict:
    """Read the first records as the build will."""
    try:
        seen, reader = _see(look)
    except HeadwayError as error:  # a template that is not valid, a shape that the task does not take
        first = error.problems[0] if error.problems else Problem("", str(error).partition("\n")[0], fix=error.fix)
        return red(look.name, first.rule, first.fix, evidence=first.where or first.key or look.tokenizer)
    if not seen.problems:
        seen.problems += _of_labels(seen)
    if seen.problems:
        return _refused(look.name, seen)
    if seen.skipped and not seen.count:
        fix = "look at one of them: headway data build names the places"
        return red(look.name, f"none of the first {seen.skipped} records can be used", fix)
    return green(look.name, _told(seen, reader))


def _see(look: Look) -> tuple[_Seen, Reader]:
    base, shapes = Path(look.base), Reading(**look.reading).shapes
    configs = [(key, SourceConfig.model_validate(plain)) for key, plain in look.sources]
    opened = [(key, with_shape(concrete(config, base, key), base, key, shapes)[0]) for key, config in configs]
    reader, seen = _reader(look, [config.shape for _, config in opened]), _Seen()
    for key, config in opened:
        if ":" not in config.kind:  # code of the user's own runs when the store is built
            _read(seen, reader, config, base, key)
    return seen, reader


def _reader(look: Look, shapes: list[str]) -> Reader:
    reading = Reading(**look.reading)
    if look.tokenizer:
        folder = Path(look.tokenizer)
        return reader_for(reading, folder, load_tokenizer(folder), shapes)
    if reading.kind == "chat" and set(shapes) != {PAIR}:
        rule = "a tokenizer that is trained on the data has no chat template, and the data holds chats"
        fix = "model.tokenizer: {from: FOLDER} of a chat model, or records of prompt and response"
        raise HeadwayError(problems=[Problem("model.tokenizer", rule, fix=fix)])
    return reader_for(reading, Path(look.base), cast("Any", _NoTokenizer()), shapes)


class _NoTokenizer:
    """In place of one that is yet to be trained: it has no control tokens."""

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        return {}


def _read(seen: _Seen, reader: Reader, config: SourceConfig, base: Path, key: str) -> None:
    source, keys = open_source(config, base, key), Keys.of(config, key)
    skips = config.options.get("on_error") == "skip"
    labels = seen.labels.setdefault("data.eval" if key == "data.eval" else "data.train", {})
    every = (item for shard in source.shards() for item in source.documents(shard))
    for item in islice(every, _MOST):
        if not isinstance(item, Document):
            seen.problems += [item.problem] if item.problem is not None else []
            continue
        try:
            prepared = reader.read(item, keys)
        except BadRecord as bad:
            seen.skipped += 1
            if not skips:
                seen.problems.append(Problem(key, f"the record {bad.rule}", fix=bad.fix, where=item.where))
            continue
        if prepared is not None:
            seen.count += 1
            names = [prepared.label] if prepared.label is not None else []
            for name in json.loads(names[0]) if names and config.shape == SETS else names:
                labels.setdefault(name, item.where)
    seen.whole = seen.whole and next(every, None) is None


def _of_labels(seen: _Seen) -> Iterator[Problem]:
    """What all records together say; only where all of them were read."""
    trained, held = seen.labels.get("data.train", {}), seen.labels.get("data.eval", {})
    if not seen.whole or not trained:
        return
    if len(trained) == 1 and not held:
        (name, where), *_ = trained.items()
        rule = f"every text has the label {name!r}: there is nothing to tell apart"
        yield Problem("data.train", rule, fix="check data.train.label_key", where=where)
    for name in [name for name in held if name not in trained]:
        rule = f"the label {name!r} occurs in the held-out data only: no model could give it"
        yield Problem("data.eval", rule, fix="train on texts with that label too, or take these out", where=held[name])


def _refused(name: str, seen: _Seen) -> Verdict:
    first = seen.problems[0]
    more = f", and {len(seen.problems) - 1} more among the first" if len(seen.problems) > 1 else ""
    skip = f"{first.key}.options.on_error: skip leaves such records out and counts them"
    return red(name, f"{first.rule}{more}", first.fix or skip, evidence=first.where or first.key)


def _told(seen: _Seen, reader: Reader) -> str:
    labels = len({name for names in seen.labels.values() for name in names})
    if labels:
        return f"the first {seen.count} records have {labels} labels"
    what = "render in the chat template, and" if isinstance(reader, ChatReader) and reader.template else "can be read:"
    return f"the first {seen.count} records {what} each has words to learn"


def main() -> None:
    load_renderer_alone()
    plain = json.load(sys.stdin)
    sources = tuple((key, config) for key, config in plain.pop("sources"))
    print(json.dumps(asdict(examine(Look(**plain, sources=sources)))))


if __name__ == "__main__":
    main()
