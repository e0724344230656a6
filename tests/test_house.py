"""The house rules, held by reading the source: layers, cycles, sizes, what is imported where, what no file says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "headway"

# A module imports only from earlier layers or its own.
LAYERS = (
    ("errors", "units"),
    ("registry", "config"),
    ("facts", "plan", "run"),
    ("check", "diagnose", "launch"),
    ("model", "task", "data", "parallel", "track", "checkpoint"),
    ("train", "export", "serve"),
    ("certify",),
    ("api", "preparing", "cli", "__main__"),
)
TORCH_FREE_LAYERS = (1, 2, 3, 4, 8)
HEAVY = {"torch", "transformers", "deepspeed", "tokenizers", "pyarrow", "datasets", "tensorboard", "mlflow", "wandb"}
LIGHTER = {"numpy", "safetensors"}  # a tenth of a second: allowed by way of a room that needs it, not directly

# Everywhere else the environment is no hidden input.
READS_ENVIRONMENT = {
    "launch/": "sets the ranks' variables",
    "cli/": "the terminal's variables",
    "run/record.py": "writes the environment into the record",
    "facts/cluster.py": "CUDA_VISIBLE_DEVICES decides which GPUs there are",
    "check/host.py": "what the user's shell hands to the ranks",
    "data/worker.py": "a tokenizer process of its own sets TOKENIZERS_PARALLELISM",
    "train/worker.py": "the rank variables",
    "train/context.py": "the rank variables",
    "train/environment.py": "what DeepSpeed reads while it is imported",
}
# Called by another package, which decides what it passes.
SIGNATURE_IS_FIXED = {
    "packed_sdpa": "transformers' attention interface",
    "packed_flash": "transformers' attention interface",
}
PRAGMA = re.compile(r"\s*# (noqa|pyright|type): .*$")  # a remark to a tool may stand beyond the margin
VAGUE_NAMES = {"utils", "util", "common", "base", "core", "helpers", "helper", "misc"}

# Patterns are put together here so that this file does not match itself.
UNSPEAKABLE = {
    "a path of one machine": r"/wo" + r"rk/|/opt/(wh" + r"eels|py" + r"pi)|/ro" + r"ot/",
    "a registry's host": r"py" + r"pi\.org|files\.python" + r"hosted",
    "a planning document": r"FAC" + r"TS\.md|\bissue " + r"[A-H]\b|sha" + r"red/(brief|rigs)",
    "a working session": r"\b(this|earlier|previous|last|next|another) ses" + r"sion\b",
}


class Import(NamedTuple):
    """One import of one module: what it names, and whether it runs when the module is imported."""

    module: str
    line: int
    at_import: bool


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found: dict[str, Path] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
FILES = sorted(MODULES.values())


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def listed(found: list[str]) -> str:
    return "\n" + "\n".join(found)


def typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def nodes(node: ast.AST, at_import: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it runs when the module is imported."""
    for child in ast.iter_child_nodes(node):
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or typing_only(child)
        yield child, at_import
        yield from nodes(child, at_import and not inside)


@cache
def imports(name: str) -> tuple[Import, ...]:
    """What a module imports; `from package import module` counts as the module."""
    found: list[Import] = []
    for node, at_import in nodes(tree(MODULES[name])):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, at_import) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.append(Import(inner if inner in MODULES else node.module, node.lineno, at_import))
    return tuple(found)


def layer(name: str) -> int:
    """1 to 8; 0 for the package itself, which everyone may import."""
    room = name.split(".")[1] if "." in name else ""
    for number, rooms in enumerate(LAYERS, start=1):
        if room in rooms:
            return number
    assert room == "", f"{name} belongs to no layer: add its room to LAYERS"
    return 0


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_a_module_imports_only_from_its_own_layer_and_earlier_ones() -> None:
    wrong = [
        f"{where(MODULES[name], found.line)}: layer {layer(name)} imports {found.module} of layer {layer(found.module)}"
        for name in MODULES
        for found in imports(name)
        if found.module in MODULES and layer(found.module) > layer(name)
    ]
    assert not wrong, listed(wrong)


def test_imports_only_name_modules_that_exist() -> None:
    wrong = [
        f"{where(MODULES[name], found.line)}: {found.module}"
        for name in MODULES
        for found in imports(name)
        if found.module.partition(".")[0] == "headway" and found.module not in MODULES
    ]
    assert not wrong, listed(wrong)


def test_no_import_cycles() -> None:
    state: dict[str, str] = {}
    cycles: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if state.get(name) == "open":
            cycles.append(" -> ".join((*above[above.index(name) :], name)))
        if name in state:
            return
        state[name] = "open"
        for found in imports(name):
            if found.module in MODULES and found.module != name:
                visit(found.module, (*above, name))
        state[name] = "closed"

    for name in MODULES:
        visit(name, ())
    assert not cycles, listed(cycles)


def test_torch_free_layers_import_nothing_heavy() -> None:
    """Also not by way of another module: what runs on import is followed to its end."""
    wrong: list[str] = []
    for name in MODULES:
        if layer(name) in TORCH_FREE_LAYERS:
            wrong += [f"{name} -> {' -> '.join(chain)}" for chain in heavy_chains(name)]
            wrong += [f"{where(MODULES[name], at.line)}: {at.module}" for at in imports_now(name, LIGHTER)]
    assert not wrong, listed(wrong)


