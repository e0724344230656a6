"""A device that is chosen by --local_rank, which the deepspeed launcher passes and torchrun does not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from headway.check.scripts.code import Code
from headway.check.scripts.material import Fault
from headway.check.scripts.names import calls

_READS = re.compile(r"""environ(?:\.get\(|\[)\s*["']LOCAL_RANK|getenv\(\s*["']LOCAL_RANK|get_local_rank\(""")
_CHOOSE = {"set_device", "device", "device_name", "cuda", "to", "DistributedDataParallel", "DDP"}
_OPTIONS = re.compile(r"(?:^|[._])(?:\w*args|opts?|options|hparams|params|config|cfg|conf|flags)$", re.IGNORECASE)


def local_rank(code: Code) -> Iterator[Fault]:
    """--local_rank comes from the deepspeed launcher only; torchrun sets LOCAL_RANK."""
    if "local_rank" not in code.names.defaults or _READS.search(code.script.text):
        return
    default = code.names.defaults["local_rank"]
    uses = [(node, guarded) for node, guarded in _uses(code) if code.beside.torchrun or not guarded]
    if not uses:
        return
    node, _ = uses[0]
    starts = f" ({code.beside.torchrun[0]})" if code.beside.torchrun else ""
    what = (
        f"torchrun passes no --local_rank{starts}: it stays {default}, so every rank uses GPU 0"
        if default in (-1, 0, None)
        else f"torchrun passes no --local_rank{starts}: it stays {default} on every rank"
    )
    what += "" if code.beside.torchrun else "; only the deepspeed launcher passes it"
    fix = 'local_rank = int(os.environ["LOCAL_RANK"])  # set by torchrun and by deepspeed'
    yield Fault("local-rank", node.lineno, what, fix, must=bool(code.beside.torchrun))


def _uses(code: Code) -> Iterator[tuple[ast.expr, bool]]:
    """Where a device is chosen by the option; whether a test for -1 stands above it."""
    copies = _copies(code)
    for node, above in _with_parents(code.tree):
        if isinstance(node, ast.JoinedStr):
            texts = [part.value for part in node.values if isinstance(part, ast.Constant)]
            values: list[ast.expr] = [node] if any(str(text).endswith("cuda:") for text in texts) else []
        elif isinstance(node, ast.Call):
            if (code.names.dotted(node.func) or "").rpartition(".")[2] not in _CHOOSE:
                continue
            values = [*node.args, *(word.value for word in node.keywords)]
        else:
            continue
        if any(_is_option(part, copies) for value in values for part in ast.walk(value)):
            yield node, any(_tests_it(parent) for parent in above)


def _copies(code: Code) -> set[str]:
    """Names that are the option and never anything else: copies, parameters that are given it, a command's own."""
    tree = code.tree
    assigned = [(ast.unparse(t), n.value) for n in ast.walk(tree) if isinstance(n, ast.Assign) for t in n.targets]
    names = [name for name, _ in assigned] + [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]
    copies = {name for name, value in assigned if _is_option(value, set()) and names.count(name) == 1}
    own = {"local_rank"} & code.names.parameters
    return copies | {name for name in (*_given(tree), *own) if names.count(name) == 1}


def _given(tree: ast.Module) -> Iterator[str]:
    """Parameters of local functions that a call hands the option to."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for call in calls(tree):
        function = functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if function is None:
            continue
        by_place = zip(function.args.args, call.args, strict=False)
        yield from (argument.arg for argument, value in by_place if _is_option(value, set()))
        yield from (word.arg for word in call.keywords if word.arg and _is_option(word.value, set()))


def _is_option(node: ast.AST, copies: set[str]) -> bool:
    """`args.local_rank`, `self.args.local_rank`, `vars(args)["local_rank"]`, `getattr(args, "local_rank", -1)`."""
    match node:
        case ast.Name(id=name):
            return name in copies
        case ast.Attribute(attr="local_rank", value=owner):  # not an engine's, a trainer's, an accelerator's own
            return _OPTIONS.search(ast.unparse(owner)) is not None or ast.unparse(node) in copies
        case ast.Subscript(slice=ast.Constant(value="local_rank"), value=owner):
            return ast.unparse(owner).startswith("vars(") or ast.unparse(owner).endswith(".__dict__")
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value="local_rank"), *_]):
            return True
        case _:
            return False


def _tests_it(node: ast.AST) -> bool:
    test = node.test if isinstance(node, ast.If | ast.IfExp) else None
    return test is not None and "local_rank" in ast.unparse(test)


def _with_parents(tree: ast.AST) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    stack: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(tree, ())]
    while stack:
        node, above = stack.pop()
        yield node, above
        stack += [(child, (*above, node)) for child in ast.iter_child_nodes(node)]
