"""Runs a function in a group of ranks, forked from a server that has everything heavy imported."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_SECONDS = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(function: Callable[..., Any], world: int, folder: Path, *arguments: Any) -> list[Any]:
    """`function(*arguments)` on every rank of a new group; its results in rank order.

    Results travel as pickles in `folder`. Raises AssertionError with the ranks' own tracebacks.
    """
    _CONTEXT.set_forkserver_preload(["headway.train.preload"])  # the launcher's tests ask for another
    port = free_port()
    files = [folder / f"result-{port}-{rank}.pickle" for rank in range(world)]
    ranks = [
        _CONTEXT.Process(target=_rank, args=(function, rank, world, port, files[rank], arguments))
        for rank in range(world)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(_SECONDS)
        if rank.is_alive():
            rank.kill()
            rank.join()
    outcomes = [pickle.loads(file.read_bytes()) if file.exists() else (False, _last_seen(file)) for file in files]
    failures = [f"rank {rank}: {text}" for rank, (good, text) in enumerate(outcomes) if not good]
    assert not failures, "\n".join(failures)
    return [result for _, result in outcomes]


def _last_seen(file: Path) -> str:
    """Where a rank stood that gave no result."""
    stacks = file.with_suffix(".stacks")
    return "no result\n" + (stacks.read_text() if stacks.exists() else "and it never started")


def _rank(
    function: Callable[..., Any], rank: int, world: int, port: int, file: Path, arguments: tuple[Any, ...]
) -> None:
    faulthandler.dump_traceback_later(_SECONDS - 10, file=file.with_suffix(".stacks").open("w"))
    import torch

    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    try:
        outcome: tuple[bool, Any] = (True, function(*arguments))
    except BaseException:
        outcome = (False, traceback.format_exc())
    file.write_bytes(pickle.dumps(outcome))
    os._exit(0)
