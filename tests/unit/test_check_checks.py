"""Each check against a fault that is planted; the table runs them side by side within its limit."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fakes.plans import A100_8, EXAMPLE, GIB, LAPTOP, SMALL, V100, plan_of, run_of
from headway.check import machine
from headway.check.checks import CHECKS, GIVEN, NAMES, require_checks, run_checks
from headway.check.fitting import tokenizer_entries
from headway.check.report import Report, Verdict, green, red, yellow
from headway.check.subject import Subject
from headway.errors import CheckFailed, UserError
from headway.plan.schema import BatchPlan, Plan


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def small(tmp_path: Path) -> Plan:
    """A plan whose store and tokenizer stand on the disk."""
    store, words = tmp_path / "store", tmp_path / "tokenizer"
    store.mkdir()
    words.mkdir()
    (store / "tokens-00000.bin").write_bytes(b"12345678")
    tokens = [{"file": "tokens-00000.bin", "items": 4, "size_bytes": 8, "sha256": "x"}]
    (store / "manifest.json").write_text(json.dumps({"hash": "abc", "tokens": tokens, "arrays": {}}))
    vocabulary = {f"t{i}": i for i in range(4090)}
    added = [{"id": 4095, "content": "<end>"}]
    (words / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": added}))
    return plan_of(SMALL, LAPTOP, store=str(store), store_hash="abc", tokenizer=str(words))


def verdict(name: str, plan: Plan, run_dir: Path = Path("/tmp"), **subject: Any) -> Verdict:
    return CHECKS[name](name, Subject(plan, subject.get("run"), run_dir))


def changed(plan: Plan, **parts: Any) -> Plan:
    """The plan with fields of its parts replaced."""
    return plan.model_copy(update={k: getattr(plan, k).model_copy(update=v) for k, v in parts.items()})


def test_a_sound_plan_is_all_green(small: Plan, tmp_path: Path) -> None:
    report = run_checks(small, run_of(SMALL), tmp_path / "runs" / "new")
    assert [v.name for v in report.verdicts] == [name for name in NAMES if name not in GIVEN]
    assert [v for v in report.verdicts if v.level != "green"] == []
    assert report.ok
    report.raise_if_red()


def test_memory(small: Plan) -> None:
    full = changed(small, memory={"device_limit_bytes": GIB // 4})
    found = verdict("memory", full)
    assert found.level == "red"
    assert "of 0.2 GiB a process (zero-2); the largest part is runtime" in found.finding
    assert found.fix == "train.micro_batch=4 or train.activation_checkpointing=true or strategy=zero-3"
    ddp = plan_of(EXAMPLE, A100_8, "train.micro_batch=1", "train.activation_checkpointing=true")
    assert verdict("memory", changed(ddp, memory={"device_limit_bytes": 1})).fix == "strategy=zero-2"


def test_host_memory() -> None:
    plan = plan_of(EXAMPLE, A100_8, "strategy={kind: zero-2, offload: cpu}")
    assert verdict("host-memory", plan).ok
    tight = plan.model_copy(update={"cluster": A100_8.model_copy(update={"host_memory_bytes": 8 * GIB})})
    assert verdict("host-memory", tight).level == "red"


def test_disk(small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = 12 * small.shape.parameters
    assert machine.checkpoint_bytes(small) == one
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: Usage(0, 0, 3 * one))
    found = verdict("disk", small, tmp_path / "not" / "there" / "yet")
    assert found.level == "red"
    assert str(tmp_path) in found.finding
    assert found.fix == "checkpoint.keep=2, or runs=FOLDER on a larger disk"
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: Usage(0, 0, 10))
    assert verdict("disk", small, tmp_path).fix.startswith("free some space")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: Usage(0, 0, 5 * one))
    assert verdict("disk", small, tmp_path).ok


def test_a_file_where_the_runs_should_lie(small: Plan, tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    found = verdict("disk", small, tmp_path / "runs" / "new")
    assert found.level == "red"
    assert str(tmp_path / "runs") in found.finding


def test_disk_of_a_run_that_is_resumed(small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoints that it keeps stand already: room for one more, and the export, is enough."""
    one = 12 * small.shape.parameters
    saved = tmp_path / "checkpoints" / "step-00000100"
    saved.mkdir(parents=True)
    (saved / "weights").touch()
    os.truncate(saved / "weights", small.checkpoint.keep * one)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: Usage(0, 0, int(1.5 * one)))
    found = verdict("disk", small, tmp_path)
    assert found.ok
    assert "more for" in found.finding
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: Usage(0, 0, one))
    assert not verdict("disk", small, tmp_path).ok


