"""The measurements as a Markdown page: ratios within rounds first, then what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import chats
from children import CONTENDERS, LORA_STEPS

Row = dict[str, Any]
BEGIN = "<!-- results: written by bench/run.py after a full session -->"
END = "<!-- end of results -->"


@dataclass(frozen=True)
class Comparison:
    """`ours` against the best of `theirs` in the same round. goal: of the median; at most where less is better."""

    title: str
    ours: str
    theirs: tuple[str, ...]
    measure: Callable[[Row], float]
    goal: str
    less_is_better: bool = False


def _tokens(row: Row) -> float:
    return row["tokens_per_second"]


def _useful(row: Row) -> float:
    return row["targets_per_second"]


def _first_step(row: Row) -> float:
    return row["marks"]["first step"]


COMPARISONS = (
    Comparison("tokens/s: Headway ddp / plain DDP loop", "headway-ddp", ("plain-ddp",), _tokens, "at least 0.98"),
    Comparison("tokens/s: Headway zero-2 / HF Trainer + ZeRO-2", "headway-zero2", ("hf-zero2",), _tokens, ""),
    Comparison("tokens/s: Headway zero-2 / Accelerate + ZeRO-2", "headway-zero2", ("accelerate-zero2",), _tokens, ""),
    Comparison(
        "useful tokens/s, ragged: Headway / HF Trainer + ZeRO-2, padded",
        "headway-ragged",
        ("hf-padded",),
        _useful,
        "at least 1.3",
    ),
    Comparison(
        "useful tokens/s, ragged: Headway / best packed peer",
        "headway-ragged",
        ("trl-bfd", "trl-wrapped"),
        _useful,
        "at least 1.0",
    ),
    Comparison(
        "useful tokens/s, LoRA on chats: Headway / best of TRL packed and padded",
        "headway-lora",
        ("trl-lora-bfd", "trl-lora-padded"),
        _useful,
        "at least 1.0",
    ),
    Comparison(
        "command to first step: Headway zero-2 / HF Trainer + ZeRO-2",
        "headway-zero2",
        ("hf-zero2",),
        _first_step,
        "at most 1.0, aim 0.8",
        less_is_better=True,
    ),
)


def ratios(result: dict[str, Any], comparison: Comparison) -> list[float]:
    """One for each round in which both sides ran."""
    found: list[float] = []
    for number in sorted({row["round"] for row in result["runs"]}):
        rows = {row["contender"]: comparison.measure(row) for row in result["runs"] if row["round"] == number}
        rivals = [rows[name] for name in comparison.theirs if name in rows]
        if comparison.ours in rows and rivals:
            best = min(rivals) if comparison.less_is_better else max(rivals)
            found.append(rows[comparison.ours] / best)
    return found


def markdown(result: dict[str, Any]) -> str:
    parts = [_head(result), _ratio_table(result), _speed_table(result), _start_table(result), _small_things(result)]
    return "\n\n".join(part for part in parts if part) + "\n"


def put_into(page: Path, text: str) -> None:
    """Replace what stands between the two marks of a documentation page."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{page} lacks the marks {BEGIN!r} and {END!r}")
    body = text.partition("\n")[2].strip().replace("\n## ", "\n### ")
    page.write_text(f"{before}{begin}\n{body}\n{end}{after}", encoding="utf-8")


def _head(result: dict[str, Any]) -> str:
    machine, settings, data = result["machine"], result["settings"], result["data"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        "# Headway beside its peers",
        f"{result['date']}, {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB,"
        f" {machine['system']}, Python {machine['python']}; load average at the start {machine['load_average']:.1f}.",
        f"{versions}.",
        f"{settings['rounds']} rounds; in each, every contender once, as a fresh command; the order moves on by one a"
        f" round. {settings['processes']} processes of one thread. Speeds are those of steps {settings['skip'] + 1} to"
        f" {settings['steps']}. Llama of 8.4 M parameters (hidden 256, 8 layers, 8k entries, tied), sequence 256,"
        " micro batch 4, fused AdamW, clipping at 1.0, fp32.",
        "Same settings: full windows without document borders for everyone. Ragged:"
        f" {data['documents']} functions of Python's standard library, median {data['median_tokens']:.0f} and mean"
        f" {data['mean_tokens']:.0f} tokens, {data['over_sequence_share']:.0%} longer than a sequence; useful tokens"
        " are those that carry loss.",
    ]
    if told := result.get("chats"):
        lines.append(
            f"LoRA on chats: SmolLM2-135M-Instruct (dequantised from 4 bits), rank {chats.RANK} on all linear layers,"
            f" {told['chats']} chats of {told['mean_tokens']:.0f} tokens on average, {told['learnt_share']:.0%} of them"
            f" learnt; a step of a process is {chats.WINDOWS} windows of {chats.SEQUENCE} tokens, or {chats.ROWS}"
            f" padded rows. {LORA_STEPS} steps at most."
        )
    lines += [f"Left out: {name} ({why})." for name, why in result["skipped"].items()]
    lines += [f"FAILED: {text.splitlines()[0]}" for text in result["failures"]]
    lines += [f"Note: {text}." for text in result["notes"]]
    return "\n\n".join(lines)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _spread(values: list[float], form: str = ".2f") -> list[str]:
    return [format(f(values), form) for f in (median, min, max)] if values else ["not run"] + [""] * 2


