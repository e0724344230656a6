"""Disks that are full or closed while a token store is made."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.corpora import prose, request_for, tokenizer_for, write_texts
from headway.config.schema import TokenizerConfig
from headway.data.build import build_store, find_store
from headway.data.store import TokenStore
from headway.data.tokenizer import TokenizerRequest, prepare_tokenizer
from headway.errors import DataError

pytestmark = pytest.mark.faults


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("workers", [None, 1])
def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path: Path, small_disk: Path, workers: int | None) -> None:
    source = write_texts(tmp_path / "corpus", [prose(seed, 20_000) for seed in range(6)])
    tokenizer = tokenizer_for(tmp_path, source)
    request = request_for(tmp_path, source, tokenizer, cache=small_disk, workers=workers)
    with pytest.raises(DataError, match=r"no room left; a token store takes .* here \d.*KiB[\s\S]*set data.cache"):
        build_store(request)
    assert not [path for path in small_disk.iterdir() if "store-" in path.name]
    assert find_store(request) is None
    for path in (tmp_path / "corpus").iterdir():
        path.write_text("short now")
    assert TokenStore(build_store(request)).manifest.train.documents == 6


def test_a_disk_too_full_for_a_tokenizer(tmp_path: Path, small_disk: Path) -> None:
    source = write_texts(tmp_path / "corpus", [prose(seed, 50) for seed in range(3)])
    (small_disk / "ballast").write_bytes(b"x" * 240 * 1024)
    request = TokenizerRequest(TokenizerConfig(train=300), tmp_path, small_disk, (source,))
    with pytest.raises(DataError, match=r"no room left[\s\S]*set data.cache"):
        prepare_tokenizer(request)
    (small_disk / "ballast").unlink()
    assert (prepare_tokenizer(request) / "tokenizer.json").is_file()


def test_what_may_not_be_read_or_written_is_named(tmp_path: Path) -> None:
    source = write_texts(tmp_path / "corpus", [prose(seed, 50) for seed in range(3)])
    tokenizer = tokenizer_for(tmp_path, source)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    if os.access(closed, os.W_OK):
        pytest.skip("nothing is closed to the superuser")
    with pytest.raises(DataError, match="cannot be written to"):
        build_store(request_for(tmp_path, source, tokenizer, cache=closed))
    (tmp_path / "corpus" / "0001.txt").chmod(0)
    with pytest.raises(DataError, match=r"0001.txt: data: cannot be read"):
        build_store(request_for(tmp_path, source, tokenizer, cache=tmp_path / "other"))