def imports_now(name: str, packages: set[str]) -> list[Import]:
    """Imports of these packages that run when the module is imported."""
    return [found for found in imports(name) if found.at_import and found.module.partition(".")[0] in packages]


def heavy_chains(name: str) -> Iterator[tuple[str, ...]]:
    """One shortest chain of imports to each module that imports something heavy."""
    reached = {name}
    chains: list[tuple[str, ...]] = [()]
    for chain in chains:  # grows while it is read: breadth first
        last = chain[-1] if chain else name
        for found in imports_now(last, HEAVY)[:1]:
            yield (*chain, found.module)
        for found in imports_now(last, {"headway"}):
            if found.module in MODULES and found.module not in reached:
                reached.add(found.module)
                chains.append((*chain, found.module))


def test_functions_are_short() -> None:
    long = [
        f"{where(path, function.lineno)}: {function.name} has {lines} lines"
        for path in FILES
        for function in functions(path)
        if (lines := (function.end_lineno or function.lineno) - function.lineno + 1) > 60
    ]
    assert not long, listed(long)


def test_files_are_short() -> None:
    long = [f"{where(path, lines)}" for path in FILES if (lines := len(path.read_text().splitlines())) > 500]
    assert not long, listed(long)


def test_functions_take_at_most_six_parameters() -> None:
    many: list[str] = []
    for path in FILES:
        for function in functions(path):
            given = function.args
            names = [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            names += [arg.arg for arg in (given.vararg, given.kwarg) if arg is not None]
            if names[:1] in (["self"], ["cls"]):
                names = names[1:]
            if len(names) > 6 and function.name not in SIGNATURE_IS_FIXED:
                many.append(f"{where(path, function.lineno)}: {function.name}({', '.join(names)})")
    assert not many, listed(many)


def test_protocols_have_at_most_six_methods() -> None:
    wide: list[str] = []
    protocols = 0
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef) and any("Protocol" in ast.dump(base) for base in node.bases):
                protocols += 1
                methods = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
                if len(methods) > 6:
                    wide.append(f"{where(path, node.lineno)}: {node.name} has {len(methods)}")
    assert not wide, listed(wide)
    assert protocols >= 8, "the seams are protocols; none were found"


def test_no_bare_assert() -> None:
    """They vanish under `python -O`: what can go wrong is raised."""
    found = [where(p, n.lineno) for p in FILES for n in ast.walk(tree(p)) if isinstance(n, ast.Assert)]
    assert not found, listed(found)


def test_the_environment_is_read_in_few_places() -> None:
    stray: list[str] = []
    for path in FILES:
        inside = path.relative_to(PACKAGE).as_posix()
        if any(inside.startswith(allowed) for allowed in READS_ENVIRONMENT):
            continue
        attributes = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)]
        stray += [where(path, node.lineno) for node in attributes if node.attr in ("environ", "getenv", "putenv")]
    assert not stray, listed(stray)


def test_places_that_may_read_the_environment_exist_and_do() -> None:
    for allowed in READS_ENVIRONMENT:
        if not allowed.endswith("/"):
            assert "os.environ" in (PACKAGE / allowed).read_text(), f"{allowed} needs no exception any more"


def test_no_vague_module_names() -> None:
    vague = [name for name in MODULES if VAGUE_NAMES & set(name.split("."))]
    assert not vague, listed(vague)


def test_every_module_says_what_it_is() -> None:
    silent = [where(path, 1) for path in FILES if path.read_text().strip() and not ast.get_docstring(tree(path))]
    assert not silent, listed(silent)


def shipped() -> list[Path]:
    """Every text file of the repository, whether committed yet or not."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
    if answer.returncode:
        pytest.skip("not a git checkout, so the repository's files are not known")
    paths = [ROOT / name for name in answer.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and b"\0" not in path.read_bytes()[:8192]]


def test_the_repository_speaks_of_headway_alone() -> None:
    said: list[str] = []
    for path in shipped():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            said += [f"{where(path, number)}: {what}" for what, words in UNSPEAKABLE.items() if re.search(words, line)]
    assert not said, listed(said)


def test_lines_are_at_most_120_characters() -> None:
    long: list[str] = []
    for path in shipped():
        if path.suffix in (".py", ".toml", ".yaml", ".yml", ".sh") or path.name in ("Makefile", "run"):
            lines = path.read_text(encoding="utf-8").splitlines()
            lines = [PRAGMA.sub("", line) for line in lines]
            long += [where(path, number) for number, line in enumerate(lines, start=1) if len(line) > 120]
    assert not long, listed(long)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("headway.cli.main", {"torch", "transformers", "deepspeed", "pydantic", "numpy"}),
        ("headway.api", {"torch", "transformers", "deepspeed"}),
        ("headway.launch.local", {"torch", "transformers", "deepspeed", "numpy"}),
    ],
)
def test_importing_it_loads_nothing_heavy(module: str, absent: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert absent & set(done.stdout.split()) == set()
