"""Which statements of a Python file only one rank reaches, and the collectives among them.

A collective that not every rank calls never returns on those that do, until the process group's time-out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from headway.check.scripts.names import Names, is_zero

Side = Literal["first", "others"]

RANKS = {"rank", "local_rank", "global_rank", "world_rank", "proc_rank", "process_index", "local_process_index"}
_RANK_CALLS = {"get_rank", "get_local_rank", "get_global_rank", "get_world_rank"}
_FIRST = {
    *("is_main_process", "is_local_main_process", "is_world_process_zero", "is_local_process_zero", "is_rank_0"),
    *(
        "is_rank0",
        "is_first_rank",
        "is_global_zero",
        "is_master",
        "is_master_process",
        "main_process",
        "master_process",
    ),
    "is_rank_zero",
}
_COLLECTIVES = {
    *("barrier", "monitored_barrier", "all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor"),
    *("broadcast", "broadcast_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor", "gather"),
    *("gather_object", "scatter", "scatter_object_list", "all_to_all", "all_to_all_single", "new_group"),
}
_GROUP_MODULES = ("torch.distributed", "deepspeed.comm")
# Methods of DeepSpeed's engine in which all ranks take part; its save writes a part on each rank.
_ENGINE = {
    *("save_checkpoint", "load_checkpoint", "save_16bit_model", "save_fp16_model", "backward", "step"),
    *("train_batch", "eval_batch"),
}
_WAITS = {"wait_for_everyone"}
# Functions under these run on rank 0 alone.
_DECORATORS = {"rank_zero_only", "rank0_only", "rank_0_only", "master_only", "main_process_only", "on_main_process"}


@dataclass(frozen=True)
class Guarded:
    """One collective that only one side reaches."""

    name: str  # "dist.barrier", "model_engine.save_checkpoint"
    line: int
    side: Side
    scope: str
    via: str = ""  # the local function that holds it


@dataclass
class _Reader(ast.NodeVisitor):
    names: Names
    tree: ast.Module
    flags: dict[str, Side] = field(default_factory=dict[str, Side])  # is_main = rank == 0
    found: list[Guarded] = field(default_factory=list[Guarded])
    inside: dict[str, str] = field(default_factory=dict[str, str])  # local function -> a collective that it calls
    sides: list[Side] = field(default_factory=list[Side])
    scope: str = ""

    def block(self, statements: list[ast.stmt]) -> None:
        """Statements in order: after `if rank != 0: return` the rest of the block is the first rank's."""
        entered = 0
        for statement in statements:
            self.visit(statement)
            if isinstance(statement, ast.If) and not statement.orelse and _leaves(statement.body):
                side = self.side(statement.test)
                # `if rank == 0 and x: return` still lets rank 0 pass where x is false.
                if side is not None and not _is_partial(statement.test):
                    self.sides.append("others" if side == "first" else "first")
                    entered += 1
        del self.sides[len(self.sides) - entered :]

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        side = self.side(node.test)
        self._under(side, node.body)
        partial = side is None or _is_partial(node.test)
        self._under(None if partial else ("others" if side == "first" else "first"), node.orelse)

    def _under(self, side: Side | None, statements: list[ast.stmt]) -> None:
        if side is not None:
            self.sides.append(side)
        self.block(statements)
        if side is not None:
            self.sides.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        only = any(
            ast.unparse(mark).rpartition(".")[2].partition("(")[0] in _DECORATORS for mark in node.decorator_list
        )
        kept = self.sides
        self.sides = []
        if only:
            self.sides.append("first")
        scope, self.scope = self.scope, f"{self.scope}.{node.name}"
        self.block(node.body)
        self.sides, self.scope = kept, scope

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
        if not self.sides:
            return
        said = self.collective(node)
        via = ""
        if said is None and isinstance(node.func, ast.Name) and node.func.id in self.inside:
            said, via = self.inside[node.func.id], node.func.id
        if said is not None:
            self.found.append(Guarded(said, node.lineno, self.sides[-1], self.scope, via))

    def collective(self, node: ast.Call) -> str | None:
        """How the file writes this call, where all ranks must take part in it."""
        full = self.names.dotted(node.func)
        if full is None or any(word.arg == "group" for word in node.keywords):
            return None  # a group of its own may hold only the ranks that come here
        module, _, last = full.rpartition(".")
        if last == "barrier" and node.args:
            return None  # the same: its first argument is the group
        if module.startswith(_GROUP_MODULES) and last in _COLLECTIVES:
            return ast.unparse(node.func)
        if isinstance(node.func, ast.Attribute):
            own = self.names.is_engine(node.func.value) or self.names.is_engines_save(node)
            if last in _ENGINE and own:
                return ast.unparse(node.func)
            if last == "state_dict" and ast.unparse(node.func.value) in self.names.sharded:
                return ast.unparse(node.func)
            if last in _WAITS:
                return ast.unparse(node.func)
        return None

    # --- tests of the rank ---------------------------------------------------------------------------------------

    def side(self, test: ast.expr) -> Side | None:
        """Which ranks the test lets in; None where it does not restrict them."""
        match test:
            case ast.UnaryOp(op=ast.Not()):
                if self.is_rank(test.operand):
                    return "first"
                inner = None if _is_partial(test.operand) else self.side(test.operand)
                return _opposite(inner)
            case ast.BoolOp(op=ast.And()):
                return next((side for value in test.values if (side := self.side(value)) is not None), None)
            case ast.BoolOp(op=ast.Or()):
                return self._either(test.values)
            case ast.Compare(ops=[op], comparators=[right]):
                return self._compared(test.left, op, right)
            case ast.Call():
                return self.side(test.func)
            case ast.Attribute(attr=name) | ast.Name(id=name):
                return self.flags[name] if name in self.flags else _first_by_name(name)
            case _:
                return None

    def _either(self, values: list[ast.expr]) -> Side | None:
        """`rank == 0 or not distributed`: one side only where every other part means a single process."""
        sides: list[Side | None] = [self.side(value) for value in values]
        known = [side for side in sides if side is not None]
        rest = [value for value, side in zip(values, sides, strict=True) if side is None]
        if len(set(known)) != 1 or not all(_means_single(value) for value in rest):
            return None
        return "first" if "first" in known else "others"

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Side | None:
        if not self.is_rank(left) and self.is_rank(right):
            left, right = right, left
        if not self.is_rank(left):
            return None
        if is_zero(right):
            if isinstance(op, ast.Eq | ast.LtE | ast.Is):
                return "first"
            return "others" if isinstance(op, ast.NotEq | ast.Gt | ast.IsNot) else None
        if isinstance(right, ast.Tuple | ast.List | ast.Set) and any(is_zero(item) for item in right.elts):
            values = {ast.unparse(item) for item in right.elts}
            if values <= {"0", "-1"}:
                if isinstance(op, ast.In):
                    return "first"
                return "others" if isinstance(op, ast.NotIn) else None
        return None

    def is_rank(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name.lower() in RANKS
            case ast.Call(func=ast.Name(id="int"), args=[inner]):
                return self.is_rank(inner)
            case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
                if name in ("get", "getenv") and node.args:
                    return isinstance(node.args[0], ast.Constant) and node.args[0].value in ("RANK", "LOCAL_RANK")
                return name in _RANK_CALLS
            case ast.Subscript(slice=ast.Constant(value=key)):
                return key in ("RANK", "LOCAL_RANK")
            case _:
                return False


def _opposite(side: Side | None) -> Side | None:
    return None if side is None else "others" if side == "first" else "first"


def _first_by_name(name: str) -> Side | None:
    return "first" if name.lower() in _FIRST else None


def _is_partial(test: ast.expr) -> bool:
    """`rank == 0 and due`: its opposite lets rank 0 in as well."""
    return isinstance(test, ast.BoolOp)


def _means_single(node: ast.expr) -> bool:
    """`local_rank == -1`, `not dist.is_initialized()`, `world_size == 1`, `not args.distributed`."""
    text = ast.unparse(node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return any(word in text for word in ("initialized", "available", "distributed", "ddp", "multi"))
    return "== -1" in text or (("world_size" in text or "n_gpu" in text) and ("== 1" in text or "<= 1" in text))


def _leaves(body: list[ast.stmt]) -> bool:
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ast.unparse(last.value.func) in ("sys.exit", "exit", "quit", "os._exit")
    return isinstance(last, ast.Return | ast.Raise | ast.Continue | ast.Break)


def _assigned_flags(reader: _Reader) -> Iterator[tuple[str, Side]]:
    """Names that hold a rank test: `is_main = dist.get_rank() == 0`."""
    for node in ast.walk(reader.tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            name = (
                target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""
            )
            if name and isinstance(node.value, ast.Compare | ast.BoolOp | ast.UnaryOp):
                side = reader.side(node.value)
                if side is not None:
                    yield name, side


def _inside(reader: _Reader) -> dict[str, str]:
    """Local functions that call a collective on every path that reaches it: not below a test of the rank."""
    found: dict[str, str] = {}
    functions = [node for node in reader.tree.body if isinstance(node, ast.FunctionDef)]
    for function in functions:
        both = _Reader(reader.names, reader.tree, reader.flags)
        both.scope = function.name
        both.sides = []
        both.block(function.body)
        guarded = {item.line for item in both.found}
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and node.lineno not in guarded and (said := reader.collective(node)):
                found.setdefault(function.name, said)
    return found


def one_sided(tree: ast.Module, names: Names) -> list[Guarded]:
    """Collectives that only the first rank, or only the others, reach.

    A pair is no fault: the others wait at a barrier that the first rank enters later, in the same file.
    """
    reader = _Reader(names, tree)
    reader.flags = dict(_assigned_flags(reader))
    reader.inside = _inside(reader)
    reader.block(tree.body)
    paired = {(item.name.rpartition(".")[2], item.side) for item in reader.found}
    opposite: dict[Side, Side] = {"first": "others", "others": "first"}
    alone = [item for item in reader.found if (item.name.rpartition(".")[2], opposite[item.side]) not in paired]
    # Where the others wait, rank 0 may come to the same collective in a function that it hands on.
    return [item for item in alone if item.side == "first" or not _in_callback(reader, item)]


def _in_callback(reader: _Reader, item: Guarded) -> bool:
    name = item.name.rpartition(".")[2]
    functions = [node for node in ast.walk(reader.tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    nested = [node for outer in functions for node in ast.walk(outer) if node is not outer and node in functions]
    inner = (call for node in nested for call in ast.walk(node) if isinstance(call, ast.Call))
    return any((said := reader.collective(call)) and said.rpartition(".")[2] == name for call in inner)
