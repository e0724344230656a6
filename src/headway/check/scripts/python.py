"""The faults of training scripts in Python. Each rule reads the syntax tree; nothing is imported or run."""

from __future__ import annotations

import ast
import json
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from headway.check.scripts.code import Beside, Code, Rule
from headway.check.scripts.local_rank import local_rank
from headway.check.scripts.material import Fault, Script
from headway.check.scripts.names import Names, calls, keyword
from headway.check.scripts.ranks import one_sided

_RANDOM = ("torch.rand", "torch.randn", "torch.randint", "torch.randperm", "torch.normal", "random.", "numpy.random.")
_DRAWN_IN_PLACE = ("normal_", "uniform_", "random_", "bernoulli_", "exponential_")
_SEEDS = ("manual_seed", "seed", "default_rng", "RandomState", "Generator", "fork_rng")
_RNG_WORDS = re.compile(r"(?<![a-z])rng|random_state|getstate\(|seed_state", re.IGNORECASE)


def judge(script: Script, beside: Beside) -> list[Fault]:
    """Every fault of one file, in the order of its lines; a file that is no Python is one fault."""
    try:
        tree = ast.parse(script.text)
        code = Code(script, tree, Names(tree), beside)
        return sorted((fault for rule in RULES for fault in rule(code)), key=lambda fault: fault.line)
    except RecursionError:
        what = "an expression of the file is nested too deeply to be read: nothing of the file was judged"
        return [Fault("syntax", 1, what, "split its longest expressions, or leave the file out", must=False)]
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        what = f"the file is no Python {platform.python_version()}: {getattr(error, 'msg', error)}"
        return [Fault("syntax", line, what, "correct this line")]


def rank_only(code: Code) -> Iterator[Fault]:
    whole = _weights_stay_whole(code)
    for found in one_sided(code.tree, code.names):
        if found.sharded and whole:
            continue
        who = "rank 0" if found.side == "first" else "the ranks other than 0"
        kind = "a collective where weights are sharded (ZeRO-3, FSDP)" if found.sharded else "a collective"
        what = f"{found.name} is {kind}, and only {who} comes to it"
        if found.via:
            what = f"{found.via}() calls {found.name}, {kind}, and only {who} comes to it"
        effect = "it waits for the other ranks until the process group's time-out, then the job fails"
        if found.name.endswith(("save_checkpoint", "load_checkpoint")):
            effect += "; every rank writes its own part of a DeepSpeed checkpoint"
        fix = "call it on every rank: move it out of the test of the rank, and keep only prints and small files inside"
        yield Fault("rank-only-collective", found.line, f"{what}: {effect}", fix, must=not found.sharded)


def _weights_stay_whole(code: Code) -> bool:
    """Whether every DeepSpeed config of the file is known, and of a stage below 3."""
    stages = [_stage(_config_of(code, call)[1]) for call, _ in code.names.initialized()]
    return bool(stages) and not code.names.sharded and all(stage is not None and stage < 3 for stage in stages)


def _stage(config: object) -> int | None:
    if not isinstance(config, dict):
        return None
    zero = cast("dict[str, Any]", config).get("zero_optimization", {})
    text = str(cast("dict[str, Any]", zero).get("stage", 0)) if isinstance(zero, dict) else ""
    return int(text) if text.isdecimal() else None


def config_twice(code: Code) -> Iterator[Fault]:
    """deepspeed.initialize asserts that args.deepspeed_config and config= are not both given."""
    added = "add_config_arguments" in code.script.text
    for call, _ in code.names.initialized():
        config = code.names.given(call, "config") or code.names.given(call, "config_params")
        if config is None or code.names.given(call, "args") is None:
            continue
        default = code.names.defaults.get("deepspeed_config")
        if default is not None or (added and ast.unparse(config).endswith(".deepspeed_config")):
            what = (
                "the config is given twice, by args.deepspeed_config and by config=: deepspeed.initialize stops with "
                "'Not sure how to proceed, we were given deepspeed configs in the deepspeed arguments and "
                "deepspeed.initialize() function call'"
            )
            yield Fault("config-twice", call.lineno, what, "leave out args= here, or config=")


