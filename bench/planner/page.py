"""docs/planner-accuracy.md with its plots, from the judged rows."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from datetime import date
from pathlib import Path

import accuracy
import matplotlib as mpl
from fit import MEMORY_BOUNDS, left_out, left_out_of_memory, with_memory, with_speed
from scores import Errors, Judged, choices, confusion, errors, gibibytes

from headway.plan.constants import MEMORY, TIME

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "headway"
from matplotlib import pyplot as plt  # noqa: E402

INTRODUCTION = """\
# How right the planner is

`make planner-accuracy` wrote this page on {day} from {judged} of {total} published measurements
(`bench/planner/published.csv`, each row with its source; rows of quality C are left out). `make planner-accuracy
TABLE=other.csv` judges any table with these columns and refits nothing.

An error is planned over measured, less one; bias is the median with its sign. Memory is compared in the kind that was
measured: allocated, reserved, or the device's. What a row does not state is filled in from what its software does by
default (`SOFTWARE` in `bench/planner/rows.py`): no row is adjusted by what was measured. That table and the constants
of memory were written with these rows at hand, so the figures below are in-sample; how the constants do on software
that they were not fitted to stands under "Whole families left out", and how both do on what was gathered afterwards
in the last columns and under "Rows seen only after the constants were set". Two columns were added for four rows
whose source lists techniques one on top of the other: `loss` (a word of `LossKind`) and `optimizer`. A row whose
speed is above the datasheet's peak of its device is not judged at all: no setting computes more, so something in it
is misstated. Of this table that is one, torchtune-004 at 1.4 times its card's peak; with it 89.7 % of the memory rows
would lie within 12 %.
"""
GOALS = (
    ("memory, median error", "6 %"),
    ("memory, rows within 12 %", "90 %"),
    ("device memory cut at 0.9 of the peak, not noticed", "8 %"),
    ("device memory cut at 1.1 of the peak, false alarm", "8 %"),
    ("speed, median error", "10 %"),
    ("speed, rows within 25 %", "90 %"),
    ("regret, median", "5 %"),
    ("picks that ran out of memory", "0"),
)


def write_page(path: Path, rows: list[Judged], skipped: dict[str, int], total: int) -> None:
    """The page and its two plots beside it."""
    held, peaks = left_out(with_speed()), left_out_of_memory(with_memory())
    (_, own), (_, others), _ = accuracy.domains(rows)
    parts = [
        INTRODUCTION.format(day=date.today().isoformat(), judged=len(rows), total=total),
        goals(rows),
        "![Planned against measured](planner-accuracy-scatter.svg)\n",
        "![Share of rows within an error](planner-accuracy-errors.svg)\n",
        "## By domain\n",
        accuracy.markdown(["domain", *accuracy.HEAD[1:]], accuracy.summary(rows)) + "\n",
        "What fits, with each row's device memory cut at 0.9 and 1.1 of its measured peak:\n",
        accuracy.markdown(accuracy.CONFUSION_HEAD, accuracy.confusions(rows)) + "\n",
        f"Regret: {accuracy.regrets(rows)}.\n",
        PICK,
        "## Whole families left out of the fit\n",
        LEFT_OUT,
        "Speed:\n",
        crossed(held, 0.25) + "\n",
        "Memory, data parallel:\n",
        crossed(peaks, 0.12) + "\n",
        *(part for later in accuracy.LATER for part in seen_later(later)),
        "## By source\n",
        accuracy.markdown(accuracy.HEAD, accuracy.by_source(rows, lambda row: row.row.source)) + "\n",
        "## The worst rows\n",
        "Memory, data parallel:\n",
        table_of_worst(own, accuracy.memory, in_gibibytes) + "\n",
        "Memory, tensor or pipeline parallel:\n",
        table_of_worst(others, accuracy.memory, in_gibibytes) + "\n",
        "Speed, tokens a second of one device:\n",
        table_of_worst(rows, accuracy.speed, in_tokens) + "\n",
        "## Not judged\n",
        "\n".join(f"- {count}: {why}" for why, count in sorted(skipped.items(), key=lambda item: -item[1])) + "\n",
        "## The constants\n",
        CONSTANTS,
        band(rows),
    ]
    path.write_text("\n".join(parts), encoding="utf-8")
    scatter(rows, path.with_name("planner-accuracy-scatter.svg"))
    cumulative(rows, held, path.with_name("planner-accuracy-errors.svg"))


def band(rows: list[Judged]) -> str:
    """How many peaks of all tables lie within the band that `headway plan` prints."""
    every = [*rows, *(row for later in accuracy.LATER for row in accuracy.load(later.table)[0])]
    ratios = [1 + row.memory_error for row in every if row.row.data_parallel and row.memory_error is not None]
    inside = sum(abs(1 / ratio - 1) <= MEMORY.band for ratio in ratios) / len(ratios)
    return (
        f"Band of the printed memory: {MEMORY.band:.0%} to either side. {inside:.0%} of the {len(ratios)} peaks of "
        "data-parallel runs, in this table and the later ones, lie within it.\n"
    )


SPEED = "tokens_per_s_per_gpu"
LEFT_OUT = f"""\
Everything above is in-sample: the constants were set with these rows at hand. Here they are fitted anew on all families
but one, and judged on that one: a family is all sources of one software, so this is stricter than leaving out single
sources. Of memory, {len(MEMORY_BOUNDS)} constants are fitted ({", ".join(MEMORY_BOUNDS)}); the others are counts. What
neither table shows is the choice of what to count (which tensors a software keeps, which of DeepSpeed's buffers lie
side by side): that was made with all rows at hand.
"""
# Of each later table: the heading of its section, and what it taught.
SEEN_LATER = {
    "held_out": (
        "Rows seen only after the constants were set",
        """\