def _ratio_table(result: dict[str, Any]) -> str:
    rows = [[c.title, *_spread(ratios(result, c), ".3f"), c.goal] for c in COMPARISONS]
    tokenising = [row["headway"] / row["library"] for row in result["tokenising"]]
    rows.append(["tokenising: Headway's whole build / encode_batch", *_spread(tokenising, ".3f"), "at least 0.9"])
    return "## Ratios within a round\n\n" + _table(["", "median", "min", "max", "goal"], rows)


def _speed_table(result: dict[str, Any]) -> str:
    peaks = [peak / 1e9 for peak in result["peaks"]]
    peak = max(peaks) * 1e9
    scenarios = {contender.name: contender.scenario for contender in CONTENDERS}
    flops = {scenarios[row["contender"]]: row["flops_per_token"] for row in result["runs"] if row["flops_per_token"]}
    rows: list[list[str]] = []
    for contender in CONTENDERS:
        runs = [row for row in result["runs"] if row["contender"] == contender.name]
        if not runs:
            continue
        tokens, useful = [_tokens(row) for row in runs], [_useful(row) for row in runs]
        known = flops.get(contender.scenario)
        share = f"{median(tokens) * known / peak:.1%}" if known else "-"
        loss = f"{median(row['loss'] for row in runs):.2f}"
        rows.append(
            [f"{contender.scenario}: {contender.title}", *_spread(tokens, ".0f"), f"{median(useful):.0f}", share, loss]
        )
    head = ["", "tokens/s", "min", "max", "useful/s", "share of peak", "last loss"]
    measured = f"{max(peaks):.0f} GFLOP/s (the best round; median {median(peaks):.0f}, least {min(peaks):.0f})"
    return f"## Speed\n\nMeasured matmul peak of both processes together: {measured}.\n\n" + _table(head, rows)


def _start_table(result: dict[str, Any]) -> str:
    """Seconds from the command to each mark, medians: where each second goes."""
    rows: list[list[str]] = []
    for contender in CONTENDERS:
        runs = [row for row in result["runs"] if row["contender"] == contender.name]
        if runs:
            marks = {name: median(row["marks"][name] for row in runs) for name in runs[0]["marks"]}
            text = ", ".join(f"{name} {seconds:.1f}" for name, seconds in marks.items() if name != "first step")
            firsts = [_first_step(row) for row in runs]
            rows.append([f"{contender.scenario}: {contender.title}", *_spread(firsts, ".1f"), text])
    note = "Seconds from the command. Headway reads a token store and the peers read token ids, both made before."
    head = ["", "first step", "min", "max", "on the way (medians)"]
    return f"## From command to first step\n\n{note}\n\n" + _table(head, rows)


def _small_things(result: dict[str, Any]) -> str:
    lines: list[str] = []
    for part, title in (("overhead_seconds", "loop and tracking"), ("data_wait_seconds", "waiting for data")):
        shares = [row["overhead"][part] for row in result["runs"] if part in row["overhead"]]
        if shares:
            lines.append(f"- Headway's {title}: {median(shares):.2%} of a step (max {max(shares):.2%} of all runs).")
    for name in result["help"][0] if result["help"] else ():
        seconds = [row[name] for row in result["help"]]
        lines.append(f"- `{name}`: {median(seconds) * 1000:.0f} ms (min {min(seconds) * 1000:.0f}).")
    titles = {
        "library": "`tokenizers` encode_batch alone",
        "script": "`tokenizers` with reading and writing",
        "headway": "Headway's token store",
    }
    for name, title in titles.items():
        speeds = [row[name] for row in result["tokenising"]]
        if speeds:
            lines.append(f"- {title}: {median(speeds):.2f} MB/s (min {min(speeds):.2f}, max {max(speeds):.2f}).")
    return "## Small things\n\n" + "\n".join(lines) if lines else ""