def optimizer_twice(code: Code) -> Iterator[Fault]:
    for call, _ in code.names.initialized():
        own = code.names.given(call, "optimizer")
        if own is None:
            continue
        where, config = _config_of(code, call)
        if isinstance(config, dict) and config.get("optimizer"):
            named = cast("dict[str, Any]", config["optimizer"])
            kind = named.get("type", "an optimizer") if isinstance(named, dict) else "an optimizer"
            what = (
                f"an optimizer is passed in ({ast.unparse(own)}) and {where} names one too ({kind}): DeepSpeed takes "
                "the one passed in, and the learning rate, betas and decay of the file have no effect"
            )
            fix = f'remove "optimizer" from {where}, or remove optimizer= here'
            yield Fault("optimizer-twice", call.lineno, what, fix)


def _config_of(code: Code, call: ast.Call) -> tuple[str, object]:
    """(what it is called, the DeepSpeed config that a call uses); None where it cannot be read from here."""
    value = code.names.given(call, "config") or code.names.given(call, "config_params")
    path: object = code.names.defaults.get("deepspeed_config")
    name = ""
    if isinstance(value, ast.Name | ast.Attribute):
        name = value.id if isinstance(value, ast.Name) else value.attr
        assigned = _assigned(code.tree, name)
        path = code.names.defaults.get(name)
        value = assigned if assigned is not None else value
    if (written := _written(value)) is not None:
        added = _added_keys(code.tree, name) if name else {}
        return "config=", written | added
    if isinstance(value, ast.Constant):
        path = value.value
    beside = code.beside.configs
    if not isinstance(path, str):
        if len(beside) == 1:
            return str(beside[0]), read_json(beside[0])
        path = _only_json(code.tree)
    if not isinstance(path, str):
        return "", None
    named = [one for one in beside if one.name == Path(path).name]
    if named:
        return str(named[0]), read_json(named[0])
    folder = code.script.path.absolute().parent
    for base in (Path.cwd(), folder, folder.parent):
        if (base / path).is_file():
            return path, read_json(base / path)
    return path, None


def _only_json(tree: ast.Module) -> str | None:
    """The one JSON that the file opens or names: `config=json.load(open("ds.json"))`."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    found = [text for text in texts if text.endswith(".json") and " " not in text]
    return found[0] if len(found) == 1 else None


def _assigned(tree: ast.Module, name: str) -> ast.expr | None:
    """What a name was assigned, where it is assigned once and to a literal."""
    found = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
    ]
    told = found[0] if len(found) == 1 else None
    return told if isinstance(told, ast.Constant) or _written(told) is not None else None


def _written(node: ast.expr | None) -> dict[str, object] | None:
    """A dict's keys as far as they are written out, {...} or dict(...); what is computed counts as present."""
    match node:
        case ast.Dict():
            pairs = [(k.value, v) for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)]
        case ast.Call(func=ast.Name(id="dict"), args=[]):
            pairs = [(word.arg, word.value) for word in node.keywords]
        case _:
            return None
    return {
        key: ast.unparse(value) if (inner := _written(value)) is None else inner
        for key, value in pairs
        if isinstance(key, str)
    }


def _added_keys(tree: ast.Module, name: str) -> dict[str, object]:
    """`config["optimizer"] = {...}` after the config was written."""
    added: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Subscript):
            key = target.slice
            if ast.unparse(target.value) == name and isinstance(key, ast.Constant) and isinstance(key.value, str):
                inner = _written(node.value)
                added[key.value] = ast.unparse(node.value) if inner is None else inner
    return added