`bench/planner/held_out.csv` holds {total} more measurements: other software (Hugging Face's trainer and PEFT, GPTQ,
Answer.AI's loop, Apex, Lightning), other cards (V100, RTX 3090 and 4090, A5000, RTX PRO 6000) and an encoder. They
were gathered when every constant had been set. {judged}, of {sources} sources, are judged; the others are of quality
C, most because their sequences differ in length, so that the blocks of every length stand side by side in what is
reserved.

As first read, 272 of them judged, the median error of memory was 18.1 % (90th: 45.6 %), that of speed 20.1 % (100.6
%); of the tight cuts 69 % were missed. That showed faults of three kinds. *In the table itself*: two sources print GB
under another name (the largest figure of one is more than its cards have in GiB). *In what a row was taken for*:
DeepSpeed keeps fp32 copies of an adapter, PEFT keeps adapters in fp32, a model without autocast makes its loss in 16
bits. *In the model*, mended for all plans: ZeRO-3 copies the gradients of one sub-group to fp32, not of all; DDP's
buckets stand beside gradients that accumulate; ZeRO-1 and 2 gather only what is trained; quantised weights are
gathered in their bits and cost a pass through memory before each product; parameters on the host come in parts,
behind the computation; adapters and ZeRO-3's hooks cost the host time; fp32 outside of the matrix units reaches 93 %
of its peak, not 80. The host's times (`adapter_operations`, `hook_seconds`) and that share were set when these rows
were known, so of short batches, ZeRO-3 and V100 the second reading is no test; no other constant was. "Before" is the
planner of that day on the corrected table.

After the table below these rows were given what their sources' code says and they did not: the dropout of adapters,
DeepSpeed's bucket, and that one loop holds its fp32 logits through the backward pass. With what that table taught of
the model the tight cuts that are missed fell from 43 to 26 %.
""",
    ),
    "later": (
        "Rows seen later still",
        """\
`bench/planner/later.csv` holds {total} more, gathered blind when the rows above had been looked at; {judged}, of
{sources} sources, are judged. The 258 whose ids begin with `ft` fine-tune: Hugging Face's trainer with PEFT, FSDP,
fused kernels and Liger, litgpt's recipes, ms-swift, xtuner, classifiers and span heads on BERT. The 341 with `pt`
train from scratch: GPT-2 in one file on 20 cards, MosaicML's and Megatron's tables, lightning-thunder's baselines,
course projects on GH200, V100 of 2021 and 2022.

Of fine-tuning, as first read, 188 of 258 judged, the median error of memory was 19.0 % (90th: 85 %), that of speed
9.8 % (41 %); of the tight cuts 21.9 % were missed, of the wide ones 42.3 % were false alarms. After the table was
corrected (which loss a kernel computes, the adapters' dropout, versions), the same planner had 13.3 % (85 %), 22.5 %
and 35.9 %. What was wrong, by kind. *In what a row was taken for*: FSDP frees frozen weights in the backward pass
since torch 2.1; the Trainer's AdamW was torch's loop over lists, which makes a list as large as the gradients;
Liger's kernels do not change whose optimizer runs; adapters stand beside the matrices that a row names, with their
dropout; heads of classifiers have no vocabulary; transformers lets go of 16-bit logits as it casts them; PEFT casts
what is not quantised of a base, and with it the residual stream, to fp32; Adafactor keeps a row and a column; words
in notes steered what they only mentioned. *In the model*, for all plans: ZeRO-3's bucket stands from the start,
however little is trained, and prefetching stops one matrix behind `stage3_max_live_parameters`, which is 10^9 and not
twice that; gradients of a written-out gated MLP stand three at a time; without checkpointing they stand beside all
activations; an adapter's dropout keeps a byte of mask, not two; autocast's copies of the weights are freed before the
backward pass; products of frozen weights without an adapter keep no input, whatever the adapter of attention is. *For
judging alone*: bitsandbytes before 0.43.2 kept the input of every quantised product, and FSDP under `no_sync` adds up
whole gradients.

Of training from scratch, as first read (with eight rows of a page that fine-tuning has too; 280 of 349 judged), the
median error of memory was 24.0 % (90th: 48.6 %), that of speed 12.5 % (73.8 %); of the tight cuts 29.9 % were missed,
of the wide ones 40.0 % were false alarms. After the table was corrected (a loss that is compiled with its model, in 50
rows; one row faster than its card's best product), the same planner
had 10.1 % (28.5 %), 11.1 % (73.8 %), 41.0 % and 9.1 %. *In what a row was taken for*: Megatron is
Megatron on one device and under the name DDP; torch's ZeroRedundancyOptimizer spreads the states of DDP alone; notes
on dropout, on missing NVLink, on GPUs of a node and on classifiers went unread; three cards were unknown. *In the
model*, for all plans: torch.compile keeps what a product reads also of a plain MLP; autocast takes the power in GPT-2's
and Phi's GELU in fp32, three kept tensors of five and most of its traffic; scores that are written out are softmaxed in
fp32, and their dropout keeps a byte of mask; autocast casts each weight and gradient once a micro batch; products
outside of the matrix units come in tiles of 64; a Grace host is 450 GB/s away. The same counts bring the speed of the
rows of `held_out.csv`, which were not looked at for them, from 14.8 to 12.4 %.

No constant was set with these rows, but what is counted was chosen when they were known: the second reading is no
test. "Before" is the planner of the day on the corrected table.
""",
    ),
}
PICK = """\
The pick is the setting that the planner expects to be the fastest of those that fit. `headway plan` itself takes the
simplest that fits, and names the fastest, with its overrides, where that is faster by 5 %.
"""
CONSTANTS = f"""\
Each stands in `src/headway/plan/constants.py` with its meaning. Where the fit (`bench/planner/fit.py`) ended at the
edge of what a constant may mean, more of it would only make up for something that is not modelled: the fp8 products
({TIME.matmul_fp8:.2f}), the network ({TIME.network:.2f}) and the overlap ({TIME.overlap:.1f}) do.
"""


def goals(rows: list[Judged]) -> str:
    """Reached on the rows that the constants were set with, and on those of each later table."""
    found = [reached(rows), *(reached(accuracy.load(later.table)[0]) for later in accuracy.LATER)]
    lines = [[*goal, *each] for goal, each in zip(GOALS, zip(*found, strict=True), strict=True)]
    head = ["goal, data-parallel domain", "bound", "reached", *(later.name for later in accuracy.LATER)]
    return accuracy.markdown(head, lines) + "\n"


def reached(rows: list[Judged]) -> list[str]:
    own = [row for row in rows if row.row.data_parallel]
    sizes, speeds, confused = errors(own, accuracy.memory), errors(own, accuracy.speed), confusion(own)
    found = choices(rows)
    regret = sorted(choice.regret for choice in found)
    return [
        f"{sizes.median if sizes else math.nan:.1%}",
        f"{sizes.within(0.12) if sizes else math.nan:.0%}",
        f"{confused.missed_share:.1%}",
        f"{confused.false_share:.1%}",
        f"{speeds.median if speeds else math.nan:.1%}",
        f"{speeds.within(0.25) if speeds else math.nan:.0%}",
        f"{regret[len(regret) // 2]:.1%}",
        str(sum(choice.picked.row.out_of_memory for choice in found)),
    ]


def seen_later(later: accuracy.Later) -> list[str]:
    """The section of one later table: before and after what it taught."""
    rows, _, total = accuracy.load(later.table)
    with later.before.open(encoding="utf-8", newline="") as file:
        old = {row["id"]: row for row in csv.DictReader(file)}
    sources = len({row.row.source for row in rows})
    own = [row for row in rows if row.row.data_parallel]
    title, text = SEEN_LATER[later.table.stem]
    return [
        f"## {title}\n",
        text.format(total=total, sources=sources, judged=len(rows)),
        before_and_after(own, old) + "\n",
        "What fits, after, at the cuts of 0.9 and 1.1:\n",
        accuracy.markdown(accuracy.CONFUSION_HEAD, accuracy.confusions(rows)) + "\n",
        f"Regret: {accuracy.regrets(rows)}.\n",
        "By source, after:\n",
        accuracy.markdown(accuracy.HEAD, accuracy.by_source(rows, lambda row: row.row.source)) + "\n",
        "Its worst rows, memory:\n",
        table_of_worst(own, accuracy.memory, in_gibibytes) + "\n",
        "Its worst rows, speed:\n",
        table_of_worst(rows, accuracy.speed, in_tokens) + "\n",
    ]


def before_and_after(rows: list[Judged], old: dict[str, dict[str, str]]) -> str:
    """Data-parallel rows: what the planner said on the day when they were gathered, and what it says."""
    lines: list[list[str]] = []
    for what, bound in (("memory", 0.12), ("speed", 0.25)):
        then, now = [], []
        for row in rows:
            measured = row.row.memory_bytes if what == "memory" else row.row.tokens_per_second
            error = row.memory_error if what == "memory" else row.speed_error
            if measured is None or error is None:
                continue
            now.append(error)
            if planned := old.get(row.row.row["id"], {}).get("memory_gib" if what == "memory" else SPEED):
                then.append(float(planned) * (2**30 if what == "memory" else 1) / measured - 1)
        for name, values in (("before", then), ("after", now)):
            if values:
                found = Errors(tuple(values))
                share = f"{found.within(bound):.0%} within {bound:.0%}"
                lines.append([f"{what}, {name}", *accuracy.of(found), share])
    return accuracy.markdown(["data parallel", "rows", "median", "90th", "bias", "rows within"], lines)


def crossed(held: list[tuple[str, Errors]], bound: float) -> str:
    lines = [[family, *accuracy.of(found), f"{found.within(bound):.0%}"] for family, found in held]
    every = Errors(tuple(value for _, found in held for value in found.values))
    lines.append(["**all**", *accuracy.of(every), f"{every.within(bound):.0%}"])
    return accuracy.markdown(["left out", "rows", "median", "90th", "bias", f"within {100 * bound:.0f} %"], lines)


def in_gibibytes(row: Judged) -> tuple[str, str]:
    return gibibytes(row.row.memory_bytes) + " GiB", gibibytes(row.memory_bytes)


def in_tokens(row: Judged) -> tuple[str, str]:
    return f"{row.row.tokens_per_second:.0f}", f"{row.tokens_per_second:.0f}"


def table_of_worst(
    rows: list[Judged], kind: Callable[[Judged], float | None], sizes: Callable[[Judged], tuple[str, str]]
) -> str:
    with accuracy.EXPLAINED.open(encoding="utf-8", newline="") as file:
        why = {row["id"]: row["why"] for row in csv.DictReader(file)}
    lines: list[list[str]] = []
    for row in accuracy.worst(rows, kind):
        raw, request = row.row.row, row.row.request
        what = f"{raw['model']}, {request.degrees.devices} x {raw['gpu_key']}, {request.engine} {request.stage}"
        reason = why.get(raw["id"]) or (cause(row) if kind is accuracy.speed else of_memory(row))
        lines.append([raw["id"], what, *sizes(row), f"{kind(row):+.0%}", reason])
    return accuracy.markdown(["row", "setting", "measured", "planned", "error", "why"], lines)


def of_memory(row: Judged) -> str:
    """What the estimate leaves out that a row of this kind has."""
    request = row.row.request
    if row.row.row.get("family") == "bigscience":
        return "the device's whole use on the fuller of the first and last node; layers of the stages are not stated"
    if request.degrees.pipeline > 1:
        return "the pipeline's schedule and micro batch are not stated"
    if request.degrees.tensor > 1:
        return "how embedding, head and loss are split is not stated"
    return ""


def cause(row: Judged) -> str:
    """What the model leaves out that a row of this kind has."""
    request, raw = row.row.request, row.row.row
    if request.shape.experts:
        return "experts: dispatch, imbalance and grouped products are counted as if they were perfect"
    if not request.shape.gated and request.degrees.pipeline > 1 and raw.get("family") == "bigscience":
        return "tuning steps of one cluster in 2021: single iterations, settings found slow and given up"
    if raw.get("family") == "internevo" and request.degrees.devices > 128:
        return "ZeRO-1 over all devices against groups of eight: the table does not say which of the two"
    if request.precision == "fp8" and row.row.family == "torchtitan":
        return "fp8 by rows is slower than by tensors; both count the same here"
    if request.shape.adapter:
        return "an adapter's small products"
    if request.machine.devices == 1:
        return "one device; power limit and clocks of the card are not stated"
    return ""


def scatter(rows: list[Judged], path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(11, 5))
    panels = [
        (axes[0], "peak memory, GiB", lambda r: (r.row.memory_bytes or 0) / 2**30, lambda r: r.memory_bytes / 2**30),
        (axes[1], "tokens/s of one device", lambda r: r.row.tokens_per_second or 0, lambda r: r.tokens_per_second),
    ]
    for panel, label, measured, planned in panels:
        for name, members in accuracy.domains(rows)[:2]:
            points = [(measured(row), planned(row)) for row in members if measured(row)]
            panel.scatter(*zip(*points, strict=True), s=14, alpha=0.6, label=name)
        low, high = panel.get_xlim()
        line = [max(low, 1e-3) if low > 0 else 5, high]
        panel.plot(line, line, color="black", linewidth=0.8)
        panel.set(xlabel=f"measured {label}", ylabel="planned", xscale="log", yscale="log")
        panel.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def cumulative(rows: list[Judged], held: list[tuple[str, Errors]], path: Path) -> None:
    figure, axis = plt.subplots(figsize=(8, 4.5))
    own = [row for row in rows if row.row.data_parallel]
    curves = [("memory, data parallel", errors(own, accuracy.memory))]
    curves += [(f"speed, {name}", errors(members, accuracy.speed)) for name, members in accuracy.domains(rows)[:2]]
    curves.append(("speed, family left out of the fit", Errors(tuple(v for _, f in held for v in f.values))))
    for name, found in curves:
        if found is not None:
            ordered = sorted(abs(value) for value in found.values)
            axis.plot(ordered, [(n + 1) / len(ordered) for n in range(len(ordered))], label=name)
    axis.set(xlabel="error, at most", ylabel="share of rows", xlim=(0, 0.6), ylim=(0, 1))
    axis.legend()
    axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