def test_data(small: Plan) -> None:
    store = Path(small.data.store)
    assert verdict("data", small).ok
    estimated = changed(small, facts={"estimated": True})
    assert verdict("data", estimated).level == "note"
    assert "its hash differs" in verdict("data", changed(small, data={"store_hash": "other"})).finding
    (store / "tokens-00000.bin").write_bytes(b"123")
    assert "cut short: tokens-00000.bin" in verdict("data", small).finding
    (store / "manifest.json").write_text("{")
    assert "damaged" in verdict("data", small).finding
    (store / "manifest.json").unlink()
    assert verdict("data", small).level == "red"
    assert verdict("data", small).fix == "headway data build RUN_FILE"


def test_tokenizer(small: Plan) -> None:
    folder = Path(small.data.tokenizer)
    assert tokenizer_entries(folder) == 4096
    assert verdict("tokenizer", small).ok
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": [["a", 0.0]] * 5000}}))
    assert tokenizer_entries(folder) == 5000
    found = verdict("tokenizer", small)
    assert (found.level, found.finding) == (
        "red",
        "the tokenizer has 5000 entries (ids to 4999), the embedding only 4096 rows",
    )
    assert tokenizer_entries(folder / "none") == 0
    assert not verdict("tokenizer", changed(small, facts={"vocab": 4097})).ok


def test_sequence(small: Plan) -> None:
    rotary = changed(small, data={"sequence": 512})
    assert verdict("sequence", rotary).level == "yellow"
    gpt2 = SMALL | {"model": {**SMALL["model"], "config": {**SMALL["model"]["config"], "arch": "gpt2"}}}
    learned = changed(plan_of(gpt2, LAPTOP), data={"sequence": 512})
    assert verdict("sequence", learned).level == "red"
    assert verdict("sequence", learned).fix == "train.sequence=256"
    nameless = changed(small, model={"config": {"model_type": "own"}})
    assert verdict("sequence", nameless).ok


def test_precision(small: Plan) -> None:
    assert verdict("precision", changed(small, numerics={"precision": "fp16"})).level == "red"
    assert verdict("precision", changed(small, numerics={"precision": "bf16"})).level == "yellow"
    old = changed(plan_of(EXAMPLE, V100), numerics={"precision": "bf16"})
    assert verdict("precision", old).level == "red"


def test_batch(small: Plan) -> None:
    wasteful = BatchPlan(global_sequences=10, micro_batch=4, accumulation=2, data_parallel_size=2)
    found = verdict("batch", small.model_copy(update={"batch": wasteful}))
    assert found.level == "yellow"
    assert "6 of 16 places" in found.finding
    assert found.fix == "train.global_batch='16 sequences' fills them"


def test_model(small: Plan, tmp_path: Path) -> None:
    assert verdict("model", changed(small, model={"path": str(tmp_path / "gone")})).level == "red"
    noted = small.model_copy(update={"reasons": small.reasons | {"notes.0": "model.revision is not set: ..."}})
    assert verdict("model", noted).level == "yellow"


