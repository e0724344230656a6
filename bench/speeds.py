"""Two small races beside the training: tokenising, and how long `headway --help` takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from children import HEADWAY, SCRIPTS, Failed, environment


def tokenising(data: Path, folder: Path) -> dict[str, float]:
    """Million bytes of text a second: Headway's whole build of a token store, and `tokenizers` on all cores.

    library: encode_batch_fast alone. script: with reading the file and writing the ids.
    """
    folder.mkdir(parents=True)
    both = environment() | {"TOKENIZERS_PARALLELISM": "true"}
    library = _last_line([sys.executable, str(SCRIPTS / "tokenizers_batch.py"), str(data), str(folder)], both)
    own = _last_line([sys.executable, str(SCRIPTS / "headway_store.py"), str(data), str(folder)], environment())
    shutil.rmtree(folder)
    if own["tokens"] != library["tokens"] + 2 * library["documents"]:
        raise Failed(f"the two do not agree on the tokens: {own['tokens']} and {library['tokens']}")
    return {
        "library": library["bytes"] / library["encode_seconds"] / 1e6,
        "script": library["bytes"] / library["seconds"] / 1e6,
        "headway": library["bytes"] / own["seconds"] / 1e6,
    }


def _last_line(command: list[str], variables: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=600, check=False)
    if done.returncode:
        raise Failed(f"{command[1]}: {done.stderr[-800:]}")
    return json.loads(done.stdout.splitlines()[-1])


def help_seconds(repeats: int = 5) -> dict[str, float]:
    """Wall seconds of `headway --help`, and of a Python that does nothing; medians."""

    def median(command: list[str]) -> float:
        taken: list[float] = []
        for _ in range(repeats):
            began = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            taken.append(time.perf_counter() - began)
        return sorted(taken)[repeats // 2]

    return {
        "headway --help": median([str(HEADWAY), "--help"]),
        "python -c pass": median([sys.executable, "-c", "pass"]),
    }
