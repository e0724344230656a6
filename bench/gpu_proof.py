"""What Headway does on this machine's GPUs, shown by real runs in at most eight minutes: `make gpu-proof`.

Without a GPU the same runs are made in a reduced form, on two CPU processes, so that the script is known to work.
Prints a table to paste; ends with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from proof.lab import Lab, OutOfTime, RunFailed
from proof.rows import ROWS, NotHere, NotSo, Row
from proof.scale import scale_for

from headway.facts.cluster import probe_cluster
from headway.facts.schema import ClusterFacts

MINUTES = 8.0


@dataclass(frozen=True)
class Result:
    feature: str
    state: str  # passed | failed | not here
    words: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="what does not fit is left out, and says so")
    parser.add_argument("--keep", type=Path, help="a folder to keep the runs in")
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto")
    options = parser.parse_args()
    began = time.monotonic()
    cluster = probe_cluster(options.device)
    scale = scale_for(cluster)
    with tempfile.TemporaryDirectory(prefix="headway-proof-") as folder:
        work = options.keep.resolve() if options.keep else Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        lab = Lab(scale, work, 60 * options.minutes)
        results = [_shown(row, lab) for row in ROWS]
    print(_table(results, cluster, scale.processes, time.monotonic() - began))
    return int(any(result.state == "failed" for result in results))


def _shown(row: Row, lab: Lab) -> Result:
    print(f"{row.feature} ...", file=sys.stderr, flush=True)
    try:
        return Result(row.feature, "passed", row.show(lab))
    except NotHere as reason:
        return Result(row.feature, "not here", str(reason))
    except OutOfTime as reason:
        return Result(row.feature, "not here", f"out of time: {reason}")
    except (NotSo, RunFailed) as reason:
        return Result(row.feature, "failed", str(reason))
    except Exception as error:  # a row that breaks must not hide the others
        return Result(row.feature, "failed", f"{type(error).__name__}: {error}")


def _table(results: list[Result], cluster: ClusterFacts, processes: int, seconds: float) -> str:
    versions = ", ".join(
        f"{name} {metadata.version(name)}" for name in ("headway", "torch", "deepspeed", "transformers")
    )
    device = (
        f"{processes} x {cluster.device_name}" if cluster.device == "cuda" else "CPU, reduced: 2 processes, tiny, fp32"
    )
    head = [
        "",
        f"Headway's proof on {device} ({time.strftime('%Y-%m-%d')}, {seconds:.0f} s)",
        f"{versions}",
        "",
        "| feature | result | figure or reason |",
        "| --- | --- | --- |",
    ]
    rows = [f"| {r.feature} | {r.state} | {r.words.replace('|', '/').replace(chr(10), ' ')} |" for r in results]
    return "\n".join(head + rows)


if __name__ == "__main__":
    sys.exit(main())
