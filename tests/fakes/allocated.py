"""The most that torch's CPU allocator held at one time while it was profiled."""

from __future__ import annotations

from torch.profiler import profile


def most_bytes(profiled: profile) -> int:
    """Beyond what stood before: a block that is freed without having been taken in the meantime does not count."""
    results = profiled.profiler.kineto_results if profiled.profiler else None
    assert results is not None
    held, most = 0, 0
    for _, size in sorted((e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"):
        held += size
        most = max(most, held)
    return most
