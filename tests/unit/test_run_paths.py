"""Runs are named without clashes and found by whatever a person remembers of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from headway.errors import UserError
from headway.run.paths import RunDir, create, find, list_runs, newest

NOW = datetime(2026, 11, 30, 10, 8, 5)


def make_run(root: Path, name: str, now: datetime = NOW) -> RunDir:
    run = create(root, name, now)
    run.config.write_text("name: x\n")
    return run


def test_the_name_holds_date_and_time(tmp_path: Path) -> None:
    run = create(tmp_path / "runs", "quickstart", NOW)
    assert run.path == tmp_path / "runs" / "quickstart-20261130-100805"
    assert run.log_folder.is_dir()


@pytest.mark.parametrize(("name", "stem"), [("my run/of ä", "my-run-of"), ("../up", "up"), ("///", "run"), ("", "run")])
def test_names_become_folder_names(tmp_path: Path, name: str, stem: str) -> None:
    assert create(tmp_path, name, NOW).name == f"{stem}-20261130-100805"


def test_many_starts_in_one_second_get_folders_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: create(tmp_path / "runs", "a", NOW), range(8)))
    assert len({run.path for run in runs}) == 8
    assert {run.name for run in runs} >= {"a-20261130-100805", "a-20261130-100805-8"}


def test_a_root_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(UserError, match="no run folder can be made there"):
            create(root, "a", NOW)


def test_paths_of_a_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in (run.logs(3), run.rank_error(3), run.plan)] == [
        "logs/rank-3.log",
        "logs/rank-3.error.json",
        "plan.json",
    ]


def test_the_newest_is_the_one_created_last_whatever_its_name(tmp_path: Path) -> None:
    make_run(tmp_path, "z", datetime(2026, 1, 1))
    make_run(tmp_path, "a", datetime(2026, 1, 2))
    for _ in range(10):
        last = make_run(tmp_path, "m", datetime(2026, 1, 2, 1))
    assert newest(tmp_path) == last
    assert [run.name for run in list_runs(tmp_path)][:2] == ["z-20260101-000000", "a-20260102-000000"]
    assert last.name.endswith("-10")


def test_folders_without_a_plan_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "file.txt").write_text("")
    assert list_runs(tmp_path) == []
    assert list_runs(tmp_path / "absent") == []
    assert newest(tmp_path) is None


def test_a_run_is_found_by_path_name_prefix_and_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs"
    first = make_run(root, "alpha", datetime(2026, 1, 1))
    second = make_run(root, "alphabet", datetime(2026, 1, 2))
    monkeypatch.chdir(tmp_path)
    assert find(str(first.path), Path("elsewhere")) == first
    assert find("runs/alpha-20260101-000000", root).path.resolve() == first.path
    assert find("alpha-20260101-000000", root) == first
    assert find("alpha-", root) == first
    assert find("alphab", root) == second
    assert find("latest", root) == second


def test_a_name_that_is_the_start_of_another_is_itself(tmp_path: Path) -> None:
    first, second = make_run(tmp_path, "a"), make_run(tmp_path, "a")
    assert second.name == f"{first.name}-2"
    assert find(first.name, tmp_path) == first


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("alpha", "fits 2 runs\n    fix: write more of it: alpha-20260101-000000, alphabet-20260102-000000"),
        ("alpah-20260101-000000", "is no run in .*\n    fix: runs there: alpha-20260101-000000"),
        ("", "is no run in"),
    ],
)
def test_what_is_not_found_names_what_is_near(tmp_path: Path, reference: str, message: str) -> None:
    make_run(tmp_path, "alpha", datetime(2026, 1, 1))
    make_run(tmp_path, "alphabet", datetime(2026, 1, 2))
    with pytest.raises(UserError, match=message):
        find(reference, tmp_path)


def test_no_runs_at_all_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="headway train"):
        find("latest", tmp_path / "runs")
