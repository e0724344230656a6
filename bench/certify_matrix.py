"""Certify many plans on this machine; what held goes to docs/certify-matrix.md and the table of docs/certify.md.

    python bench/certify_matrix.py                     the matrix, the sound plans with other seeds, the planted faults
    python bench/certify_matrix.py matrix --rows 5     part of it, to see that it works; --write: into the documents too

Results are kept as they come in .headway/certify-matrix/, one file a part, and a part that was cut short goes on there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from certify_rows import Row, covering_rows, words_of  # noqa: E402
from machine import describe  # noqa: E402
from tests.certify.faults import FAULTS, NAMES, Certifier, Fault  # noqa: E402

from headway.certify.bounds import BOUNDS  # noqa: E402
from headway.certify.numerics import versions  # noqa: E402
from headway.certify.schema import CLAIMS, Claim, Measure  # noqa: E402
from headway.errors import HeadwayError, Stopped  # noqa: E402
from headway.launch.local import warm_up  # noqa: E402

KEPT = ROOT / ".headway" / "certify-matrix"
SEEDS = (1, 2, 3)
SOUND_PLANS = 20
BEGIN, END = "<!-- made by make certify-matrix -->", "<!-- end -->"
Result = dict[str, Any]


def certified(certifier: Certifier, words: tuple[str, ...]) -> Result:
    """Claims of one plan, or why it was refused before."""
    started = time.monotonic()
    try:
        claims = certifier.claims(words, CLAIMS)
    except Stopped:
        raise
    except HeadwayError as error:
        return {"refused": f"{type(error).__name__}: {error}", "claims": []}
    found = [claim.model_dump(mode="json") for claim in claims]
    return {"claims": found, "seconds": round(time.monotonic() - started, 1)}


def matrix_jobs() -> Iterator[tuple[str, Callable[[Certifier], Result]]]:
    for row in covering_rows():
        yield " | ".join(row.values()), lambda certifier, row=row: {"row": row, **certified(certifier, words_of(row))}


def alarm_jobs() -> Iterator[tuple[str, Callable[[Certifier], Result]]]:
    """Every second row of the matrix, with three other seeds of weights, data and dropout."""
    for row in _spread(covering_rows()):
        for seed in SEEDS:
            words = (*words_of(row), f"train.seed={seed}")
            name = f"{' | '.join(row.values())} | seed {seed}"
            yield name, lambda certifier, row=row, words=words: {"row": row, **certified(certifier, words)}


def _spread(rows: list[Row]) -> list[Row]:
    step = max(1, len(rows) // SOUND_PLANS)
    return rows[::step][:SOUND_PLANS]


def fault_jobs() -> Iterator[tuple[str, Callable[[Certifier], Result]]]:
    for fault in FAULTS:
        yield f"{fault} {' '.join(fault.words)}", lambda certifier, fault=fault: _fault(certifier, fault)


def _fault(certifier: Certifier, fault: Fault) -> Result:
    claim = certifier.with_fault(fault)
    return {"fault": fault.plant, "words": fault.words, "claims": [claim.model_dump(mode="json")]}


PARTS = {"matrix": matrix_jobs, "alarms": alarm_jobs, "faults": fault_jobs}


def run_part(part: str, options: argparse.Namespace, ends: float) -> list[Result]:
    """Results of a part, those of an earlier start of the same versions included."""
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{part}.jsonl"
    known = {} if options.again or not path.is_file() else _read(path)
    with tempfile.TemporaryDirectory() as folder, path.open("a", encoding="utf-8") as file:
        certifier = Certifier(Path(folder))
        for index, (name, job) in enumerate(PARTS[part]()):
            if name in known:
                continue
            if index >= options.rows or time.monotonic() > ends:
                break
            result = {"name": name, "versions": versions(), **job(certifier)}
            known[name] = result
            file.write(json.dumps(result) + "\n")
            file.flush()
            print(f"{part} {len(known)}: {_verdict(result)}  {name}", flush=True)
    wanted = [name for name, _ in PARTS[part]()]
    return [known[name] for name in wanted if name in known]


def _read(path: Path) -> dict[str, Result]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    mine = _others(versions())
    return {line["name"]: line for line in lines if _others(line["versions"]) == mine}


def _others(found: dict[str, str]) -> dict[str, str]:
    """Without Headway's own version, which any edit changes: after one that matters, write --again."""
    return {name: number for name, number in found.items() if name != "headway"}


