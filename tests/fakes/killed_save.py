"""Saves a checkpoint again and again, each time killed by SIGKILL one operation later.

usage: python -m fakes.killed_save FOLDER

For n = 0, 1, ... a copy of FOLDER/start becomes FOLDER/killed-n, a forked process saves step 2 there with keep=1 and
kills itself just before its n-th operation on the disk. Ends with the first n that the save survives.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch

from fakes.checkpoints import save
from headway.checkpoint import parts
from headway.checkpoint.store import LocalStore


def main(folder: Path) -> None:
    save(LocalStore(folder / "start"), 1, part_bytes=2048)
    survived = False
    number = 0
    while not survived:
        copy = folder / f"killed-{number}"
        shutil.copytree(folder / "start", copy)
        child = os.fork()
        if child == 0:
            _save_and_die(copy, number)
        _, status = os.waitpid(child, 0)
        survived = not os.WIFSIGNALED(status)
        if survived and status:
            raise SystemExit(f"the save failed by itself at operation {number}")
        number += 1
    print(number - 1)


def _save_and_die(folder: Path, number: int) -> None:
    remaining = [number]

    def deadly(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            if not remaining[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            remaining[0] -= 1
            return operation(*arguments, **named)

        return run

    for name in ("replace", "fsync", "unlink", "rmdir", "mkdir"):
        setattr(os, name, deadly(getattr(os, name)))
    parts.save_file = deadly(safetensors.torch.save_file)
    save(LocalStore(folder), 2, part_bytes=2048, keep=1)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
