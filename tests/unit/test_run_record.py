"""The record tells where a run comes from, everywhere and without any secret."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headway.errors import UserError
from headway.run.paths import RunDir
from headway.run.record import DIFF_LIMIT_BYTES, gather_record, read_record, write_record
from headway.run.secrets import REMOVED, clean, clean_arguments, clean_source, clean_text, is_secret_name

# Each part is glued together here, so that no scanner takes this file for a leak.
HUB = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWx"
CLOUD = "AKIA" + "IOSFODNN7EXAMPLE"
HOST = "ghp_" + "0123456789abcdefghijABCDEFGHIJ012345"
LEGACY = "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567"  # forty hexadecimal digits, as a commit has
PASSWORD = "correct-horse-9"
SECRETS = (HUB, CLOUD, HOST, LEGACY, PASSWORD)


def git(folder: Path, *arguments: str) -> None:
    names = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *names, "-C", str(folder), *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "code with space"
    folder.mkdir()
    git(folder, "init")
    (folder / "train.py").write_text("a = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    return folder


def gather(folder: Path, argv: tuple[str, ...] = ("headway",), **environment: str) -> dict[str, Any]:
    return gather_record(None, argv, code=folder, environment=environment)


def test_a_clean_repository(repository: Path) -> None:
    state = gather(repository)["git"]
    assert (state["available"], state["branch"], state["dirty"]) == (True, "main", False)
    assert len(state["commit"]) == 40
    assert "diff" not in state


def test_changes_are_recorded_beside_the_record(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text("a = 2\n")
    (repository / "new.py").write_text("")
    record = gather(repository)
    run = RunDir(tmp_path)
    write_record(run, record)
    state = read_record(run)["git"]
    assert state["dirty"] is True
    assert state["untracked"] == ["new.py"]
    assert "diff" not in state
    assert "-a = 1\n+a = 2\n" in (tmp_path / state["diff_file"]).read_text()


def test_a_huge_diff_is_cut(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text("ä = 1\n" * 200_000)
    record = gather(repository)
    assert record["git"]["diff_cut"] is True
    assert record["git"]["diff_bytes"] > DIFF_LIMIT_BYTES
    write_record(RunDir(tmp_path), record)
    assert 0 < (tmp_path / "record.diff").stat().st_size <= DIFF_LIMIT_BYTES


def test_outside_a_repository_and_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    state = gather(tmp_path)["git"]
    assert state == {"available": False, "reason": f"{tmp_path} is in no git repository that can be read"}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gather(tmp_path)["git"]["reason"] == "git is not installed"


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init")
    state = gather(tmp_path)["git"]
    assert state["available"] is True
    assert state["commit"] is None


def test_versions_hardware_and_place(tmp_path: Path) -> None:
    record = gather(tmp_path, ("headway", "train", "run.yaml"))
    assert record["command"] == ["headway", "train", "run.yaml"]
    assert {"python", "headway", "torch", "transformers"} <= record["versions"].keys()
    assert record["hardware"]["memory_bytes"] > 0
    assert record["hardware"]["threads"] >= 1
    assert record["host"]
    assert record["user"]
    json.dumps(record)


def test_only_variables_that_matter_are_recorded(tmp_path: Path) -> None:
    record = gather(tmp_path, NCCL_DEBUG="INFO", OMP_NUM_THREADS="2", EDITOR="vi", MY_DIARY="secret plans")
    assert record["environment"] == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2"}


def test_no_token_leaks_through_any_part(repository: Path, tmp_path: Path) -> None:
    git(repository, "remote", "add", "origin", f"https://user:{PASSWORD}@example.org/a/b.git")
    git(repository, "remote", "add", "bare", f"https://{HOST}@example.org/a/b.git")
    (repository / "train.py").write_text(
        f'login("{HUB}")\nWANDB_API_KEY = "{LEGACY}"\nurl = "postgres://me:{PASSWORD}@db/x"\npassword: {PASSWORD}\n'
    )
    (repository / f"notes-{HUB}.txt").write_text("")
    argv = (
        *("headway", "train", f"--token={HUB}", "--api-key", LEGACY, "--password", PASSWORD),
        *(f"tracker.url=https://me:{PASSWORD}@example.org", f"--set=x.api_key={CLOUD}", f"plain {LEGACY}"),
        *("-H", f"Authorization: Bearer {HOST}"),
    )
    environment = {
        "HF_TOKEN": HUB,
        "WANDB_API_KEY": LEGACY,
        "AWS_SECRET_ACCESS_KEY": PASSWORD,
        "HEADWAY_SECRET_KEY": CLOUD,
        "HF_ENDPOINT": f"https://me:{PASSWORD}@example.org",
        "SLURM_COMMENT": f"runs with {HUB}",
    }
    record = gather(repository, argv, **environment)
    write_record(RunDir(tmp_path), record)
    written = (tmp_path / "record.json").read_text() + (tmp_path / "record.diff").read_text()
    for secret in SECRETS:
        assert secret not in written, secret
    assert record["environment"]["HF_TOKEN"] == REMOVED
    assert f"https://{REMOVED}@example.org/a/b.git" in record["git"]["remotes"]
    assert len(record["git"]["commit"]) == 40


def test_a_secret_is_removed_without_a_variable_that_tells_its_value(tmp_path: Path) -> None:
    argv = ("headway", f"--token={HUB}", "--api-key", LEGACY, f"db.password={PASSWORD}", f"s3://{CLOUD}", f"x={HOST}")
    written = json.dumps(gather(tmp_path, argv))
    for secret in SECRETS:
        assert secret not in written, secret


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "token", "api-key", "x.apiKey", "DB_PASSWORD", "accessToken", "AWS_SECRET_ACCESS_KEY", "auth"]
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "max_tokens",
        "tokens",
        "eos_token",
        "eos_token_id",
        "text_key",
        "PWD",
        "author",
        "path",
    ],
)
def test_names_that_are_no_secrets(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "text",
    [
        "train.length=10B tokens",
        "data.train.text_key=text",
        "https://example.org:8080/a@b",
        "git@github.com:a/b.git",
        "tokenizer.pad_token=<pad>",
        "/data/disk-0123456789abcdefghij/x",
    ],
)
def test_harmless_text_stays(text: str) -> None:
    assert clean_text(text) == text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("https://u:p/w@h/x", f"https://{REMOVED}@h/x"),
        ("https://h/x?token=abc&part=1", f"https://h/x?token={REMOVED}&part=1"),
        ("https://h/x?X-Amz-Signature=abc", f"https://h/x?X-Amz-Signature={REMOVED}"),
        ('{"api_key": "abc def"}', f'{{"api_key": "{REMOVED}"}}'),
        ("-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\nrest", f"{REMOVED}\nrest"),
    ],
)
def test_secrets_in_text(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned
    assert clean_text(cleaned) == cleaned


@pytest.mark.parametrize(
    "line",
    [
        "token = batch[0]",
        "token: str",
        "self.token = tokenizer.next_token",
        'pad_token = "<|endoftext|>"',
        "auth = None",
    ],
)
def test_statements_in_source_stay(line: str) -> None:
    assert clean_source(line) == line


@pytest.mark.parametrize("line", ['token = "abcdefgh"', "password: hunter2hunter2", "API_KEY=0123abcd4567"])
def test_literals_in_source_go(line: str) -> None:
    assert REMOVED in clean_source(line)


def test_an_option_after_a_secret_option_stays() -> None:
    assert clean_arguments(["--token", "x", "--steps", "5"]) == ["--token", REMOVED, "--steps", "5"]
    assert clean_arguments(["--token", "--steps", "5"]) == ["--token", "--steps", "5"]


def test_entries_are_cleaned_by_their_key() -> None:
    assert clean({"a": [{"password": "x", "size": 3}], "token": ""}) == {
        "a": [{"password": REMOVED, "size": 3}],
        "token": "",
    }


def test_a_run_without_a_record(tmp_path: Path) -> None:
    assert read_record(RunDir(tmp_path)) == {}


@pytest.mark.parametrize("content", ["{", "[]", "null", '{"git": 3}', '{"run_file": []}'])
def test_a_damaged_record_is_named_with_its_newest_copy(tmp_path: Path, content: str) -> None:
    run = RunDir(tmp_path)
    run.record.write_text(content)
    with pytest.raises(UserError, match=f"cannot be read(.|\n)*remove {run.record}"):
        read_record(run)
    (run.checkpoints / "step-00000003").mkdir(parents=True)
    (run.checkpoints / "step-00000003" / "record.json").write_text("{}")
    with pytest.raises(UserError, match=r"fix: cp .*step-00000003/record\.json "):
        read_record(run)
