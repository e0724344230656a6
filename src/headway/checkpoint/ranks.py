"""How ranks act together on a checkpoint without knowing about torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from headway.errors import CheckpointError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Ranks:
    """This rank, and a way to meet the others.

    exchange(value) returns every rank's value in rank order, on every rank (torch.distributed.all_gather_object); all
    ranks call it equally often. Values are strings, numbers and plain containers.
    """

    rank: int
    world: int
    exchange: Callable[[object], Sequence[object]]


ALONE = Ranks(0, 1, lambda value: [value])


def together(ranks: Ranks, what: str, action: Callable[[], Result]) -> list[Result]:
    """Run `action` on this rank and return all ranks' results; if any rank failed, all raise the same error.

    No rank waits for one that failed: a failure is a value that is exchanged like a result.

    Raises:
        CheckpointError: naming each rank that failed and its own words.
    """
    failure, result = "", None
    cause: Exception | None = None
    try:
        result = action()
    except CheckpointError as error:
        failure, cause = str(error) or "CheckpointError", error
    except Exception as error:
        failure, cause = f"{type(error).__name__}: {error}", error
    outcomes = cast("Sequence[tuple[str, Result]]", ranks.exchange((failure, result)))
    failures = [(rank, text) for rank, (text, _) in enumerate(outcomes) if text]
    if failures:
        lines = [text if ranks.world == 1 else f"rank {rank}: {text}" for rank, text in failures]
        raise CheckpointError(f"{what} failed\n" + "\n".join(lines)) from cause
    return [result for _, result in outcomes]
