"""After memory ran out: the planner's next setting of the same run, as a command to paste."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from headway import api
from headway.api import preparing, running
from headway.cli.main import main
from headway.errors import Diverged, WorkerFailed
from headway.launch.seam import JobStatus, RankFailure
from headway.plan.files import write_plan
from headway.plan.memory import used_bytes
from headway.run.paths import RunDir
from headway.run.record import write_record

RUN_FILE = """
model:  {config: {arch: llama, hidden: 512, layers: 8, heads: 8}, tokenizer: {train: 2k}}
data:   {train: [corpus/*.txt]}
train:  {length: 100 steps, sequence: 512, global_batch: 64 sequences, micro_batch: 16}
optimizer: {lr: 1e-3}
launch: {processes: 2, device: cpu}
"""


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run whose rank 1 ran out of memory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("some words of text\n" * 5000)
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    planned = preparing.planned(Path("run.yaml"), ["train.seed=3"], build=False)
    run = RunDir(tmp_path / "runs" / "failed-20260101-000000")
    run.log_folder.mkdir(parents=True)
    run.config.write_text(planned.loaded.text)
    write_plan(planned.plan, run.plan)
    write_record(run, {"git": {}, **running.origin_of(planned, None)})
    error = "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
    events = [
        {"time": 1.0, "event": "started"},
        {"time": 2.0, "event": "failed", "rank": 1, "error": f"{error}you tried to allocate 8589934592 bytes."},
    ]
    run.events.write_text("".join(json.dumps(event) + "\n" for event in events))
    (run.log_folder / "rank-0.log").write_text("RuntimeError: Connection closed by peer [127.0.0.1]:31337\n")
    return run


def test_the_next_setting_of_the_planner(failed: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    found = api.diagnose(failed.path)
    assert found is not None
    assert (found.name, found.rank) == ("host-out-of-memory", 1)
    assert found.cause == "the host's memory ran out (asked for: 8589934592 bytes)"
    words = shlex.split(found.fix)
    assert words[:2] == ["headway", "train"]
    assert words[3:] == ["train.seed=3", "train.micro_batch=8"]
    before, after = (api.plan(Path(words[2]), overrides).plan for overrides in (["train.seed=3"], words[3:]))
    assert used_bytes(after.memory, after.cluster) <= 0.85 * used_bytes(before.memory, before.cluster)
    assert main(["show", str(failed.path)]) == 0
    said = capsys.readouterr().out
    assert "diagnosis: host-out-of-memory" in said
    assert re.search(r"fix +headway train \S+run.yaml train.seed=3 train.micro_batch=8", said)
    assert main(["show", str(failed.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["diagnosis"]["rank"] == 1


def test_a_run_that_did_not_fail_has_no_diagnosis(failed: RunDir) -> None:
    with failed.events.open("a") as events:
        events.write(json.dumps({"time": 3.0, "event": "done", "steps": 100}) + "\n")
    assert api.diagnose(failed.path) is None


def test_a_plan_that_cannot_be_read_costs_the_hint_only(failed: RunDir) -> None:
    failed.record.unlink()
    failed.plan.write_text("{")
    found = api.diagnose(failed.path)
    assert found is not None
    assert found.fix.startswith("train.micro_batch halved")


def test_the_command_that_failed_says_the_cause_and_the_fix(failed: RunDir) -> None:
    error = json.loads(failed.events.read_text().splitlines()[-1])["error"]
    failure = RankFailure(1, 1, error, failed.logs(1))
    with pytest.raises(WorkerFailed) as caught:
        running._raise_failure(failed, JobStatus("failed", 5, failure))
    said = str(caught.value)
    assert said.startswith("rank 1 failed first: RuntimeError: [enforce fail")
    assert "cause: the host's memory ran out (asked for: 8589934592 bytes)" in said
    assert "train.micro_batch=8" in caught.value.fix
    with pytest.raises(Diverged) as own:  # Headway's own error names its fix
        running._raise_failure(failed, JobStatus("failed", 9, failure))
    assert own.value.fix == ""
