"""Models of the Hugging Face Hub: taken from the local cache; downloaded when absent there and a network is there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from headway.errors import ModelError

_WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]  # never pickles, never code
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubSnapshot:
    """A model folder in the local cache, pinned to one commit."""

    path: Path
    revision: str
    notes: tuple[str, ...] = ()


def hub_snapshot(repo: str, revision: str | None, cache: Path | None = None) -> HubSnapshot:
    """The folder of a Hub model at a revision: from the cache if it is whole there, else downloaded.

    Without a revision the newest one is taken and a note says which, so that the run file can pin it.

    Raises:
        ModelError: not in the cache and not to be downloaded (no network, no such model or revision).
    """
    folder = cached_snapshot(repo, revision, cache) or _download(repo, revision, cache)
    commit = folder.name if _COMMIT.fullmatch(folder.name) else (revision or folder.name)
    notes: tuple[str, ...] = ()
    if revision is None:
        notes = (f"model.revision is not set: {repo} was taken at {commit}; write model.revision={commit} to pin it",)
    return HubSnapshot(folder, commit, notes)


def _snapshot_download() -> Callable[..., str]:
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]

    return cast("Callable[..., str]", snapshot_download)


def cached_snapshot(repo: str, revision: str | None, cache: Path | None = None) -> Path | None:
    """The folder in the local cache, without the network; None if it is absent or some of its weights are."""
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(_snapshot_download()(repo, revision=revision, cache_dir=cache, local_files_only=True))
    except (LocalEntryNotFoundError, FileNotFoundError, HFValidationError):  # the last: a path, or no name of the Hub's
        return None
    return folder if is_whole(folder) else None


def is_whole(folder: Path) -> bool:
    """Whether a model folder has its config and every safetensors file that it should have."""
    if not (folder / "config.json").exists():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return (folder / "model.safetensors").exists()
    try:
        content = cast("dict[str, Any]", json.loads(index.read_text(encoding="utf-8")))
    except ValueError:
        return False
    files: set[str] = set(content.get("weight_map", {}).values())
    return all((folder / name).exists() for name in files)


def _download(repo: str, revision: str | None, cache: Path | None) -> Path:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    at = f"{repo} at revision {revision}" if revision else repo
    try:
        folder = Path(_snapshot_download()(repo, revision=revision, cache_dir=cache, allow_patterns=_WANTED))
    except GatedRepoError as error:
        fix = "accept the model's terms on its page and log in with `hf auth login`"
        raise ModelError(f"{repo} is gated: this account may not read it", fix=fix) from error
    except RevisionNotFoundError as error:
        fix = "check model.revision on the model's page"
        raise ModelError(f"{repo} has no revision {revision}", fix=fix) from error
    except RepositoryNotFoundError as error:
        fix = "check the spelling of model.from; a private model needs `hf auth login`; a folder starts with ./ or /"
        raise ModelError(f"there is no folder {repo!r} here, and no such model on the Hub", fix=fix) from error
    except Exception as error:  # no name, no route, proxies, offline mode: each transport has its own classes
        fix = (
            f"on a machine with a network: hf download {repo}" + (f" --revision {revision}" if revision else "") + "; "
            "then copy its cache here (HF_HOME), or give model.from the folder"
        )
        said = str(error).strip().splitlines()
        why = f" ({said[0][:160]})" if said else ""
        what = f"{at} is no folder here and not in the local cache, and the Hub cannot be reached{why}"
        raise ModelError(what, fix=fix) from error
    if not is_whole(folder):
        fix = "choose a model or revision that has safetensors weights; pickle files are not read"
        raise ModelError(f"{at} has no complete safetensors weights", fix=fix)
    return folder
