"""The batch solver over a grid, and what it says of what cannot be."""

from __future__ import annotations

import itertools
import re

import pytest

from headway.errors import PlanError
from headway.plan.batch import BatchRequest, accumulation_for, global_sequences, nearest_legal, solve_batch
from headway.units import Amount


def solve(total: int, ranks: int, **asked: object):
    return solve_batch(BatchRequest(total, ranks, **asked)).plan  # pyright: ignore[reportArgumentType]


def is_legal(total: int, ranks: int, micro: int, accumulation: int) -> bool:
    """Independent of the solver: every sequence has a place, and no micro step is empty on all ranks."""
    per_step = micro * ranks
    return per_step * accumulation >= total and per_step * (accumulation - 1) < total


GRID = list(itertools.product([1, 2, 3, 7, 8, 16, 31, 61, 100, 244, 1000], [1, 2, 3, 4, 8, 64], [1, 2, 5, 16, 1000]))


@pytest.mark.parametrize("powers_of_two", [False, True])
def test_automatic_batches_are_legal_and_fit(powers_of_two: bool) -> None:
    for total, ranks, largest in GRID:
        plan = solve(total, ranks, largest_micro_batch=largest, powers_of_two=powers_of_two)
        assert is_legal(total, ranks, plan.micro_batch, plan.accumulation), plan
        assert plan.micro_batch <= largest
        assert plan.micro_batch <= -(-total // ranks)  # never more than a rank's share
        assert (plan.global_sequences, plan.data_parallel_size) == (total, ranks)


def test_no_filler_where_a_large_enough_divisor_fits() -> None:
    for total, ranks, largest in GRID:
        plan = solve(total, ranks, largest_micro_batch=largest)
        cap = min(largest, -(-total // ranks))
        exact = [m for m in range(cap // 2 + 1, cap + 1) if total % (m * ranks) == 0]
        if exact:
            assert plan.slots == total
            assert plan.micro_batch == max(exact)


def test_powers_of_two_win_among_equals_on_gpus() -> None:
    assert solve(96, 1, largest_micro_batch=12, powers_of_two=True).micro_batch == 8
    assert solve(96, 1, largest_micro_batch=12).micro_batch == 12
    assert solve(24, 8, largest_micro_batch=64, powers_of_two=True).micro_batch == 3  # all of a rank's share


def test_a_fixed_micro_batch_gives_the_fewest_steps_that_cover() -> None:
    for total, ranks, micro in GRID:
        plan = solve(total, ranks, micro_batch=micro)
        assert plan.micro_batch == micro
        assert is_legal(total, ranks, micro, plan.accumulation)


def test_a_fixed_accumulation_is_kept_or_refused() -> None:
    for total, ranks, steps in GRID:
        possible = any(is_legal(total, ranks, m, steps) for m in range(1, total + 1))
        if possible:
            assert solve(total, ranks, accumulation=steps).accumulation == steps
        else:
            with pytest.raises(PlanError, match="without an empty one"):
                solve(total, ranks, accumulation=steps)


@pytest.mark.parametrize(("total", "ranks", "pair"), [(8, 1, (8, 1)), (8, 2, (4, 1)), (8, 2, (2, 2)), (8, 3, (3, 1))])
def test_one_global_batch_on_several_machines(total: int, ranks: int, pair: tuple[int, int]) -> None:
    plan = solve(total, ranks, micro_batch=pair[0], accumulation=pair[1])
    assert (plan.micro_batch, plan.accumulation) == pair
    assert plan.slots - total == pair[0] * pair[1] * ranks - total


def test_an_impossible_triple_names_the_nearest_legal_ones() -> None:
    with pytest.raises(PlanError) as caught:
        solve(48, 2, micro_batch=4, accumulation=3)
    text = str(caught.value)
    assert "micro_batch 4 x accumulation 3 x 2 ranks = 24 does not cover a global batch of 48 sequences" in text
    assert "train.micro_batch=8 train.accumulation=3  (8 x 3 x 2 = 48)" in text
    assert "train.micro_batch=4 train.accumulation=6  (4 x 6 x 2 = 48)" in text
    assert "train.global_batch='24 sequences'" in text


def test_an_empty_micro_step_is_impossible_too() -> None:
    with pytest.raises(PlanError, match="leaves a whole micro batch empty on every rank"):
        solve(48, 2, micro_batch=8, accumulation=4)


def test_every_suggestion_is_legal_and_they_come_nearest_first() -> None:
    for total, ranks, micro in GRID[::7]:
        request = BatchRequest(total, ranks, micro_batch=micro, accumulation=5)
        legal = is_legal(total, ranks, micro, 5)
        suggestions = nearest_legal(request)
        assert 1 <= len(suggestions) <= 4
        for text in suggestions:
            pair = re.match(r"train.micro_batch=(\d+) train.accumulation=(\d+)", text)
            if pair:
                assert is_legal(total, ranks, int(pair[1]), int(pair[2]))
            else:
                assert text.startswith(f"train.global_batch='{micro * 5 * ranks} sequences'")
        if legal:
            assert suggestions[0].startswith(f"train.micro_batch={micro} train.accumulation=5")


@pytest.mark.parametrize(
    ("amount", "sequence", "expected"),
    [
        (Amount(500_000, "tokens"), 2048, 244),  # 244.14
        (Amount(2**19, "tokens"), 2048, 256),
        (Amount(3072, "tokens"), 2048, 2),  # 1.5: half goes up
        (Amount(100, "tokens"), 2048, 1),
        (Amount(16, "sequences"), 2048, 16),
    ],
)
def test_tokens_become_the_nearest_whole_number_of_sequences(amount: Amount, sequence: int, expected: int) -> None:
    count, reason = global_sequences(amount, sequence)
    assert count == expected
    if amount.unit == "tokens" and count * sequence != amount.value:
        assert f"({count * sequence} tokens" in reason


def test_half_a_sequence_is_refused() -> None:
    with pytest.raises(PlanError, match="whole number of sequences"):
        global_sequences(Amount(2.5, "sequences"), 128)


def test_accumulation_covers() -> None:
    assert accumulation_for(100, 4, 6) == 5
