"""The options of a script and their defaults, whichever package reads them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

# Calls that make a command of a function: its parameters are the options.
_RUN_A_FUNCTION = {
    *("fire.Fire", "typer.run", "tyro.cli", "jsonargparse.CLI", "jsonargparse.auto_cli", "defopt.run", "plac.call"),
    "Fire",
}
_DECORATORS = {"command", "option", "argument"}  # click, typer
_OF_CLASSES = {"HfArgumentParser", "TrlParser", "ArgumentParser", "parse", "cli", "wrap"}
_Dotted = Callable[[ast.expr], str | None]


def read_options(tree: ast.Module, dotted: _Dotted) -> tuple[dict[str, object], set[str]]:
    """(option -> default, parameters of functions that are commands). A default that is computed is its source."""
    found: dict[str, object] = {}
    parameters: set[str] = set()
    commands = {
        ast.unparse(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args and dotted(node.func) in _RUN_A_FUNCTION
    }
    made = {(dotted(node.func) or "").rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument" | "option")):
                found |= {name: _default(_keyword(node, "default")) for name in _names(node)}
            case ast.Call(func=ast.Attribute(attr=method), args=[ast.Constant(value=str(name)), default, *_]) if (
                method.startswith("DEFINE_")  # absl
            ):
                found[name] = _default(default)
            case ast.FunctionDef() if node.name in commands or _DECORATORS & set(_marks(node)):
                written = dict(_parameters(node))
                parameters |= written.keys()
                found |= {name: default for name, default in written.items() if default is not ...}
            case ast.ClassDef() if made & _OF_CLASSES and _is_plain(node):
                found |= dict(_fields(node))
            case _:
                continue
    return found, parameters


def _names(call: ast.Call) -> Iterator[str]:
    for argument in call.args:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield argument.value.lstrip("-").replace("-", "_")


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((word.value for word in call.keywords if word.arg == name), None)


def _default(node: ast.expr | None) -> object:
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def _marks(node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    """The last names of its decorators: `command` of `@app.command()`."""
    for mark in node.decorator_list:
        named = mark.func if isinstance(mark, ast.Call) else mark
        if isinstance(named, ast.Attribute | ast.Name):
            yield named.attr if isinstance(named, ast.Attribute) else named.id


def _parameters(node: ast.FunctionDef) -> Iterator[tuple[str, object]]:
    """Name and default; `...` where the signature has none: click's decorator says it."""
    arguments = [*node.args.posonlyargs, *node.args.args]
    without = len(arguments) - len(node.args.defaults)
    pairs = zip(
        (*arguments, *node.args.kwonlyargs),
        (*[None] * without, *node.args.defaults, *node.args.kw_defaults),
        strict=True,
    )
    for argument, default in pairs:
        if isinstance(default, ast.Call) and ast.unparse(default.func).endswith("Option"):  # typer.Option(-1)
            default = default.args[0] if default.args else _keyword(default, "default")
        yield argument.arg, ... if default is None else _default(default)


def _is_plain(node: ast.ClassDef) -> bool:
    """A dataclass of options. transformers' TrainingArguments reads LOCAL_RANK itself, and so do its children."""
    return "dataclass" in set(_marks(node)) and not any("TrainingArguments" in ast.unparse(b) for b in node.bases)


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, object]]:
    for statement in node.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call() as call):  # field(default=-1)
                yield name, _default(_keyword(call, "default"))
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                yield name, _default(value)
            case _:
                continue