def read_json(path: Path) -> object:
    """A DeepSpeed JSON, read loosely (comments, trailing commas, a BOM); None where even that fails."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    text = re.sub(r'("(?:[^"\\]|\\.)*")|//[^\n]*|#[^\n]*|/\*.*?\*/', lambda m: m[1] or "", text, flags=re.DOTALL)
    text = re.sub(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', lambda m: m[1] or "", text)
    try:
        return json.loads(text)
    except ValueError:
        return None


def two_loaders(code: Code) -> Iterator[Fault]:
    for call, target in code.names.initialized():
        data = code.names.given(call, "training_data")
        if data is None:
            continue
        returned = target.elts[2] if isinstance(target, ast.Tuple) and len(target.elts) == 4 else None
        used = isinstance(returned, ast.Name) and _is_read(code.tree, returned.id)
        own = [
            one
            for one in calls(code.tree)
            if (code.names.dotted(one.func) or "").rpartition(".")[2] == "DataLoader"
            and _first_argument(one) == ast.unparse(data)
        ]
        if own and not used:
            what = (
                f"{ast.unparse(data)} is given to deepspeed.initialize(training_data=) and to an own DataLoader (line "
                f"{own[0].lineno}): DeepSpeed builds a second loader that nothing reads, and the batch size and "
                "sampler of the two can differ from what its config counts"
            )
            fix = "leave out training_data=, or use the loader that initialize returns and no DataLoader"
            yield Fault("two-loaders", call.lineno, what, fix)


def _first_argument(call: ast.Call) -> str:
    first = call.args[0] if call.args else keyword(call, "dataset")
    return ast.unparse(first) if first is not None else ""


def _is_read(tree: ast.Module, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in ast.walk(tree))


def no_set_epoch(code: Code) -> Iterator[Fault]:
    if re.search(r"\bprepare\(|prepare_data_loader\(", code.script.text) or not _has_epochs(code.tree):
        return
    samplers = list(_samplers(code))
    methods = [call.func for call in calls(code.tree) if isinstance(call.func, ast.Attribute)]
    told = [ast.unparse(method.value) for method in methods if method.attr == "set_epoch"]
    others = {name for name, _, _ in samplers}
    for name, call, held_out in samplers:
        shuffle = keyword(call, "shuffle")
        if held_out or (isinstance(shuffle, ast.Constant) and shuffle.value is False):
            continue
        if any(owner == name or owner not in others for owner in told):
            continue
        what = "no set_epoch on this sampler: every epoch has the order of the first"
        named = name if name.isidentifier() else "sampler"
        yield Fault("set-epoch", call.lineno, what, f"{named}.set_epoch(epoch) as the first line of the loop")
        return


def _samplers(code: Code) -> Iterator[tuple[str, ast.Call, bool]]:
    """(what it is assigned to or '', the call, whether its data is held out) of each DistributedSampler."""
    for node in ast.walk(code.tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.keyword | ast.Return) or node.value is None:
            continue
        for call in calls(node.value):
            if (code.names.dotted(call.func) or "").rpartition(".")[2] == "DistributedSampler":
                inside = isinstance(node, ast.Assign) and "DataLoader(" not in ast.unparse(node.value)
                name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
                words = f"{name} {_first_argument(call)}"
                held_out = re.search(r"eval|val|test|dev", words, re.IGNORECASE) is not None
                yield name if inside else "", call, held_out


def _has_epochs(tree: ast.Module) -> bool:
    """A loop that counts epochs by name, or one over a range with a loop over batches in it."""
    for loop in (node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)):
        head = f"{ast.unparse(loop.target)} {ast.unparse(loop.iter)}" if isinstance(loop, ast.For) else ""
        head = head or ast.unparse(loop.test) if isinstance(loop, ast.While) else head
        if "epoch" in head.lower():
            return True
        inner = [node for node in ast.walk(loop) if isinstance(node, ast.For) and node is not loop]
        if "range(" in head and any("loader" in ast.unparse(node.iter).lower() for node in inner):
            return True
    return False


def random_data(code: Code) -> Iterator[Fault]:
    """A data set whose samples are drawn, not read: the index has no part in them."""
    for node in ast.walk(code.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        yield from _drawn_stream(code, node)
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__getitem__" and len(method.args.args) == 2:
                drawn = [call for call in calls(method) if _draws(code.names, call)]
                index = method.args.args[1].arg
                reads = any(isinstance(n, ast.Name) and n.id == index for n in ast.walk(method))
                if drawn and not reads:
                    what = (
                        f"{node.name} draws its samples anew at each read and ignores the index: no epoch sees the "
                        "same data, ranks and runs differ, and a resumed run cannot repeat what it saw"
                    )
                    fix = (
                        f"generator = torch.Generator().manual_seed(seed + {index}), given to each call as "
                        "generator=generator; or draw all samples once in __init__"
                    )
                    yield Fault("random-data", drawn[0].lineno, what, fix, must=False)


def _drawn_stream(code: Code, node: ast.ClassDef) -> Iterator[Fault]:
    """An IterableDataset that yields what it draws, in a class that seeds nothing."""
    if not any("IterableDataset" in ast.unparse(base) for base in node.bases):
        return
    seeds = any((code.names.dotted(one.func) or "").rpartition(".")[2] in _SEEDS for one in calls(node))
    reads = re.search(r"open\(|self\.(?:data|files|paths|samples|dataset)", ast.unparse(node))
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__iter__" and not seeds and not reads:
            drawn = [call for call in calls(method) if _draws(code.names, call)]
            if drawn:
                what = f"{node.name} yields what it draws, without a seed: ranks, workers and runs differ, none repeats"
                fix = (
                    "generator = torch.Generator().manual_seed(seed + rank), given to each call as generator=generator"
                )
                yield Fault("random-data", drawn[0].lineno, what, fix, must=False)


def _draws(names: Names, call: ast.Call) -> bool:
    full = (names.dotted(call.func) or "").replace("np.random.", "numpy.random.")
    last = full.rpartition(".")[2]
    if isinstance(call.func, ast.Attribute) and last in _DRAWN_IN_PLACE and keyword(call, "generator") is None:
        return True
    return full.startswith(_RANDOM) and last not in _SEEDS and keyword(call, "generator") is None


def no_random_state(code: Code) -> Iterator[Fault]:
    """Checkpoints made to go on from: a save of DeepSpeed's engine, or a dict that holds an optimizer's state."""
    if _RNG_WORDS.search(ast.unparse(code.tree)):  # without comments
        return
    for call in calls(code.tree):
        full = code.names.dotted(call.func) or ""
        engine = full.endswith(".save_checkpoint") and isinstance(call.func, ast.Attribute)
        engine = engine and code.names.is_engine(cast("ast.Attribute", call.func).value)
        saved = _saved(code.tree, call) if full == "torch.save" and call.args else ""
        if not engine and "optim" not in saved:
            continue
        below = " (DeepSpeed keeps it only at ZeRO stage 3)" if engine else ""
        what = f"the checkpoint holds no random state{below}: dropout and shuffling go another way after a resume"
        fix = (
            'client_state={"rng": torch.get_rng_state(), ...}, one of each rank, and set it again after the load'
            if engine
            else '"rng": torch.get_rng_state() in the dict, of each rank, and torch.set_rng_state after the load'
        )
        yield Fault("random-state", call.lineno, what, fix, must=False)
        return


def _saved(tree: ast.Module, call: ast.Call) -> str:
    """What torch.save is given, as source; of a name, the dicts that it is assigned."""
    value = call.args[0]
    if not isinstance(value, ast.Name):
        return ast.unparse(value)
    assigned = (node for node in ast.walk(tree) if isinstance(node, ast.Assign) and _written(node.value) is not None)
    return " ".join(ast.unparse(node.value) for node in assigned if ast.unparse(node.targets[0]) == value.id)


RULES: tuple[Rule, ...] = (
    rank_only,
    local_rank,
    config_twice,
    optimizer_twice,
    two_loaders,
    no_set_epoch,
    random_data,
    no_random_state,
)
