"""Which failure came first, in whose words; echoes of it in other ranks are not it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headway.diagnose.patterns import Strength
from headway.diagnose.signatures import EXCEPTION, LAUNCHERS_OWN, SAID_ALOUD, is_no_error, possible, recognise
from headway.diagnose.streams import Line, read
from headway.errors import Problem, UserError

_ORDER: dict[Strength, int] = {"strong": 0, "weak": 1, "echo": 2, "launcher": 3}
_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\)")
# torchrun's line of the first failure. A command that is quoted with --local_rank=N is the last rank's, whoever failed.
_IN_WORDS = re.compile(r"local_rank: (\d+) \(pid")
# torchrun's own lines: where srun's tasks are these, a task is a host and no rank.
_OF_AGENT = re.compile(
    r"torch\.distributed\.(?:run|elastic\.(?:agent|rendezvous|multiprocessing\.api))\b"
    r"|torch/distributed/(?:run|launch|launcher/api)\.py|(?:^|[\s/])torchrun -|local_rank: \d+(?:\)| \(pid)"
)
# The quoted line above an error whose own words do not tell it from others.
_CALLED = re.compile(r"_multiprocessing\.SemLock\(|state_dict_metadata\[fqn\]|__param_queue\.popleft")
_SPAWNED = re.compile(r"^-- Process (\d+) terminated with the following error")
# What srun and mpirun say: the host, and the task, which is the rank where there is one a rank.
_TASK = re.compile(
    r"srun: error: (?P<host>[\w.-]+): tasks? (?P<task>\d+)[:,-]"
    r"|process rank (?P<rank>\d+) with PID \d+ on node (?P<node>[\w.-]+)"
)
_BLOCK = re.compile(r"^\s*(?P<key>rank|exitcode|host|time)\s*: (?P<value>.*)")
_WATCHDOG = re.compile(
    r"\[Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout: WorkNCCL\((?:SeqNum=(?P<number>\d+), )?"
    r"OpType=(?P<kind>\w+)(?:, (?:NumelIn|TensorShape)=(?P<elements>\d+|\[[\d, ]*\]))?"
)
# A loss scale above 1 is still looking for its place: ten skipped steps and more are a healthy start.
_OVERFLOW = re.compile(
    r"overflow.*Skipping step\. Attempted loss scale: [01](?:\.\d+)?,"
    r"|loss[\"']?\s*[:=]\s*[\"']?(?:nan|inf)\b|grad_norm[\"']?\s*[:=]\s*[\"']?nan",
    re.IGNORECASE,
)
_TRACEBACK = re.compile(r"(?:^|[\]}|: ])Traceback \(most recent call last\):(?: \(RANK \d+\))?\s*$")
_IGNORED = "Exception ignored in"
_OTHER = "no known pattern: the error's own words say what happened"
_NAMED = re.compile(r"[A-Za-z_][\w.]*(?:: |:?$)")
_VAGUE = ("other", "peer-lost", "collective-timeout", "rendezvous-lost", "aborted", "no-words")
_LOOP = 5  # skipped or non-finite steps in a row


@dataclass(frozen=True)
class Diagnosis:
    """One failure. `rank` None: no line says it. `error`: the rank's own words; `where`: file and line of them."""

    name: str
    rank: int | None
    error: str
    where: str
    cause: str
    fix: str
    host: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class _Seen:
    """A line that names an error."""

    line: Line
    strength: Strength
    name: str
    cause: str
    fix: str
    order: int

    def place(self) -> tuple[int, float, int]:
        """The first failure is the smallest: by strength, then by time where lines say it, then by order."""
        return _ORDER[self.strength], self.line.time if self.line.time is not None else 0.0, self.order


@dataclass(frozen=True)
class _Root:
    """The first failure by torchrun's account, and the line that its account begins on."""

    rank: int
    host: str
    order: int