def test_versions(small: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict("versions", small).ok
    real = metadata.version

    def version(package: str) -> str:
        if package == "numpy":
            raise metadata.PackageNotFoundError
        return "4.57.0" if package == "transformers" else real(package)

    monkeypatch.setattr(metadata, "version", version)
    found = verdict("versions", small)
    assert found.level == "red"
    assert "transformers 4.57.0 (needs " in found.finding
    assert "numpy is absent" in found.finding
    assert found.fix.startswith("pip install '")
    monkeypatch.setattr(metadata, "requires", _absent)
    assert verdict("versions", small).level == "yellow"


def _absent(package: str) -> list[str]:
    raise metadata.PackageNotFoundError


def test_compiler(small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert verdict("compiler", small).ok
    compiled = changed(small, numerics={"compile": True})
    assert verdict("compiler", compiled).level == "red"
    assert "flex attention" in verdict("compiler", changed(small, model={"attention": "flex"})).finding
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    assert verdict("compiler", compiled).ok


def test_a_busy_port_is_never_a_failure(small: Plan) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen(1)
        number = taken.getsockname()[1]
        found = verdict("port", changed(small, launch={"port": number}))
    assert found.level == "yellow"
    assert found.ok
    assert verdict("port", changed(small, launch={"port": number})).level == "green"
    assert verdict("port", small).level == "green"


def test_shared_memory(small: Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: Usage(64 * 1024**2, 0, 0))
    assert verdict("shared-memory", small).level == "green"
    found = verdict("shared-memory", plan_of(EXAMPLE, A100_8))
    assert found.level == "yellow"
    assert "--shm-size" in found.fix


def test_open_files(small: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (256, 4096))
    assert verdict("open-files", small).level == "yellow"
    assert verdict("open-files", small).fix.startswith("ulimit -n")
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (256, 256))
    assert "limits.conf" in verdict("open-files", small).fix
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (machine.resource.RLIM_INFINITY,) * 2)
    assert verdict("open-files", small).finding == "no limit"


def test_idle_gpus(small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho '0, GPU-a, NVIDIA A100-SXM4-80GB, 81920, 8.0'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = verdict("device", small, run=run_of(SMALL))
    assert found.level == "yellow"
    assert found.finding.startswith("1 x A100-SXM4-80GB lie idle")
    assert verdict("device", small, run=run_of(SMALL, "launch.device=cpu")).level == "green"


def test_forced_findings_pass_and_are_said(small: Plan, tmp_path: Path) -> None:
    broken = changed(small, data={"store_hash": "other"})
    report = run_checks(broken, None, tmp_path)
    assert [v.name for v in report.reds] == ["data"]
    with pytest.raises(CheckFailed) as caught:
        report.raise_if_red()
    assert "--force data" in str(caught.value)
    assert caught.value.exit_code == 4
    passed = report.forced(["data"])
    assert passed.ok
    passed.raise_if_red()
    assert next(v for v in passed.verdicts if v.name == "data").finding.startswith("passed by --force: ")


def test_force_takes_only_names_of_checks() -> None:
    require_checks(["memory"])
    with pytest.raises(UserError, match="is no check; did you mean memory"):
        require_checks(["memory", "memry"])


def test_a_hung_check_does_not_hold_the_run(small: Plan, tmp_path: Path) -> None:
    never = threading.Event()

    def hang(name: str, subject: Subject) -> Verdict:
        never.wait()
        return green(name, "")

    def crash(name: str, subject: Subject) -> Verdict:
        raise OSError("stale file handle")

    table: dict[str, Callable[[str, Subject], Verdict]] = {
        "hung": hang,
        "crashed": crash,
        "fine": lambda name, subject: green(name, "well"),
    }
    report = run_checks(small, None, tmp_path, checks=table, limit_seconds=0.1)
    never.set()
    assert [v.level for v in report.verdicts] == ["yellow", "yellow", "green"]
    assert "gave no answer within 0.1 s" in report.verdicts[0].finding
    assert "OSError: stale file handle" in report.verdicts[1].finding
    assert report.ok


def test_reports_as_json() -> None:
    report = Report((green("a", "x"), yellow("b", "y"), red("c", "z", "do")))
    assert not report.ok
    content = report.to_json()
    assert json.loads(json.dumps(content)) == content
    assert [v["ok"] for v in content["verdicts"]] == [True, True, False]