def _claims(result: Result) -> list[Claim]:
    return [Claim.model_validate(claim) for claim in result["claims"]]


def _verdict(result: Result) -> str:
    if "refused" in result:
        return "refused"
    failed = [str(claim.number) for claim in _claims(result) if claim.outcome == "failed"]
    return f"claims {', '.join(failed)} failed" if failed else "holds"


# --- the documents ---------------------------------------------------------------------------------------------------


def dated(results: list[Result]) -> str:
    """The day, the machine, the versions, and by which sources of Headway so many rows were certified."""
    machine = describe()
    found = ", ".join(f"{name} {number}" for name, number in _others(versions()).items())
    rows = Counter(result["versions"]["headway"] for result in results)
    sources = ", ".join(f"{number} ({count} rows)" for number, count in rows.most_common())
    return f"{date.today():%Y-%m-%d}, {machine['cores']} cores of {machine['cpu']}; {found}; headway {sources}"


def matrix_table(results: list[Result]) -> list[str]:
    settings = list(results[0]["row"])
    heads = [*settings, *map(str, CLAIMS), "gradients", "s"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for result in results:
        marks = {claim.number: {"proven": "+", "failed": "**!**"}.get(claim.outcome, "-") for claim in _claims(result)}
        cells = [result["row"][name] for name in settings]
        cells += [marks.get(number, "") for number in CLAIMS]
        cells += [_gradients(result), f"{result.get('seconds', 0):.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _gradients(result: Result) -> str:
    found = [
        measure.value for claim in _claims(result)[:1] for measure in claim.measures if "gradients" in measure.what
    ]
    return f"{found[0]:.1e}" if found else ""


def largest_table(results: list[Result]) -> list[str]:
    """The largest value of each measure that has a bound, by precision."""
    lines = ["| precision | claim | measure | largest | bound |", "|---|---|---|---|---|"]
    found: dict[tuple[str, str, str], tuple[float, float]] = {}
    for result in results:
        for claim in _claims(result):
            for measure in claim.measures:
                if measure.bound > 0 and claim.number in (1, 2, 5, 6):
                    key = (result["row"]["precision"], f"{claim.number} {claim.name}", measure.what)
                    found[key] = max(found.get(key, (0.0, 0.0)), (measure.value, _bound_now(key, measure)))
    for (precision, claim, what), (value, bound) in sorted(found.items()):
        lines.append(f"| {precision} | {claim} | {what} | {value:.1e} | {bound:.1e} |")
    return lines


def _bound_now(key: tuple[str, str, str], measure: Measure) -> float:
    """Results are kept over a change of the bounds."""
    precision, claim, what = key
    bounds = BOUNDS[precision]
    if claim.startswith("5"):
        return bounds.trajectory
    names = {"gradient norm": bounds.norm, "its norm": bounds.norm, "loss": bounds.loss}
    names |= {"weights at the start": bounds.start}
    return names.get(what, bounds.gradient if what.startswith("gradients of") else measure.bound)


def failures(results: list[Result]) -> list[str]:
    lines: list[str] = []
    for result in results:
        if "refused" in result:
            lines.append(f"- {result['name']}: refused before any run. {result['refused'].splitlines()[0]}")
        for claim in _claims(result):
            broken = [f"{m.what}: {m.value:.2e}, bound {m.bound:.1e}" for m in claim.measures if not m.holds]
            if claim.outcome == "failed":
                lines.append(f"- {result['name']}: claim {claim.number}: {'; '.join([*broken, claim.reason])}")
    return lines or ["None."]


def matrix_document(matrix: list[Result], alarms: list[Result]) -> str:
    held = sum(_verdict(result) == "holds" for result in matrix)
    sound = sum(_verdict(result) == "holds" for result in alarms)
    plans = len({json.dumps(result["row"]) for result in alarms})
    lines = [
        "# The certify matrix",
        "",
        f"Made by `make certify-matrix` on {dated([*matrix, *alarms])}.",
        *_scope(len(matrix), len(alarms)),
        "What each claim means: [certify.md](certify.md). `+` proven, `!` failed, `-` not proven (no second process).",
        "",
        f"## Combinations: {held} of {len(matrix)} hold",
        "",
        f"Every pair of two settings occurs in these {len(list(matrix_jobs()))} plans, but for strategy with",
        "architecture. A model of two layers, documents made up. `2x4`: micro batch x accumulation, on two ranks;",
        "`13`: a global batch that does not divide. `gradients`: the largest relative difference from plain PyTorch.",
        "",
        *matrix_table(matrix),
        "",
        "What failed or was refused:",
        "",
        *failures(matrix),
        "",
        f"## No false alarm: {sound} of {len(alarms)} hold" if alarms else "## No false alarm: not run yet",
        "",
        f"{plans} sound plans of the table above, each with the seeds {', '.join(map(str, SEEDS))} of weights, data and"
        " dropout. What failed:",
        "",
        *failures(alarms),
        "",
        "## How near the bounds",
        "",
        "The largest value of each measure over all plans of this page, and the bound of today.",
        "",
        *largest_table([*matrix, *alarms]),
        "",
    ]
    return "\n".join(lines) + _refused_text()


def _scope(matrix: int, alarms: int) -> list[str]:
    """Said where time ran out."""
    wanted, sound = len(list(matrix_jobs())), len(list(alarm_jobs()))
    if (matrix, alarms) == (wanted, sound):
        return []
    return [
        f"**A part of it**: {matrix} of {wanted} plans, {alarms} of {sound} sound ones; `make certify-matrix` goes on."
    ]


def _refused_text() -> str:
    return (ROOT / "bench" / "certify_refused.md").read_text(encoding="utf-8")


def fault_table(results: list[Result]) -> list[str]:
    lines = [
        f"Measured on {dated(results)}.",
        "",
        "| planted fault | plan | claim | measured | bound |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        claim = _claims(result)[0]
        broken = [measure for measure in claim.measures if not measure.holds]
        worst = max(broken, key=lambda m: m.value / m.bound if m.bound else float("inf"), default=None)
        figure = "not caught" if worst is None else f"{worst.what}: {worst.value:.2g}"
        plan = " ".join(word.removeprefix("strategy=").replace('"', "") for word in result["words"])
        bound = "" if worst is None else "to the bit" if worst.bound == 0 else f"{worst.bound:.1e}"
        fault = result["fault"].replace("_", " ")
        lines.append(f"| {fault} | {plan} | {claim.number} {NAMES[claim.number]} | {figure} | {bound} |")
    return lines


def write_faults(results: list[Result]) -> None:
    path = ROOT / "docs" / "certify.md"
    text = path.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        sys.exit(f"{path} has no place for the table: {BEGIN} ... {END}")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    table = "\n".join(fault_table(results))
    path.write_text(f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--rows", type=int, default=10**6, help="at most so many of a part")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no plan after so many minutes")
    parser.add_argument("--again", action="store_true", help="forget the results of an earlier start")
    parser.add_argument("--write", action="store_true", help="write the documents although parts were left out")
    options = parser.parse_args()
    os.chdir(ROOT)  # ranks find the planted faults from here
    warm_up("cpu")
    ends = time.monotonic() + 60 * options.minutes
    chosen = options.parts or list(PARTS)
    results = {part: run_part(part, options, ends) for part in chosen}
    whole = len(chosen) == len(PARTS) and options.rows == 10**6
    if whole or (options.write and {"matrix", "alarms"} <= results.keys()):
        document = matrix_document(results["matrix"], results["alarms"])
        (ROOT / "docs" / "certify-matrix.md").write_text(document, encoding="utf-8")
    if "faults" in results and (whole or options.write):
        write_faults(results["faults"])
    bad = [r["name"] for p in ("matrix", "alarms") for r in results.get(p, []) if _verdict(r) != "holds"]
    bad += [r["name"] for r in results.get("faults", []) if _verdict(r) == "holds"]
    sys.exit("\n".join(["not as it should be:", *bad]) if bad else 0)


if __name__ == "__main__":
    main()
