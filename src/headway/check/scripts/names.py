"""What the names of a Python file stand for: imported modules, DeepSpeed engines, argparse's defaults."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from headway.check.scripts.options import read_options

_OTHER_ENGINES = {"search", "sql", "db", "query", "config", "template", "render", "physics", "game", "args"}


@dataclass
class Names:
    """Read once from a file's tree."""

    tree: ast.Module
    aliases: dict[str, str] = field(default_factory=dict[str, str])  # dist -> torch.distributed
    engines: set[str] = field(default_factory=set[str])  # names that deepspeed.initialize was assigned to
    sharded: set[str] = field(default_factory=set[str])  # names that FSDP(...) was assigned to
    accelerators: set[str] = field(default_factory=set[str])  # names that accelerate.Accelerator(...) was assigned to
    trainers: set[str] = field(default_factory=set[str])  # names that transformers' Trainer or its like was assigned to
    defaults: dict[str, object] = field(default_factory=dict[str, object])  # of options: local_rank -> -1
    parameters: set[str] = field(default_factory=set[str])  # of commands: fire, typer and click hand them options
    replaced: set[str] = field(default_factory=set[str])  # methods that are assigned: accelerator.get_state_dict = f

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.aliases[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self.aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        self.defaults, self.parameters = read_options(self.tree, self.dotted)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign):
                self.replaced |= {ast.unparse(target) for target in node.targets if isinstance(target, ast.Attribute)}
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                made = (self.dotted(node.value.func) or "").rpartition(".")[2]
                targets = {ast.unparse(target) for target in node.targets}
                if made in ("FullyShardedDataParallel", "FSDP", "fully_shard"):
                    self.sharded |= targets
                elif made == "Accelerator":
                    self.accelerators |= targets
                elif made.endswith("Trainer") and self._uses("transformers", "trl"):
                    self.trainers |= targets
        for _, target in self.initialized():
            first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
            if first is not None:
                self.engines.add(ast.unparse(first))

    def dotted(self, node: ast.expr) -> str | None:
        """`dist.barrier` as `torch.distributed.barrier`; None for what is no chain of names."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            owner = self.dotted(node.value)
            return f"{owner}.{node.attr}" if owner else f"?.{node.attr}"
        return None

    def is_engine(self, node: ast.expr) -> bool:
        """Whether this is DeepSpeed's engine: assigned from initialize, or called so in a file that uses DeepSpeed."""
        text = ast.unparse(node)
        if text in self.engines:
            return True
        words = text.rpartition(".")[2].lower().split("_")
        return self._uses("deepspeed") and "engine" in words and not _OTHER_ENGINES & set(words)

    def runs_engine(self, function: ast.expr) -> bool:
        """Whether calling this runs DeepSpeed's engine, or what FSDP wraps: `engine(batch)`, `engine.generate(x)`."""
        text = ast.unparse(function)
        if text in self.engines | self.sharded:
            return True
        owner, _, last = text.rpartition(".")
        if last in ("forward", "generate", "module"):
            return owner.removesuffix(".module") in self.engines | self.sharded
        return self._uses("deepspeed") and last in ("engine", "model_engine", "ds_engine", "deepspeed_engine")

    def is_accelerator(self, node: ast.expr) -> bool:
        """Whether this is accelerate's Accelerator: assigned so, or called so in a file that uses accelerate."""
        text = ast.unparse(node)
        return text in self.accelerators or (self._uses("accelerate", "trl") and text.endswith("accelerator"))

    def _uses(self, *packages: str) -> bool:
        return any(full.partition(".")[0] in packages for full in self.aliases.values())

    def is_engines_save(self, call: ast.Call) -> bool:
        """`model.save_checkpoint(dir, client_state=...)` in a file that uses DeepSpeed: its engine's own words."""
        words = {word.arg for word in call.keywords}
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        return (
            self._uses("deepspeed")
            and method in ("save_checkpoint", "load_checkpoint")
            and bool(words & {"client_state", "tag"})
        )

    def initialized(self) -> Iterator[tuple[ast.Call, ast.expr | None]]:
        """Each call of deepspeed.initialize with what it is assigned to."""
        seen: set[int] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and self.is_initialize(node.value):
                seen.add(id(node.value))
                yield node.value, node.targets[0]
        for call in calls(self.tree):
            if id(call) not in seen and self.is_initialize(call):
                yield call, None

    def given(self, call: ast.Call, name: str) -> ast.expr | None:
        """An argument of deepspeed.initialize: by keyword, by position, or in a dict that is unpacked: `**kwargs`."""
        value = given(call, name)
        for word in call.keywords:
            if value is None and word.arg is None:
                value = self._items(word.value).get(name)
        return None if isinstance(value, ast.Constant) and value.value is None else value

    def _items(self, node: ast.expr) -> dict[str, ast.expr]:
        """A dict that the file writes out, with what the same block adds to it without a condition."""
        match node:
            case ast.Dict():
                pairs = zip(node.keys, node.values, strict=True)
                return {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
            case ast.Call(func=ast.Name(id="dict"), args=[]):
                return {word.arg: word.value for word in node.keywords if word.arg}
            case ast.Name(id=name):
                return self._built(name)
            case _:
                return {}

    def _built(self, name: str) -> dict[str, ast.expr]:
        """Of a name that is assigned once, and to such a dict."""
        items: dict[str, ast.expr] = {}
        begun = 0
        for block in _blocks(self.tree):
            inside = False
            for statement in block:
                match statement:
                    case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                        inside, begun = not isinstance(value, ast.Name), begun + 1
                        items |= self._items(value) if inside else {}
                    case _ if inside:
                        items |= self._added(name, statement)
                    case _:
                        continue
        return items if begun == 1 else {}

    def _added(self, name: str, statement: ast.stmt) -> dict[str, ast.expr]:
        """`kwargs["optimizer"] = adam`, `kwargs.update(optimizer=adam)`."""
        match statement:
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=target), slice=ast.Constant(value=key))]):
                return {str(key): statement.value} if target == name else {}
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="update", value=ast.Name(id=target))) as call):
                words = {word.arg: word.value for word in call.keywords if word.arg}
                return (self._items(call.args[0]) if call.args else {}) | words if target == name else {}
            case _:
                return {}

    def is_initialize(self, call: ast.Call) -> bool:
        return self.dotted(call.func) == "deepspeed.initialize"


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements."""
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value given for a keyword; None where it is absent or given as None."""
    value = next((word.value for word in call.keywords if word.arg == name), None)
    return None if isinstance(value, ast.Constant) and value.value is None else value


# What deepspeed.initialize takes by position.
_INITIALIZE = (
    *("args", "model", "optimizer", "model_parameters", "training_data", "lr_scheduler", "distributed_port", "mpu"),
    *("dist_init_required", "collate_fn", "config", "mesh_param", "config_params"),
)


def given(call: ast.Call, name: str) -> ast.expr | None:
    """An argument of deepspeed.initialize, by keyword or position; None where it is absent or given as None."""
    position = _INITIALIZE.index(name)
    if position < len(call.args) and not any(isinstance(arg, ast.Starred) for arg in call.args):
        value = call.args[position]
        return None if isinstance(value, ast.Constant) and value.value is None else value
    return keyword(call, name)
