"""The faults of a Dockerfile: an image without nvcc under packages that compile their kernels at first use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from headway.check.scripts.material import Fault, Script

_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_ARG = re.compile(r"^\s*ARG\s+(\w+)=(\S+)", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{(\w+)[^}]*\}|\$(\w+)")
# Official tags: pytorch/pytorch:*-runtime and nvidia/cuda:*-runtime-*, *-base-*; the -devel ones have nvcc.
_NO_NVCC = re.compile(r"(?:^|/)(?:pytorch/pytorch|cuda):\S*(?:-runtime|-base)\b", re.IGNORECASE)
# Without a tag, and as "latest", pytorch/pytorch is the runtime image.
_UNTAGGED = re.compile(r"(?:^|/)pytorch/pytorch(?::latest)?$", re.IGNORECASE)
_COMPILES = re.compile(r"\bdeepspeed\b|\bflash[-_]attn\b", re.IGNORECASE)
_TOOLKIT = re.compile(
    r"cuda-toolkit|cuda-nvcc|cuda-compiler|nvidia-cuda-toolkit|cuda-nvcc|DS_BUILD_OPS=1", re.IGNORECASE
)
_REQUIREMENTS = re.compile(r"pip3?\s+install[^&;]*?(?:-r|--requirement)[= ]?(\S+)")
_PROJECT = re.compile(
    r"(?:pip3?\s+install\s[^&;]*?(?:-e\s*)?\.|poetry\s+install|uv\s+sync|pdm\s+install)(?:\s|\[|$)", re.M
)


def judge(script: Script) -> list[Fault]:
    return list(_without_nvcc(script))


def _without_nvcc(script: Script) -> Iterator[Fault]:
    stages = _stages(script)
    if not stages:
        return
    line, image, body = stages[-1]  # only the last stage runs
    built_on = {name: (at, base) for at, base, _, name in _named(script)}
    while image in built_on:
        line, image = built_on[image]
    text = "\n".join(body)
    image = image.partition("@")[0]
    if not (_NO_NVCC.search(image) or _UNTAGGED.search(image)) or _TOOLKIT.search(text):
        return
    needs = _COMPILES.search(text)
    unseen = ""
    for name in [*_REQUIREMENTS.findall(text), *(["pyproject.toml"] if _PROJECT.search(text) else [])]:
        found = _find(script.path, name.strip("'\""))
        if found is None:
            unseen = name
        elif match := _COMPILES.search(_uncommented(found)):
            needs = needs or match
    if not needs and not unseen:
        return
    who = needs[0] if needs else f"DeepSpeed (if {unseen} names it)"
    what = (
        f"{image} has no nvcc: {who} compiles its kernels at first use (FusedAdam, CPUAdam) and stops there with "
        "'CUDA_HOME does not exist, unable to compile CUDA op(s)'"
    )
    devel = re.sub(r"-(runtime|base)", "-devel", image, count=1)
    fix = f"FROM {devel}" if devel != image else "FROM pytorch/pytorch:VERSION-cudaVERSION-cudnnVERSION-devel"
    yield Fault("no-nvcc", line, what, fix, must=bool(needs))


def _stages(script: Script) -> list[tuple[int, str, list[str]]]:
    """(line, image, lines below it) of each stage; comments left out."""
    stages: list[tuple[int, str, list[str]]] = []
    defaults: dict[str, str] = {}
    for number, line in enumerate(script.lines, start=1):
        if line.lstrip().startswith("#"):
            continue
        if (argument := _ARG.match(line)) and not stages:
            defaults[argument[1]] = argument[2].strip("'\"")
        if match := _FROM.match(line):
            image = _VARIABLE.sub(lambda found: defaults.get(found[1] or found[2], found[0]), match[1])
            stages.append((number, image, []))
        elif stages:
            stages[-1][2].append(line)
    return stages


def _named(script: Script) -> Iterator[tuple[int, str, str, str]]:
    for number, line in enumerate(script.lines, start=1):
        match = _FROM.match(line)
        if match and match[2]:
            yield number, match[1], line, match[2]


def _find(dockerfile: Path, name: str) -> Path | None:
    folder = dockerfile.absolute().parent
    places = [folder / name, folder.parent / name, folder / Path(name).name]
    return next((place for place in places if place.is_file()), None)


def _uncommented(path: Path) -> str:
    return "\n".join(line.split("#")[0] for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
