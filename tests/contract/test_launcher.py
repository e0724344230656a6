"""The seam Launcher: what every launcher must do. A new launcher adds itself to `launcher` and passes unchanged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fakes.fake_worker import running
from fakes.jobs import FAKE, fake_job, trace, wait_for
from headway import registry
from headway.errors import UserError
from headway.launch.commands import rank_environment
from headway.launch.local import LocalLauncher, LocalOptions, job_in
from headway.launch.ports import any_free_port
from headway.launch.seam import JobSpec, Launcher


@pytest.fixture(params=["local"])
def launcher(request: pytest.FixtureRequest) -> Launcher:
    kind = registry.resolve("launch", request.param)
    return kind(LocalOptions(worker_module=FAKE, save_seconds=30))


def ended(launcher: Launcher, job_id: str) -> bool:
    return launcher.status(job_id).state != "running"


def test_render_names_every_rank_and_starts_nothing(launcher: Launcher, tmp_path: Path) -> None:
    job = fake_job(tmp_path, {0: ["wait"], 1: ["wait"]}, port=any_free_port())
    text = launcher.render(job)
    assert text == launcher.render(job)
    assert "RANK=0" in text
    assert "RANK=1" in text
    assert str(tmp_path) in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["behaviour.json"]


def test_submit_sends_what_render_printed(launcher: Launcher, tmp_path: Path) -> None:
    job = fake_job(tmp_path, {0: [], 1: []}, port=any_free_port())
    printed = launcher.render(job)
    job_id = launcher.submit(job)
    wait_for(lambda: ended(launcher, job_id), "the job")
    assert launcher.status(job_id).state == "done"
    assert launcher.status(job_id).exit_code == 0
    assert (tmp_path / "launch.sh").read_text() == printed
    for rank in (0, 1):
        seen = trace(tmp_path, rank, "environment")
        assert seen.pop("HEADWAY_LAUNCHED") == "1"  # said by the supervisor that holds the lock, not by the text
        asked = rank_environment(job, rank, job.launch.port or 0)
        assert seen == {name: value for name, value in asked.items() if name != "PYTHONPATH"}


def test_a_failure_names_the_first_rank_and_its_log(launcher: Launcher, tmp_path: Path) -> None:
    job_id = launcher.submit(fake_job(tmp_path, {0: ["echo 1"], 1: ["sleep 0.2", "fail the disk is full"]}))
    wait_for(lambda: ended(launcher, job_id), "the job")
    status = launcher.status(job_id)
    assert (status.state, status.exit_code) == ("failed", 5)
    assert status.failure is not None
    assert (status.failure.rank, status.failure.error) == (1, "RuntimeError: the disk is full")
    assert "the disk is full" in status.failure.log.read_text()


def test_logs_are_one_a_rank_in_order(launcher: Launcher, tmp_path: Path) -> None:
    job_id = launcher.submit(fake_job(tmp_path, {rank: [f"print rank {rank}"] for rank in range(3)}))
    wait_for(lambda: ended(launcher, job_id), "the job")
    texts = [path.read_text() for path in launcher.logs(job_id)]
    assert ["python: rank 0" in texts[0], "python: rank 1" in texts[1], "python: rank 2" in texts[2]] == [True] * 3


def test_stop_lets_the_ranks_save(launcher: Launcher, tmp_path: Path) -> None:
    job_id = launcher.submit(fake_job(tmp_path, {0: ["wait"], 1: ["wait"]}))
    wait_for(lambda: all((tmp_path / f"rank-{rank}.pid").exists() for rank in (0, 1)), "both ranks")
    assert launcher.status(job_id).state == "running"
    launcher.stop(job_id)
    wait_for(lambda: ended(launcher, job_id), "the job to stop")
    assert (launcher.status(job_id).state, launcher.status(job_id).exit_code) == ("stopped", 75)
    for rank in (0, 1):
        assert trace(tmp_path, rank, "saved") is True
        assert trace(tmp_path, rank, "signals") == ["SIGTERM"]
    launcher.stop(job_id)  # a second time: nothing happens, and it is no error


def test_ranks_that_do_not_save_are_ended_after_the_grace(tmp_path: Path) -> None:
    launcher = LocalLauncher(LocalOptions(worker_module=FAKE, save_seconds=0.3))
    job_id = launcher.submit(fake_job(tmp_path, {0: ["hang"]}))
    wait_for((tmp_path / "rank-0.pid").exists, "the rank")
    wait_for(lambda: job_in(tmp_path) == job_id, "the job's record")
    launcher.stop(job_id)
    wait_for(lambda: ended(launcher, job_id), "the job to end")
    status = launcher.status(job_id)
    assert status.state == "stopped"
    assert status.failure is not None
    assert "without saving" in status.failure.error
    assert not running(trace(tmp_path, 0, "pid"))
    assert job_in(tmp_path) is None


def test_an_unknown_job_is_refused_by_name(launcher: Launcher) -> None:
    with pytest.raises(UserError, match="RUN_DIR:PID"):
        launcher.status("nonsense")


def test_a_resumed_job_appends_to_its_logs(launcher: Launcher, tmp_path: Path) -> None:
    job: JobSpec = fake_job(tmp_path, {0: ["print once"]})
    for again in (job, replace(job, resume=True)):
        job_id = launcher.submit(again)
        wait_for(lambda job_id=job_id: ended(launcher, job_id), "the job")
    text = launcher.logs(job_id)[0].read_text()
    assert text.count("python: once") == 2
    assert "started again" in text
    assert trace(tmp_path, 0, "environment")["HEADWAY_RESUME"] == "1"
