"""The benchmark's arithmetic, and the GPU proof's rows on machines that are not here: planned, with curves made up."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import report  # noqa: E402
from children import CONTENDERS, Record, Step  # noqa: E402
from proof.lab import OutOfTime, run_file  # noqa: E402
from proof.rows import ROWS, NotHere, NotSo, kill_and_resume, qlora  # noqa: E402
from proof.scale import STEPS, Scale, scale_for  # noqa: E402

from fakes.plans import A100_8, GIB, LAPTOP, V100, plan_of  # noqa: E402
from headway.facts.schema import ClusterFacts  # noqa: E402
from headway.plan.memory import used_bytes  # noqa: E402
from headway.plan.schema import Plan  # noqa: E402

L4 = A100_8.model_copy(update={"device_name": "NVIDIA L4", "devices_per_host": 1, "device_memory_bytes": 22 * GIB})
H200 = A100_8.model_copy(update={"device_name": "NVIDIA H200", "devices_per_host": 1, "device_memory_bytes": 139 * GIB})


def run_row(round_number: int, contender: str, tokens: float, first_step: float = 10.0) -> dict[str, Any]:
    return {
        "round": round_number,
        "contender": contender,
        "tokens_per_second": tokens,
        "targets_per_second": tokens / 2,
        "marks": {"engine": first_step - 1, "first step": first_step},
        "overhead": {"overhead_seconds": 0.004, "data_wait_seconds": 0.001},
        "flops_per_token": 5e7 if contender.startswith("headway") else None,
        "loss": 5.0,
    }


@pytest.fixture
def result() -> dict[str, Any]:
    speeds = {"plain-ddp": (100.0, 50.0), "headway-ddp": (110.0, 52.0), "trl-bfd": (80.0, 40.0)}
    speeds |= {"trl-wrapped": (90.0, 30.0), "headway-ragged": (99.0, 80.0)}
    return {
        "date": "2030-01-02",
        "machine": {
            "cpu": "a CPU",
            "cores": 2,
            "memory_gib": 24,
            "system": "Linux",
            "python": "3.11",
            "load_average": 0,
        },
        "versions": {"headway": "1", "torch": "2"},
        "settings": {"rounds": 2, "steps": 20, "skip": 4, "processes": 2},
        "data": {"documents": 9, "median_tokens": 70, "mean_tokens": 126, "over_sequence_share": 0.1},
        "skipped": {"hf-zero2": "not installed: accelerate"},
        "runs": [run_row(n + 1, name, both[n]) for name, both in speeds.items() for n in range(2)],
        "peaks": [1.2e11, 1.0e11, 1.3e11],
        "tokenising": [{"library": 2.0, "script": 1.8, "headway": 1.9}],
        "help": [{"headway --help": 0.05, "python -c pass": 0.02}],
        "failures": [],
        "notes": [],
    }


def test_ratios_are_taken_within_a_round_and_against_the_best(result: dict[str, Any]) -> None:
    by_title = {comparison.title: report.ratios(result, comparison) for comparison in report.COMPARISONS}
    assert by_title["tokens/s: Headway ddp / plain DDP loop"] == pytest.approx([1.10, 1.04])
    packed = next(ratios for title, ratios in by_title.items() if "best packed peer" in title)
    assert packed == pytest.approx([99 / 90, 80 / 40])
    assert by_title["tokens/s: Headway zero-2 / HF Trainer + ZeRO-2"] == []


def test_the_page_says_what_was_measured_and_what_was_not(result: dict[str, Any]) -> None:
    page = report.markdown(result)
    assert "| tokens/s: Headway ddp / plain DDP loop | 1.070 | 1.040 | 1.100 | at least 0.98 |" in page
    assert "| tokens/s: Headway zero-2 / HF Trainer + ZeRO-2 | not run |" in page
    assert "hf-zero2 (not installed: accelerate)" in page
    assert "130 GFLOP/s (the best round; median 120, least 100)" in page


def test_results_are_put_between_the_marks(result: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.put_into(page, report.markdown(result))
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "### Ratios within a round" in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="lacks the marks"):
        report.put_into(page, "# x")


def test_the_documentation_has_the_marks() -> None:
    text = (BENCH.parent / "docs" / "bench.md").read_text(encoding="utf-8")
    assert report.BEGIN in text
    assert report.END in text


def test_a_rate_leaves_out_the_first_steps() -> None:
    steps = [Step(time, 100, 50, 1.0) for time in (10.0, 20.0, 21.0, 22.0)]
    record = Record("one", steps, {})
    assert record.rate(2, "tokens") == 100.0
    assert record.rate(2, "targets") == 50.0


def test_every_contender_has_its_script_and_comparison() -> None:
    for contender in CONTENDERS:
        assert not contender.script or (BENCH / "contenders" / contender.script).is_file()
    names = {name for comparison in report.COMPARISONS for name in (comparison.ours, *comparison.theirs)}
    assert names == {contender.name for contender in CONTENDERS}


@dataclass
class PlannedRun:
    """A run as the rows read it: a real plan, and a curve that falls."""

    plan: Plan
    shift: float = 0.0

    @property
    def losses(self) -> dict[int, float]:
        return {step: 7 - step / 10 + self.shift for step in range(1, STEPS + 1)}

    @property
    def metrics(self) -> dict[int, dict[str, Any]]:
        peak = used_bytes(self.plan.memory, self.plan.cluster)
        line = {"step_seconds": 0.1, "mfu": 0.4, "tokens_per_second": 1e5, "memory_peak_bytes": peak, "applied": True}
        return {step: {**line, "loss": loss} for step, loss in self.losses.items()}

    def event(self, name: str) -> dict[str, Any]:
        return {"verified": True, "max_difference": 0.0} if name == "export" else {}


@dataclass
class PlannedLab:
    """Plans each run on a machine that is not here, in place of making it. shifted: run whose curve is off."""

    cluster: ClusterFacts
    scale: Scale
    shifted: str = ""

    def run(self, name: str, **changes: Any) -> Any:
        plan = plan_of(run_file(self.scale, name, changes), self.cluster)
        return PlannedRun(plan, 0.5 if name == self.shifted else 0.0)


@pytest.mark.parametrize("cluster", [H200, A100_8, L4, V100, LAPTOP], ids=lambda cluster: cluster.device_name)
def test_every_run_of_the_proof_has_a_plan_that_fits(cluster: ClusterFacts) -> None:
    lab = PlannedLab(cluster, scale_for(cluster))
    absent: set[str] = set()
    for row in ROWS:
        if row.show in (kill_and_resume, qlora):  # they need the files of a run that was made
            continue
        try:
            assert row.show(lab)  # type: ignore[arg-type]
        except NotHere:
            absent.add(row.feature)
    expected: set[str] = set()
    if cluster is LAPTOP:
        expected = {"bf16", "flash or flex attention", "fp16", "activation checkpointing"}
    elif cluster is V100:
        expected = {"bf16"}
    assert absent == expected


def test_a_curve_that_is_off_is_found() -> None:
    lab = PlannedLab(H200, scale_for(H200), shifted="zero-3")
    rows = {row.feature: row.show for row in ROWS}
    with pytest.raises(NotSo, match="differ"):
        rows["ZeRO-3"](lab)  # type: ignore[arg-type]


def test_a_lab_without_time_starts_nothing(tmp_path: Path) -> None:
    from proof.lab import Lab

    lab = Lab(scale_for(LAPTOP), tmp_path, 0.0)
    for _ in range(2):  # what did not fit is not tried again
        with pytest.raises(OutOfTime):
            lab.run("plain", strategy="ddp")