def diagnose_logs(paths: Sequence[Path]) -> Diagnosis | None:
    """The diagnosis of log files, of one rank each or of all together; None where no line names an error.

    Raises UserError with every path that cannot be read.
    """
    lines: list[Line] = []
    problems: list[Problem] = []
    for path in _files(paths):
        try:
            lines += read(path)
        except OSError as error:
            problems.append(
                Problem("--log", f"cannot be read: {error.strerror}", str(path), f"see ls -l {path.parent}")
            )
    if problems:
        raise UserError(problems=problems)
    return diagnose(lines)


def diagnose_run(failure: str, rank: int | None, logs: Sequence[Path]) -> Diagnosis | None:
    """Of a run: the launcher's word on the first failure, then the logs, which may say more than it.

    failure: the first failing rank's own error, an empty string where none was written.
    """
    stated = diagnose([Line("the run's record", n, text, rank) for n, text in enumerate(failure.splitlines(), start=1)])
    lines = [line for log in logs for line in read(log)]
    own = [line for line in lines if line.rank == rank] if rank is not None else lines
    if stated is not None and stated.name not in (*_VAGUE, "killed"):
        return stated
    logged = diagnose(own)
    if logged is not None and logged.name not in _VAGUE:
        return logged
    whole = diagnose(lines)
    if stated is None:
        return logged or whole or _words(failure, rank)
    return whole if stated.name == "collective-timeout" and whole is not None and whole.rank is not None else stated


def _words(failure: str, rank: int | None) -> Diagnosis | None:
    """Of an error that no signature knows: its own words, and its own fix where it names one."""
    if not failure:
        return None
    return Diagnosis("other", rank, failure.splitlines()[0], "the run's record", _OTHER, "headway show RUN --logs")


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        inside = sorted(
            one for one in path.rglob("*") if one.is_file() and one.suffix in (".log", ".out", ".err", ".txt")
        )
        found += inside if path.is_dir() else [path]
    return found


def diagnose(lines: Sequence[Line]) -> Diagnosis | None:
    """One diagnosis of these lines, or None."""
    if any(line.by_task and _OF_AGENT.search(line.text) for line in lines):
        lines = [replace(line, rank=None) if line.by_task else line for line in lines]
    seen = _errors(lines)
    loop = _loop(lines)
    if loop is not None:
        seen.append(loop)
    if not seen:
        return None
    first = min(seen, key=_Seen.place)
    root = _root_cause(lines)
    if root is not None and first.strength != "strong":
        own = [one for one in seen if one.line.rank == root.rank and one.strength != "echo"]
        told = [one for one in seen if one.order > root.order and first.strength == one.strength == "launcher"]
        first = min(own or told or [first], key=_Seen.place)
    rank = first.line.rank if first.line.rank is not None else _rank_of(first, root, lines)
    host = first.line.host or (root.host if root is not None and rank == root.rank else "") or _named_host(first)
    made = Diagnosis(
        first.name,
        rank,
        first.line.text.strip(),
        f"{first.line.file}:{first.line.number}",
        first.cause,
        first.fix,
        host,
    )
    return _said_more(made, first, seen, lines)


def _named_host(first: _Seen) -> str:
    match = _TASK.search(first.line.text)
    return match["host"] or match["node"] if match else ""


def _rank_of(first: _Seen, root: _Root | None, lines: Sequence[Line]) -> int | None:
    """Of a line without a rank: the launcher's word on which failed first, or the only rank that there is."""
    if root is not None:
        return root.rank
    if said := _IN_WORDS.search(first.line.text):
        return None if first.line.host or first.line.by_task else int(said[1])  # of several hosts
    if told := _TASK.search(first.line.text):
        return int(told["task"] or told["rank"])
    if "exits with return code" in first.line.text:
        return None  # DeepSpeed's launcher does not say whose
    ranks = {line.rank for line in lines if line.rank is not None}
    ranks |= {int(match[1]) for line in lines if (match := _SPAWNED.match(line.text))}
    return next(iter(ranks)) if len(ranks) == 1 else None


