"""Small files that others read: the old text or the new, whatever happens between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headway.run.whole import write_whole


def test_a_disk_that_fills_up_leaves_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_whole(path, "old ☃")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left.*record\.json"):
        write_whole(path, "new")
    assert path.read_text(encoding="utf-8") == "old ☃"
    assert list(tmp_path.iterdir()) == [path]


def test_the_new_text_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for text in ("old", "new"):
        write_whole(path, text)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
