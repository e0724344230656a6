"""Which statements of a Python file only one rank reaches, and the collectives among them.

A collective that not every rank calls never returns on those that do, until the process group's time-out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from headway.check.scripts.collectives import Collective, collective
from headway.check.scripts.names import Names
from headway.check.scripts.sides import Side, Sides, opposite

# Functions under these run on rank 0 alone.
_DECORATORS = {
    *("rank_zero_only", "rank0_only", "rank_0_only", "master_only", "main_process_only", "on_main_process"),
    *("on_local_main_process", "on_process", "on_local_process", "on_last_process"),
}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Guarded:
    """One collective that only one side reaches."""

    name: str  # "dist.barrier", "model_engine.save_checkpoint"
    line: int
    side: Side
    via: str = ""  # the local function that holds it
    within: str = ""  # the class or the function that the call stands in
    sharded: bool = False  # a collective only where the weights are sharded


@dataclass
class _Reader(ast.NodeVisitor):
    names: Names
    tests: Sides
    inside: dict[str, Collective] = field(default_factory=dict[str, Collective])  # "save", "Trainer.save"
    found: list[Guarded] = field(default_factory=list[Guarded])
    sides: list[Side] = field(default_factory=list[Side])
    owner: str = ""  # the class that is read
    within: str = ""  # the function that is read
    function: _Function | None = None  # only its own calls are wanted, those that all ranks reach
    free: list[Collective] = field(default_factory=list[Collective])

    def block(self, statements: list[ast.stmt]) -> None:
        """Statements in order: after `if rank != 0: return` the rest of the block is the first rank's."""
        del self.sides[len(self.sides) - self._in_order(statements) :]

    def _in_order(self, statements: list[ast.stmt]) -> int:
        """How many sides the statements entered that hold for what follows them as well."""
        entered = 0
        for statement in statements:
            if isinstance(statement, ast.With | ast.AsyncWith):
                for item in statement.items:
                    self.visit(item)
                entered += self._in_order(statement.body)  # who left inside it has left it
                continue
            self.visit(statement)
            if isinstance(statement, ast.If) and not statement.orelse and _leaves(statement.body):
                side = opposite(self.tests.side(statement.test))
                # `if rank == 0 and x: return` still lets rank 0 pass where x is false.
                if side is not None and not self.tests.is_partial(statement.test):
                    self.sides.append(side)
                    entered += 1
        return entered

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        if self.function is not None and _asks_for(node.test, self.function):
            return  # what the caller chose by an argument
        side, other = self._both(node.test)
        self._under(side, node.body)
        self._under(other, node.orelse)

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._under(self.tests.side(node.test), node.body)
        self._under(None, node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        side, other = self._both(node.test)
        self._under(side, [ast.Expr(node.body)])
        self._under(other, [ast.Expr(node.orelse)])

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """`rank == 0 and dist.barrier()`: what follows a test is reached by its ranks alone."""
        entered = 0
        for value in node.values:
            self.visit(value)
            side, other = self._both(value)
            reached = side if isinstance(node.op, ast.And) else other
            if reached is not None:
                self.sides.append(reached)
                entered += 1
        del self.sides[len(self.sides) - entered :]

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        for case in node.cases:
            value = case.pattern.value if isinstance(case.pattern, ast.MatchValue) else None
            test = ast.Compare(node.subject, [ast.Eq()], [value]) if value is not None else None
            self._under(self.tests.side(test) if test is not None else None, case.body)

    def _both(self, test: ast.expr) -> tuple[Side | None, Side | None]:
        """The ranks that a test lets in, and those that it keeps out."""
        side = self.tests.side(test)
        return side, None if self.tests.is_partial(test) else opposite(side)

    def _under(self, side: Side | None, statements: list[ast.stmt]) -> None:
        if side is not None:
            self.sides.append(side)
        self.block(statements)
        if side is not None:
            self.sides.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self.owner = self.owner, node.name
        self.generic_visit(node)
        self.owner = outer

    def visit_FunctionDef(self, node: _Function) -> None:
        if self.function is not None:
            return  # defined here, and called elsewhere
        kept, outer, only = self.sides, self.within, _is_for_the_first(node)
        self.sides, self.within = [], f"{outer}.{node.name}:{node.lineno}"
        if only:
            self.sides.append("first")
        self.block(node.body)
        self.sides, self.within = kept, outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Runs elsewhere."""

    def generic_visit(self, node: ast.AST) -> None:
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self.block(value)
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST):
                        self.visit(item)
            elif isinstance(value, ast.AST) and name != "annotation":
                self.visit(value)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        said, via = collective(self.names, node), ""
        if said is None and (via := self._called(node.func)):
            said = self.inside[via]
        if said is None:
            return
        if self.sides:
            name = via.rpartition(".")[2]
            self.found.append(
                Guarded(said.name, node.lineno, self.sides[-1], name, self.owner or self.within, said.sharded)
            )
        elif self.function is not None:
            self.free.append(said)

    def _called(self, function: ast.expr) -> str:
        """The key of a function of this file that holds a collective; '' for others."""
        match function:
            case ast.Name(id=name):
                key = name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if self.owner:
                key = f"{self.owner}.{name}"
            case _:
                return ""
        return key if key in self.inside else ""


def _is_for_the_first(node: _Function) -> bool:
    marks = (mark.func if isinstance(mark, ast.Call) else mark for mark in node.decorator_list)
    return any(ast.unparse(mark).rpartition(".")[2] in _DECORATORS for mark in marks)


def _asks_for(test: ast.expr, function: _Function) -> bool:
    """Whether a test reads an argument of the function: `if distributed: dist.all_reduce(...)`."""
    arguments = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)} - {"self", "rank"}
    return any(isinstance(node, ast.Name) and node.id in arguments for node in ast.walk(test))


def _leaves(body: list[ast.stmt]) -> bool:
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ast.unparse(last.value.func) in ("sys.exit", "exit", "quit", "os._exit")
    return isinstance(last, ast.Return | ast.Raise | ast.Continue | ast.Break)


def _functions(tree: ast.Module) -> Iterator[tuple[str, _Function, str]]:
    """(key, function, its class) of all functions: `save`, `Trainer.save`."""
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, owner = stack.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _Function):
                yield (f"{owner}.{child.name}" if owner else child.name), child, owner
            inner = child.name if isinstance(child, ast.ClassDef) else "" if isinstance(child, _Function) else owner
            stack.append((child, inner))


def _inside(names: Names, tests: Sides, tree: ast.Module) -> dict[str, Collective]:
    """Functions of this file that come to a collective on every rank that calls them, by themselves or through others.

    A name that stands for several functions counts where all of them do.
    """
    by_key: dict[str, list[tuple[_Function, str]]] = {}
    for key, function, owner in _functions(tree):
        by_key.setdefault(key, []).append((function, owner))
    found: dict[str, Collective] = {}
    while True:
        before = len(found)
        for key, functions in by_key.items():
            if key in found:
                continue
            said = [_first_free(names, tests, found, function, owner) for function, owner in functions]
            if all(said) and said[0] is not None:
                found[key] = said[0]
        if len(found) == before:
            return found


def _first_free(
    names: Names, tests: Sides, inside: dict[str, Collective], function: _Function, owner: str
) -> Collective | None:
    if _is_for_the_first(function):
        return None
    reader = _Reader(names, tests, inside, owner=owner, function=function)
    reader.block(function.body)
    return next(iter(reader.free), None)


def one_sided(tree: ast.Module, names: Names) -> list[Guarded]:
    """Collectives that only the first rank, or only the others, reach.

    A pair is no fault: the others wait at a barrier that the first rank enters later, in the same function or class.
    """
    tests = Sides(names, tree)
    reader = _Reader(names, tests, _inside(names, tests, tree))
    reader.block(tree.body)
    paired = {(item.name.rpartition(".")[2], item.side, item.within) for item in reader.found}
    alone = [
        item for item in reader.found if (item.name.rpartition(".")[2], opposite(item.side), item.within) not in paired
    ]
    # Where the others wait, rank 0 may come to the same collective in a function that it hands on.
    return [item for item in alone if item.side == "first" or not _in_callback(names, tree, item)]


def _in_callback(names: Names, tree: ast.Module, item: Guarded) -> bool:
    name = item.name.rpartition(".")[2]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    nested = [node for outer in functions for node in ast.walk(outer) if node is not outer and node in functions]
    inner = (call for node in nested for call in ast.walk(node) if isinstance(call, ast.Call))
    return any((said := collective(names, call)) and said.name.rpartition(".")[2] == name for call in inner)
