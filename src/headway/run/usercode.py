"""The user's own modules that a plan names: found, hashed and copied into the run, and imported from there.

Nothing is imported to find them: a module's imports are read off its source, and followed as long as they lie beneath
the same folder; a package is taken whole. So a plan costs no torch, and a resumed run computes what it computed,
whatever was edited meanwhile. A module that is imported by a name put together at run time is not found; it is then
imported from where it lies.
"""

from __future__ import annotations

import ast
import hashlib
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from headway.errors import ConfigError, PlanError, Problem
from headway.plan.schema import CodePlan
from headway.run.paths import RunDir


@dataclass(frozen=True)
class Named:
    """`package.module:attribute`, and the run file's key that says so."""

    key: str
    path: str

    @property
    def module(self) -> str:
        return self.path.partition(":")[0]

    @property
    def attribute(self) -> str:
        return self.path.partition(":")[2]


@dataclass(frozen=True)
class _Place:
    """Where a top-level module lies: the folder that is searched, and whether it is an installed package's."""

    root: Path
    installed: bool


def find_code(names: Iterable[Named], base: Path, search: Sequence[str] | None = None) -> tuple[CodePlan, ...]:
    """The source files behind these names, by the folder that they lie beneath.

    Args:
        base: the run file's folder, searched first, then `search` (sys.path).

    Raises:
        ConfigError: a module that is not found, or has no such name at its top level; every problem at once.
    """
    folders = [base, *(Path(entry or ".") for entry in (sys.path if search is None else search))]
    found: dict[_Place, dict[str, Path]] = {}
    problems: list[Problem] = []
    for named in names:
        place = _place_of(named.module.partition(".")[0], folders)
        file = _file_of(named.module, place.root) if place else None
        if place is None or file is None:
            problems.append(_not_found(named, base))
            continue
        problems += _missing_attribute(named, file)
        found.setdefault(place, {}).update(_followed(named.module, place.root))
    if problems:
        raise ConfigError(problems=problems)
    return tuple(
        CodePlan(
            root=str(place.root.resolve()),
            installed=place.installed,
            files={name: _sha256(path) for name, path in sorted(files.items())},
        )
        for place, files in found.items()
    )


def code_behind(module: str, root: Path) -> CodePlan | None:
    """The source of a module that is imported already, and what it imports beneath `root`; None where it has none."""
    files = _followed(module, root)
    if not files:
        return None
    hashes = {name: _sha256(path) for name, path in sorted(files.items())}
    return CodePlan(root=str(root.resolve()), installed=_is_installed(root), files=hashes)


def _place_of(top: str, folders: Sequence[Path]) -> _Place | None:
    for folder in folders:
        if (folder / f"{top}.py").is_file() or (folder / top).is_dir():
            return _Place(folder, _is_installed(folder))
    return None


def _is_installed(folder: Path) -> bool:
    known = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    return folder.resolve() in known or "site-packages" in folder.parts


def _file_of(module: str, root: Path) -> Path | None:
    path = root.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _followed(module: str, root: Path) -> dict[str, Path]:
    """Relative name -> file of a module, the packages around it, and what they import beneath the same folder."""
    files: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = _file_of(name, root)
        if file is None or file.relative_to(root).as_posix() in files:
            continue
        files[file.relative_to(root).as_posix()] = file
        if file.name == "__init__.py" and file.parent.parent == root:  # a package is taken whole
            files |= {part.relative_to(root).as_posix(): part for part in file.parent.rglob("*.py")}
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        waiting += [*_parents(name), *_imported(file, package)]
    return files


def _parents(name: str) -> Iterator[str]:
    while name := name.rpartition(".")[0]:
        yield name


def _imported(file: Path, package: str) -> Iterator[str]:
    """Every module that a file may mean by its imports, the relative ones by their full name."""
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if package and node.level else []
            around = parts[: len(parts) - node.level + 1] if node.level else []
            whole = ".".join([*around, *([node.module] if node.module else [])])
            yield whole
            yield from (f"{whole}.{alias.name}".strip(".") for alias in node.names)


def _tree(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_text(encoding="utf-8"), str(file))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{file}:{line}" if line else str(file)
        rule = f"is not Python that can be read: {getattr(error, 'msg', error)}"
        raise ConfigError(problems=[Problem("model", rule, where=where, fix="correct the file")]) from error


def _missing_attribute(named: Named, file: Path) -> Iterator[Problem]:
    """A name that the module's top level does not give; not judged where the module imports by a star."""
    tree = _tree(file)
    given = set(_top_level(tree.body))
    if named.attribute in given or "*" in given:
        return
    near = get_close_matches(named.attribute, given, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    yield Problem(named.key, f"{file.name} has no {named.attribute!r}{hint}", named.path, f"define it in {file}")


def _top_level(body: Sequence[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
        elif isinstance(node, ast.If | ast.Try):
            yield from _top_level([*node.body, *node.orelse])


def has_name(code: Iterable[CodePlan], module: str, name: str) -> bool:
    """Whether the module's top level gives `name`, read off the source where it lies."""
    files = (file for part in code if (file := _file_of(module, Path(part.root))) is not None)
    return any(name in set(_top_level(_tree(file).body)) for file in files)


def _not_found(named: Named, base: Path) -> Problem:
    if named.module == "__main__":
        rule = "is defined in the notebook or script itself, where no rank can import it"
        fix = "write it into a file beside the run file (in a notebook: %%writefile net.py) and name it net:NAME"
        return Problem(named.key, rule, named.path, fix)
    rule = f"there is no module {named.module} in {base} or on PYTHONPATH"
    return Problem(named.key, rule, named.path, "put it beside the run file, or add its folder to PYTHONPATH")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def copy_code(code: Iterable[CodePlan], run: RunDir) -> None:
    """The plan's source files into the run directory. Raises PlanError where one changed since the plan was made."""
    for part in code:
        for name, sha256 in part.files.items():
            source = Path(part.root) / name
            target = (run.installed_code if part.installed else run.code) / name
            if target.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            if _sha256(target) != sha256:
                raise PlanError(f"{source} changed while the run was prepared", fix="start again")


def use_code(code: Sequence[CodePlan], run: RunDir | None) -> None:
    """Make the run's copy of the user's modules the one that is imported in this process.

    Without a copy (no run yet, a certificate's small run) it is the folder of the plan.

    Raises:
        PlanError: a file is not what the plan names.
    """
    for part in reversed(code):
        copied = run.code if run is not None and not part.installed and run.code.is_dir() else Path(part.root)
        changed = [name for name, sha256 in part.files.items() if not _is(copied / name, sha256)]
        if changed:
            raise PlanError(
                f"the code in {copied} is not what the plan was made with: {', '.join(changed[:5])}",
                fix="restore the files, or start a new run with the changed ones",
            )
        if part.installed:
            continue
        for folder in dict.fromkeys([part.root, str(copied)]):  # the copy first, the rest of the folder behind it
            if folder in sys.path:
                sys.path.remove(folder)
            sys.path.insert(0, folder)
        _forget(part, copied)


def _is(file: Path, sha256: str) -> bool:
    try:
        return _sha256(file) == sha256
    except OSError:
        return False


def _forget(part: CodePlan, folder: Path) -> None:
    """Modules of these names that were imported from elsewhere are imported anew."""
    for name in part.files:
        module = ".".join(Path(name).with_suffix("").parts).removesuffix(".__init__")
        known = sys.modules.get(module)
        file = getattr(known, "__file__", None)
        if known is not None and file is not None and Path(file).resolve() != (folder / name).resolve():
            del sys.modules[module]
