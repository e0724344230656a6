"""Which ranks a test lets in: `if rank == 0`, `if not rank`, `if accelerator.is_main_process`, or a flag of these."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from headway.check.scripts.names import Names

Side = Literal["first", "others"]

RANKS = {
    "rank",
    "ddp_rank",
    "ddp_local_rank",
    "dist_rank",
    "local_rank",
    "global_rank",
    "world_rank",
    "proc_rank",
    "process_index",
    "local_process_index",
}
_RANK_CALLS = {"get_rank", "get_local_rank", "get_global_rank", "get_world_rank", "get_node_local_rank"}
_VARIABLES = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK"}
# Owners whose `rank` is the width of a matrix.
_WIDTHS = ("lora", "peft", "adapter", "matrix", "tensor", "config", "cfg", "svd")
_FIRST = {
    *("is_main_process", "is_local_main_process", "is_world_process_zero", "is_local_process_zero", "is_rank_0"),
    *("is_rank0", "is_rank_zero", "is_first_rank", "is_global_zero", "is_master", "is_master_process"),
    *("main_process", "master_process"),
}
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
}


@dataclass
class Sides:
    """Reads tests of one file. `flags`: names that hold a test of the rank, `is_main = rank == 0`."""

    names: Names
    tree: ast.Module
    flags: dict[str, Side] = field(default_factory=dict[str, Side])
    widths: set[str] = field(default_factory=set[str])  # names that are a number of another kind: rank = 16

    def __post_init__(self) -> None:
        self.widths = {name for name in ("rank", "world_rank") if _is_a_width(self.tree, name)}
        self.flags = dict(_flags(self))

    def side(self, test: ast.expr) -> Side | None:
        """Which ranks the test lets in; None where it does not restrict them."""
        if self.is_rank(test):
            return "others"  # `if rank:`
        match test:
            case ast.UnaryOp(op=ast.Not()):
                if self.is_rank(test.operand):
                    return "first"
                return None if self.is_partial(test.operand) else opposite(self.side(test.operand))
            case ast.BoolOp(op=ast.And()):
                return next((side for value in test.values if (side := self.side(value)) is not None), None)
            case ast.BoolOp(op=ast.Or()):
                return self._either(test.values)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compared(left, op, right)
            case ast.Call():
                return self.side(test.func)
            case ast.Attribute(attr=name) | ast.Name(id=name):
                return self.flags[name] if name in self.flags else _first_by_name(name)
            case _:
                return None

    def is_partial(self, test: ast.expr) -> bool:
        """`rank == 0 and due`, `rank == 3`: the opposite of such a test lets rank 0 in as well."""
        if isinstance(test, ast.BoolOp):
            return True
        match test:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                return self._number(right if self.is_rank(left) else left) not in (0, None)
            case _:
                return False

    def _either(self, values: list[ast.expr]) -> Side | None:
        """`rank == 0 or not distributed`: one side only where every other part means a single process."""
        sides: list[Side | None] = [self.side(value) for value in values]
        known = [side for side in sides if side is not None]
        rest = [value for value, side in zip(values, sides, strict=True) if side is None]
        if len(set(known)) != 1 or not all(_means_single(value) for value in rest):
            return None
        return "first" if "first" in known else "others"

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Side | None:
        kind = type(op)
        if not self.is_rank(left) and self.is_rank(right):
            left, right, kind = right, left, _MIRRORED.get(kind, kind)
        if not self.is_rank(left):
            return None
        number = self._number(right)
        if number is not None:
            return _against(kind, number)
        if isinstance(right, ast.Tuple | ast.List | ast.Set):
            values = {self._number(item) for item in right.elts}
            if 0 in values and values <= {0, -1}:
                return {ast.In: "first", ast.NotIn: "others"}.get(kind)  # pyright: ignore[reportReturnType]
        return None

    def _number(self, node: ast.expr) -> int | None:
        """0, -1, and "0" of an environment variable."""
        match node:
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int(number)):
                return number
            case ast.Constant(value=str(text)) if text.isdecimal():
                return int(text)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
                return -number
            case _:
                return None

    def is_rank(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(id=name):
                return name.lower() in RANKS and name not in self.widths
            case ast.Attribute(attr=name, value=owner):
                width = name.lower() == "rank" and any(word in ast.unparse(owner).lower() for word in _WIDTHS)
                return name.lower() in RANKS and not width
            case ast.NamedExpr(value=inner) | ast.Call(func=ast.Name(id="int"), args=[inner]):
                return self.is_rank(inner)
            case ast.Call(func=function):
                last = (self.names.dotted(function) or "").rpartition(".")[2]
                if last in ("get", "getenv") and node.args:
                    return isinstance(node.args[0], ast.Constant) and node.args[0].value in _VARIABLES
                return last in _RANK_CALLS
            case ast.Subscript(slice=ast.Constant(value=key)):
                return key in _VARIABLES
            case _:
                return False


def opposite(side: Side | None) -> Side | None:
    return None if side is None else "others" if side == "first" else "first"


def _against(kind: type[ast.cmpop], number: int) -> Side | None:
    """`rank KIND number`."""
    if (kind in (ast.Eq, ast.Is) and number == 0) or (kind, number) in ((ast.LtE, 0), (ast.Lt, 1)):
        return "first"
    if (kind in (ast.NotEq, ast.IsNot) and number == 0) or (kind, number) in ((ast.Gt, 0), (ast.GtE, 1)):
        return "others"
    return "others" if kind is ast.Eq and number > 0 else None  # one of the others


def _first_by_name(name: str) -> Side | None:
    return "first" if name.lower() in _FIRST else None


def _means_single(node: ast.expr) -> bool:
    """`local_rank == -1`, `not dist.is_initialized()`, `world_size == 1`, `not args.distributed`."""
    text = ast.unparse(node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return any(word in text for word in ("initialized", "available", "distributed", "ddp", "multi"))
    return "== -1" in text or (("world_size" in text or "n_gpu" in text) and ("== 1" in text or "<= 1" in text))


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Every name or attribute with what it is assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        if isinstance(target, ast.Name | ast.Attribute):
            yield target.id if isinstance(target, ast.Name) else target.attr, value


def _is_a_width(tree: ast.Module, name: str) -> bool:
    """Whether all that the name is ever assigned is the width of a matrix: 16, lora_rank, matrix_rank(x)."""
    values = [value for assigned, value in _assigned(tree) if assigned == name]
    of_widths = [
        (isinstance(value, ast.Constant) and isinstance(value.value, int) and value.value > 0)
        or any(word in ast.unparse(value).lower() for word in ("lora", "matrix_rank", "svd"))
        for value in values
    ]
    return bool(of_widths) and all(of_widths)


def _flags(sides: Sides) -> Iterator[tuple[str, Side]]:
    """Names that hold a test of the rank wherever they are assigned, and functions that return one."""
    told: dict[str, set[Side | None]] = {}
    for name, value in _assigned(sides.tree):
        test = isinstance(value, ast.Compare | ast.BoolOp | ast.UnaryOp)
        told.setdefault(name, set()).add(sides.side(value) if test else None)
    for node in ast.walk(sides.tree):
        if isinstance(node, ast.FunctionDef):
            returned = [one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value is not None]
            tests = [isinstance(value, ast.Compare | ast.BoolOp | ast.UnaryOp) for value in returned]
            if returned and all(tests):
                told.setdefault(node.name, set()).update(sides.side(value) for value in returned)
    for name, found in told.items():
        side = next(iter(found))
        if len(found) == 1 and side is not None:
            yield name, side
