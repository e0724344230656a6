"""Failures made on this machine, each in its own words: `python -m fakes.real_failures FOLDER` writes FOLDER/KIND.log.

One process for all, because it has torch to import; collectives run in two processes forked from it.
"""

from __future__ import annotations

import io
import os
import pickle
import resource
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def disk_full(folder: Path) -> None:
    with open("/dev/full", "wb") as file:  # the kernel's own full disk
        file.write(b"0" * 100_000)
        file.flush()


def disk_full_while_saving(folder: Path) -> None:
    torch.save({"weight": torch.zeros(1 << 20)}, "/dev/full")


def torn_checkpoint(folder: Path) -> None:
    path = folder / "torn.pt"
    torch.save({"weight": torch.zeros(1000)}, path)
    os.truncate(path, path.stat().st_size // 2)
    torch.load(path)


def torn_safetensors(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "torn.safetensors"
    save_file({"weight": torch.zeros(1000)}, path)
    os.truncate(path, path.stat().st_size // 2)
    load_file(path)


class Own:
    """No tensor: refused by torch.load."""


def unsafe_pickle(folder: Path) -> None:
    torch.save({"own": Own()}, folder / "own.pt")
    torch.load(folder / "own.pt")


def unpicklable(folder: Path) -> None:
    pickle.dump(threading.Lock(), io.BytesIO())


def size_mismatch(folder: Path) -> None:
    torch.nn.Linear(4, 8).load_state_dict(torch.nn.Linear(4, 6).state_dict())


def token_out_of_range(folder: Path) -> None:
    torch.nn.Embedding(300, 4)(torch.tensor([302]))


def label_out_of_range(folder: Path) -> None:
    torch.nn.functional.cross_entropy(torch.zeros(1, 3), torch.tensor([7]))


def missing_module(folder: Path) -> None:
    import not_installed_here  # pyright: ignore[reportMissingImports]  # noqa: F401


def address_in_use(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        dist.TCPStore("127.0.0.1", taken.getsockname()[1], is_master=True, timeout=timedelta(seconds=2))


def refused(folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=1))


def host_memory(folder: Path) -> None:
    torch.empty(1 << 50, dtype=torch.uint8)


def python_memory(folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, hard))
    try:
        bytearray(64 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def kernel_build(folder: Path) -> None:
    from torch.utils import cpp_extension

    path, os.environ["PATH"] = os.environ["PATH"], ""
    try:
        cpp_extension.verify_ninja_availability()
    finally:
        os.environ["PATH"] = path


def _two(folder: Path, name: str, each: Callable[[int], None]) -> None:
    """Two forked ranks over gloo, each with its log."""
    pids: list[int] = []
    for rank in (0, 1):
        pid = os.fork()
        if pid == 0:
            log = os.open(folder / f"{name}-rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            try:
                store = dist.FileStore(str(folder / f"{name}.store"), 2)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=1.5))
                each(rank)
                print("rank done", flush=True)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


def collective_of_rank_0(rank: int) -> None:
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    else:
        import time

        time.sleep(3)


def rank_1_ends_first(rank: int) -> None:
    dist.barrier()  # they have met
    if rank == 1:
        raise ValueError("row 17 of corpus.txt has no text")
    dist.all_reduce(torch.ones(4))


KINDS = (
    disk_full,
    disk_full_while_saving,
    torn_checkpoint,
    torn_safetensors,
    unsafe_pickle,
    unpicklable,
    size_mismatch,
    token_out_of_range,
    label_out_of_range,
    missing_module,
    address_in_use,
    refused,
    host_memory,
    python_memory,
    kernel_build,
)


def main(folder: Path) -> None:
    _two(folder, "timeout", collective_of_rank_0)
    _two(folder, "echo", rank_1_ends_first)
    for kind in KINDS:
        with open(folder / f"{kind.__name__}.log", "w", encoding="utf-8") as log:
            try:
                kind(folder)
                log.write("it did not fail\n")
            except BaseException:
                traceback.print_exc(file=log)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
