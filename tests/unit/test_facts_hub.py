"""Hub models from a local cache, without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.errors import ModelError
from headway.facts.hub import cached_snapshot, hub_snapshot, is_whole

COMMIT = "a" * 40
OTHER = "b" * 40


def fill(cache: Path, commit: str = COMMIT, *, ref: str = "main", weights: bool = True) -> Path:
    """A cache as huggingface_hub lays it out."""
    repo = cache / "models--some--model"
    snapshot = repo / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"model_type": "llama"}))
    if weights:
        (snapshot / "model.safetensors").write_bytes(b"")
    (repo / "refs").mkdir(exist_ok=True)
    (repo / "refs" / ref).write_text(commit)
    return snapshot


def test_a_pinned_revision_is_taken_from_the_cache(tmp_path: Path) -> None:
    snapshot = fill(tmp_path)
    fill(tmp_path, OTHER, ref="v2")
    found = hub_snapshot("some/model", COMMIT, tmp_path)
    assert (found.path, found.revision, found.notes) == (snapshot, COMMIT, ())
    assert hub_snapshot("some/model", "v2", tmp_path).revision == OTHER


def test_without_a_revision_the_note_says_how_to_pin_it(tmp_path: Path) -> None:
    fill(tmp_path)
    found = hub_snapshot("some/model", None, tmp_path)
    assert found.revision == COMMIT
    assert found.notes == (
        f"model.revision is not set: some/model was taken at {COMMIT}; write model.revision={COMMIT} to pin it",
    )


@pytest.mark.parametrize("revision", [None, OTHER, "v9"])
def test_not_in_the_cache_and_no_network(tmp_path: Path, revision: str | None) -> None:
    if revision is not None:
        fill(tmp_path)
    with pytest.raises(ModelError) as caught:
        hub_snapshot("some/model", revision, tmp_path)
    text = str(caught.value)
    assert "not in the local cache, and the Hub cannot be reached" in text
    assert "hf download some/model" + (f" --revision {revision}" if revision else "") in text


def test_half_a_snapshot_is_none(tmp_path: Path) -> None:
    snapshot = fill(tmp_path, weights=False)
    assert cached_snapshot("some/model", COMMIT, tmp_path) is None
    assert not is_whole(snapshot)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    (snapshot / "model-1.safetensors").write_bytes(b"")
    assert not is_whole(snapshot)
    (snapshot / "model-2.safetensors").write_bytes(b"")
    assert is_whole(snapshot)
    (snapshot / "model.safetensors.index.json").write_text("{")
    assert not is_whole(snapshot)
