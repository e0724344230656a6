"""The faults of a compose file and of Kubernetes manifests: GPUs without the shared memory that training needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from headway.check.scripts.material import Fault, Script

_TRAINS = re.compile(r"deepspeed|torchrun|torch\.distributed|accelerate|\btrain|headway|PyTorchJob|finetune", re.I)
_WHAT = "/dev/shm has 64 MiB there, and NCCL or DataLoader workers end with a bus error"


def judge(script: Script) -> list[Fault]:
    """Nothing of a file that is no YAML (a template, say), or neither of the two."""
    try:
        documents = list(YAML().load_all(script.text))
    except (YAMLError, ValueError, TypeError, RecursionError):
        return []
    return [fault for document in documents for fault in (*_compose(document), *_pods(document))]


def _compose(document: Any) -> Iterator[Fault]:
    for name, service in _items(_get(document, "services")):
        devices = _get(service, "deploy", "resources", "reservations", "devices")
        reserved = any("gpu" in str(_get(device, "capabilities")) for device in _list(devices))
        if not (reserved or _get(service, "gpus") or _get(service, "runtime") == "nvidia"):
            continue
        mounted = "/dev/shm" in f"{_get(service, 'volumes')} {_get(service, 'tmpfs')}"
        shares = str(_get(service, "ipc") or "").startswith(("host", "shareable", "service:", "container:"))
        if not (_get(service, "shm_size") or shares or mounted):
            what = f"the service {name} has GPUs and no shm_size: {_WHAT}"
            yield Fault("shm-size", _line(service), what, "shm_size: 8gb (or ipc: host)", must=False)


def _pods(document: Any) -> Iterator[Fault]:
    """Wherever a pod's spec stands: in a Pod, a Job, a PyTorchJob, a Deployment."""
    if isinstance(document, list):
        for one in cast("list[Any]", document):
            yield from _pods(one)
    if not isinstance(document, dict):
        return
    memory = {_get(one, "name") for one in _list(_get(document, "volumes")) if not _is_on_disk(one)}
    for container in _list(_get(document, "containers")):
        limits = {**_plain(_get(container, "resources", "requests")), **_plain(_get(container, "resources", "limits"))}
        has_gpus = any(str(key).endswith("/gpu") for key in limits)
        if not has_gpus or not _TRAINS.search(str(container)) or _get(document, "hostIPC"):
            continue
        mounts = _list(_get(container, "volumeMounts"))
        if not any(_get(one, "mountPath") == "/dev/shm" and _get(one, "name") in memory for one in mounts):
            what = f"the container {_get(container, 'name')} has GPUs and no memory volume at /dev/shm: {_WHAT}"
            fix = "volumes: [{name: shm, emptyDir: {medium: Memory}}], volumeMounts: [{name: shm, mountPath: /dev/shm}]"
            yield Fault("shm-size", _line(container), what, fix, must=False)
    for value in cast("dict[Any, Any]", document).values():
        yield from _pods(value)


def _is_on_disk(volume: Any) -> bool:
    """An emptyDir without `medium: Memory` is a folder on the node's disk: as large as that, and slow."""
    return _get(volume, "emptyDir") is not None and _get(volume, "emptyDir", "medium") != "Memory"


def _get(value: Any, *path: str) -> Any:
    for key in path:
        value = cast("dict[Any, Any]", value).get(key) if isinstance(value, dict) else None
    return value


def _items(value: Any) -> list[tuple[str, Any]]:
    return [(str(key), inner) for key, inner in _plain(value).items() if isinstance(inner, dict)]


def _plain(value: Any) -> dict[Any, Any]:
    return dict(cast("dict[Any, Any]", value)) if isinstance(value, dict) else {}


def _line(mapping: Any) -> int:
    return mapping.lc.line + 1


def _list(value: Any) -> list[Any]:
    return [one for one in cast("list[Any]", value) if isinstance(one, dict)] if isinstance(value, list) else []