def _errors(lines: Sequence[Line]) -> list[_Seen]:
    found: list[_Seen] = []
    aloud: list[_Seen] = []
    ends = dict(_ends_of_tracebacks(lines))
    among = possible("\n".join(line.text for line in lines))
    for order, line in enumerate(lines):
        text = line.text.strip()
        if not text or is_no_error(text):
            continue
        if order in ends and order and (called := _CALLED.search(lines[order - 1].text)):
            text = f"{text} (in {called[0]})"
        known = recognise(text, among) if _may_be_error(line.text) else None
        if known is not None:
            signature, match = known
            cause, fix = signature.words(match)
            strength = signature.strength if ends.get(order, "strong") == "strong" else "echo"
            found.append(_Seen(line, strength, signature.name, cause, fix, order))
            continue
        if LAUNCHERS_OWN.search(text):
            continue
        if order in ends or (EXCEPTION.match(text) is not None and line.text[:1] not in " \t"):
            if not _heads(lines, order):
                found.append(_unknown(lines, order, ends.get(order, "strong")))
        elif SAID_ALOUD.match(text):
            aloud.append(_unknown(lines, order, "echo"))
    found = _without_chains(found, lines)
    return found + aloud if all(one.strength == "launcher" for one in found) else found


def _unknown(lines: Sequence[Line], order: int, strength: Strength) -> _Seen:
    """An error that no signature knows."""
    line = lines[order]
    fix = _own_fix(lines, order) or f"read the lines above {line.file}:{line.number}"
    return _Seen(line, strength, "other", _OTHER, fix, order)


def _heads(lines: Sequence[Line], order: int) -> bool:
    """Whether a line is the heading of the next, which is the error: `Error(s) in loading state_dict for X:`."""
    below = lines[order + 1].text if order + 1 < len(lines) else ""
    if lines[order].text.rstrip().endswith(" raised:") and EXCEPTION.match(below):
        return True  # torch.compile names its backend first
    known = recognise(below) if _may_be_error(below) else None
    return known is not None and known[0].strength in ("strong", "weak")


def _ends_of_tracebacks(lines: Sequence[Line]) -> Iterator[tuple[int, Strength]]:
    """The line that closes each traceback, whatever the exception's name: `AssertionError`, `mine.BadBatch: row 7`.

    An exception that Python ignored (in a __del__) is the echo of what went before.
    """
    begun: dict[tuple[str, int | None, str], tuple[int, Strength]] = {}
    ignored: set[tuple[str, int | None, str]] = set()
    for order, line in enumerate(lines):
        stream = (line.file, line.rank, line.host)
        if line.text.startswith(_IGNORED):
            ignored.add(stream)
        elif "Traceback" in line.text and _TRACEBACK.search(line.text):
            indent = 2 if line.text.lstrip().startswith("traceback : ") else 0  # in torchrun's closing table
            begun[stream] = indent, "echo" if stream in ignored else "strong"
            ignored.discard(stream)
        elif stream in begun and line.text.strip():
            indent, strength = begun[stream]
            if len(line.text) - len(line.text.lstrip()) <= indent:
                del begun[stream]
                if _NAMED.match(line.text.strip()):
                    yield order, strength


def _own_fix(lines: Sequence[Line], order: int) -> str:
    """Headway's own errors say their fix in one of the next lines."""
    for line in lines[order + 1 : order + 8]:
        if match := re.match(r"\s+fix: (.+)", line.text):
            return match[1]
    return ""


def _may_be_error(text: str) -> bool:
    """Source lines that a traceback quotes are not errors, nor is the place that they stand in."""
    return not text.startswith(("    ", "  File ", "│")) or text.lstrip().startswith(
        ("size mismatch for ", '"message": ', "Exit Code:", "Reason:", "Message:", "Missing key", "Unexpected key")
    )


