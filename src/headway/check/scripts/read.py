"""All files together: what one says about how another is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headway.check.report import Report, Verdict, green, yellow
from headway.check.scripts import containers, docker, python, shell
from headway.check.scripts.code import Beside
from headway.check.scripts.material import Fault, Script, gather
from headway.config.deepspeed_check import judge_json
from headway.config.deepspeed_models import installed_release
from headway.errors import ConfigError, Problem


def read_scripts(paths: list[Path]) -> Report:
    """One verdict a fault, or a green one for each file without any. Nothing is run.

    Raises UserError for paths that are absent or of no known kind.
    """
    scripts, left_out = gather(paths)
    started: dict[str, list[str]] = {}
    named: dict[str, list[Path]] = {}
    for script in scripts:
        if script.kind == "shell":
            for name, place in shell.torchrun_scripts(script):
                started.setdefault(name, []).append(place)
            for name, config in shell.named_configs(script):
                folders = (Path.cwd(), script.path.absolute().parent, script.path.absolute().parent.parent)
                named.setdefault(name, []).extend([f / config for f in folders if (f / config).is_file()][:1])
    verdicts: list[Verdict] = []
    configs = tuple(script.path for script in scripts if script.kind == "config")
    for script in scripts:
        faults = _judge(script, Beside(tuple(started.get(script.path.name, ())), configs or _of(script, named)))
        verdicts += [fault.verdict(script) for fault in faults]
        if not faults and (script.kind != "config" or len(scripts) == 1):
            verdicts.append(green("script", f"{script.path}: nothing found ({script.kind})"))
    if left_out:
        what = f"{len(scripts)} files were read, {len(left_out)} were not: too many for one call"
        verdicts.append(yellow("script", what, f"name the folders inside, from {left_out[0].parent} on"))
    return Report(tuple(verdicts))


def _of(script: Script, named: dict[str, list[Path]]) -> tuple[Path, ...]:
    """The configs that launch scripts name for a script, each once."""
    return tuple(dict.fromkeys(named.get(script.path.name, ())))


def _judge(script: Script, beside: Beside) -> list[Fault]:
    match script.kind:
        case "python":
            return python.judge(script, beside)
        case "shell":
            return shell.judge(script)
        case "docker":
            return docker.judge(script)
        case "manifest":
            return containers.judge(script)
        case "config":
            return list(_of_deepspeed(script))


_KEYS = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def _of_deepspeed(script: Script) -> Iterator[Fault]:
    """A DeepSpeed JSON against the installed release's schema; what Headway itself drives is no matter here."""
    if not any(f'"{key}"' in script.text for key in _KEYS):
        return
    try:
        release = installed_release()
    except ConfigError:  # no DeepSpeed here: there is no schema to hold it to
        return
    try:
        problems = judge_json(script.text, script.path.name, release).problems
    except ConfigError as error:
        problems = list(error.problems) or [Problem("", str(error).partition("\n")[0], fix=error.fix)]
    for problem in problems:
        line = problem.where.rpartition(":")[2]
        what = f"{problem.key}: {problem.rule}" if problem.key else problem.rule
        yield Fault("deepspeed-json", int(line) if line.isdecimal() else 1, what, problem.fix)
