"""A short all-reduce, run on each host as text: its latency and its bandwidth, in JSON, from rank 0."""

import json
import statistics
import sys
import time
from datetime import timedelta


def main():  # type: ignore[no-untyped-def]
    import torch
    import torch.distributed as dist

    def timed(tensor, times):  # type: ignore[no-untyped-def]
        """Median seconds of one all-reduce."""
        seconds = []
        for _ in range(times):
            start = time.perf_counter()
            dist.all_reduce(tensor)
            if tensor.is_cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)

    cuda = torch.cuda.is_available() and dist.is_nccl_available()
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=20))
    device = "cuda" if cuda else "cpu"
    megabytes = 256 if cuda else 16
    small, large = torch.ones(1, device=device), torch.ones(megabytes * 250_000, device=device)
    timed(small, 3)
    latency, seconds = timed(small, 20), timed(large, 3)
    # Each rank sends and receives 2 (n - 1) / n of the data: the bus bandwidth of NCCL's own tests.
    moved = large.numel() * 4 * 2 * (dist.get_world_size() - 1) / dist.get_world_size()
    if dist.get_rank() == 0:
        line = {"latency_ms": latency * 1000, "gigabit_per_second": moved / seconds * 8 / 1e9, "backend": device}
        sys.stdout.write("@" + json.dumps(line) + "\n")
        sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