def _without_chains(found: list[_Seen], lines: Sequence[Line]) -> list[_Seen]:
    """Of exceptions that follow from each other in one rank, those that a signature knows stand for the others."""
    joined = ("During handling of the above exception", "The above exception was the direct cause")
    known_before: set[int | None] = set()
    kept: list[_Seen] = []
    position = 0
    chained: set[int | None] = set()
    for one in found:
        while position <= one.order:
            if any(word in lines[position].text for word in joined):
                chained.add(lines[position].rank)
            position += 1
        rank = one.line.rank
        if one.name == "other" and rank in chained and rank in known_before:
            chained.discard(rank)
            continue
        if one.name != "other" and rank in chained:
            kept = [old for old in kept if not (old.name == "other" and old.line.rank == rank)]
        chained.discard(rank)
        if one.name != "other":
            known_before.add(rank)
        kept.append(one)
    return kept


def _loop(lines: Sequence[Line]) -> _Seen | None:
    """Steps that are skipped, or a loss that is no number, again and again."""
    hits = [(order, line) for order, line in enumerate(lines) if _OVERFLOW.search(line.text)]
    if len(hits) < _LOOP:
        return None
    order, line = hits[0]
    known = recognise("Current loss scale already at minimum")
    if known is None:
        return None
    cause, fix = known[0].words(known[1])
    return _Seen(line, "strong", "not-finite", f"{cause}: {len(hits)} lines say so", fix, order)


def _root_cause(lines: Sequence[Line]) -> _Root | None:
    """What torchrun's closing table says under 'Root Cause'."""
    start, host = -1, ""
    for order, line in enumerate(lines):
        if _ROOT_CAUSE.search(line.text):
            start = order
        match = _BLOCK.match(line.text)
        if start < 0 or match is None:
            continue
        host = match["value"].strip() if match["key"] == "host" else host
        if match["key"] == "rank":
            number = re.match(r"\d+", match["value"])
            return _Root(int(number[0]), host, start) if number else None
    return None


def _said_more(made: Diagnosis, first: _Seen, seen: Sequence[_Seen], lines: Sequence[Line]) -> Diagnosis:
    """What other ranks' lines add: who is missing from a collective, whether a module is absent on one host only."""
    ranks = {line.rank for line in lines if line.rank is not None}
    if made.name == "missing-module" and len(ranks) > 1:
        same = {one.line.rank for one in seen if one.name == made.name}
        if same < ranks and made.rank is not None:
            others = ", ".join(map(str, sorted(rank for rank in ranks - same if rank is not None)))
            return replace(made, cause=f"{made.cause}, while rank {others} found it: the environments differ")
    if made.name == "collective-timeout":
        return _timed_out(made, lines, ranks, {one.line.rank for one in seen if one.name == made.name})
    return made


def _timed_out(
    made: Diagnosis, lines: Sequence[Line], ranks: Iterable[int | None], waiting: Iterable[int | None]
) -> Diagnosis:
    """Ranks that wait are not the culprit; it is one that says nothing, or waits in another collective."""
    dogs = {int(m["rank"]): m for line in lines if (m := _WATCHDOG.search(line.text))}
    places = {rank: (m["kind"], m["elements"], int(m["number"] or 0)) for rank, m in dogs.items()}
    if len(set(places.values())) > 1:
        alike = Counter(places.values())
        behind = min(places, key=lambda rank: (places[rank][2], alike[places[rank]], rank))
        told = "; ".join(f"rank {r}: {k} of {e} elements, number {n}" for r, (k, e, n) in sorted(places.items()))
        cause = f"the ranks wait in different collectives ({told}): some took a branch that others did not"
        fix = "move the collective out of the test of the rank; headway doctor --script FILE finds it"
        return replace(made, name="mismatched-collectives", rank=behind, cause=cause, fix=fix)
    absent = sorted(rank for rank in set(ranks) - set(waiting) if rank is not None)
    silent = set(range(max(dogs, default=0))) - set(dogs)
    if not absent and 0 < len(silent) < len(dogs):  # of ranks 1, 2 and 3 that wait, it is rank 0 that does not
        absent = sorted(silent)
    if absent and list(waiting) != [None]:
        names = ", ".join(map(str, absent))
        return replace(made, rank=absent[0], cause=f"{made.cause}: rank {names} never came to it")
    return made
