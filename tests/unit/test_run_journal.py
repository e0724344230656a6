"""Journals lose no whole line, survive torn ones, and tell what a resume superseded."""

from __future__ import annotations

import errno
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headway.run.journal import Journal, follow, latest, read


def test_lines_come_back_in_order(tmp_path: Path) -> None:
    with Journal(tmp_path / "m.jsonl") as journal:
        journal.append({"step": 1, "loss": 0.1, "mfu": None, "applied": True})
        journal.event("checkpoint", step=1)
    first, second = read(tmp_path / "m.jsonl")
    assert first == {"step": 1, "loss": 0.1, "mfu": None, "applied": True}
    assert (second["event"], second["step"]) == ("checkpoint", 1)
    assert second["time"] > 1.7e9


def test_an_absent_journal_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "absent.jsonl") == []
    assert follow(tmp_path / "absent.jsonl").poll() == []


def test_numbers_that_are_not_finite_are_legal_json_and_come_back(tmp_path: Path) -> None:
    with Journal(tmp_path / "m.jsonl") as journal:
        journal.append({"loss": math.nan, "grad_norm": math.inf, "low": -math.inf, "nested": {"list": [math.nan]}})
    text = (tmp_path / "m.jsonl").read_text()
    assert text == '{"loss":"NaN","grad_norm":"Infinity","low":"-Infinity","nested":{"list":["NaN"]}}\n'
    line = read(tmp_path / "m.jsonl")[0]
    assert math.isnan(line["loss"])
    assert (line["grad_norm"], line["low"]) == (math.inf, -math.inf)


def test_writers_do_not_mix_their_lines(tmp_path: Path) -> None:
    journals = [Journal(tmp_path / "m.jsonl") for _ in range(4)]

    def write(number: int) -> None:
        for step in range(200):
            journals[number].append({"writer": number, "step": step, "padding": "x" * 300})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    lines = read(tmp_path / "m.jsonl")
    for number in range(4):
        assert [line["step"] for line in lines if line["writer"] == number] == list(range(200))


def test_a_follower_gets_each_line_once_and_only_whole_ones(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    follower = follow(path)
    with path.open("a") as file:
        file.write('{"step": 1}\n{"step": 2')
        file.flush()
        assert follower.poll() == [{"step": 1}]
        assert follower.poll() == []
        file.write("}\n")
        file.flush()
        assert follower.poll() == [{"step": 2}]


def test_a_follower_starts_over_when_the_file_was_replaced_by_a_shorter_one(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    follower = follow(path)
    follower.poll()
    path.write_text('{"step": 9}\n')
    assert follower.poll() == [{"step": 9}]


def test_a_line_that_a_full_disk_cut_does_not_take_the_next_one_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "m.jsonl")
    really_write = os.write
    room = [5, 0]

    def write(descriptor: int, content: bytes) -> int:
        if not room:
            return really_write(descriptor, content)
        if size := room.pop(0):
            return really_write(descriptor, content[:size])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        journal.append({"step": 1})
    journal.append({"step": 2})
    assert read(tmp_path / "m.jsonl") == [{"step": 2}]


def steps(lines: list[dict[str, int]]) -> list[tuple[int, int]]:
    return [(line["step"], line["attempt"]) for line in lines]


def attempt(number: int, *numbers: int) -> list[dict[str, int]]:
    return [{"step": step, "attempt": number} for step in numbers]


@pytest.mark.parametrize(
    ("lines", "standing"),
    [
        (attempt(1, 1, 2, 3), [(1, 1), (2, 1), (3, 1)]),
        (attempt(1, 1, 2, 3, 4) + attempt(2, 3), [(1, 1), (2, 1), (3, 2)]),  # 4 was of an attempt that is gone
        (attempt(1, 1, 2, 3, 4) + attempt(2, 3, 4) + attempt(3, 2), [(1, 1), (2, 3)]),
        (attempt(1, 10, 20, 30) + attempt(2, 25), [(10, 1), (20, 1), (25, 2)]),
        (attempt(1, 5) + attempt(2, 5), [(5, 2)]),
    ],
)
def test_a_resumed_run_supersedes_what_came_after_its_checkpoint(
    lines: list[dict[str, int]], standing: list[tuple[int, int]]
) -> None:
    assert steps(latest(lines)) == standing


def test_lines_without_a_step_stand(tmp_path: Path) -> None:
    with Journal(tmp_path / "m.jsonl") as journal:
        for line in ({"step": 2}, {"note": 1}, {"step": 1}):
            journal.append(line)
    assert read(tmp_path / "m.jsonl", latest_per_step=True) == [{"note": 1}, {"step": 1}]
    assert len(read(tmp_path / "m.jsonl")) == 3
