"""The verbs: what each takes, and the one call of headway.api that it is. Nothing heavy above a function body."""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from headway.cli import deepspeed, doctor, planning
from headway.cli.tables import print_json
from headway.errors import EXIT_OK, UserError


@dataclass(frozen=True)
class Verb:
    """One verb. `example` are lines to type; `more` lists it below the others."""

    name: str
    summary: str
    example: tuple[str, ...]
    arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    description: str = ""
    takes_overrides: bool = False
    more: bool = False


def _json_option(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def _run_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "run_name", nargs="?", metavar="RUN", help="name, start of a name, or path; default: the newest"
    )


# --- init ------------------------------------------------------------------------------------------------------------


def _init_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", default="run.yaml", help="default: run.yaml")
    parser.add_argument("--force", action="store_true", help="write over a file that exists")
    parser.add_argument(
        "--reference", action="store_true", help="print every key, its default and meaning, as Markdown"
    )


def _init(options: Namespace) -> int:
    from headway.config.starter import STARTER

    if options.reference:
        from headway.config.reference import reference

        print(reference(), end="")
        return EXIT_OK
    path = Path(options.file)
    try:
        with path.open("w" if options.force else "x", encoding="utf-8") as file:
            file.write(STARTER)
    except FileExistsError:
        raise UserError(f"{path} exists", fix="name another file, or pass --force to write over it") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
    print(f"wrote {path}\nnext:\n  edit it: your data, your model\n  headway plan {path}\n  headway train {path}")
    return EXIT_OK


# --- train and resume ------------------------------------------------------------------------------------------------


def _screen_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--plain", action="store_true", help="plain lines, as when the output is no terminal")
    parser.add_argument(
        "--force", action="append", default=[], metavar="CHECK", help="pass one red finding, knowingly; it is recorded"
    )


def _train_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="RUN_FILE")
    parser.add_argument("--name", help="name of the run; default: the run file's")
    parser.add_argument("--dry-run", action="store_true", help="print the exact commands, start nothing")
    deepspeed.arguments(parser)
    _screen_arguments(parser)


def _train(options: Namespace) -> int:
    from headway import api
    from headway.cli.plain import PlainScreen
    from headway.cli.screen import make_screen

    path = Path(options.file)
    if options.dry_run:
        aside = PlainScreen(sys.stderr)  # what is printed on stdout is a script
        run_dir, script = api.dry_run(path, options.overrides, screen=aside, name=options.name, force=options.force)
        print(f"# prepared in {run_dir}; this would be started:\n{script}")
        return EXIT_OK
    with make_screen(options.plain or None) as screen:
        screen.waiting("looking at the machine, the data and the model")
        report = screen.progress("reading the data")
        api.train(path, options.overrides, screen=screen, name=options.name, force=options.force, report=report)
    return EXIT_OK


def _resume_arguments(parser: ArgumentParser) -> None:
    _run_argument(parser)
    _screen_arguments(parser)


def _resume(options: Namespace) -> int:
    from headway import api
    from headway.cli.screen import make_screen

    with make_screen(options.plain or None) as screen:
        screen.attach(api.plan_of(options.run_name))
        screen.waiting("reading the checkpoint")
        api.resume(options.run_name, options.overrides, screen=screen, force=options.force)
    return EXIT_OK


# --- show ------------------------------------------------------------------------------------------------------------


def _show_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help="none: list them; one: its story; two: compare them")
    parser.add_argument("--logs", action="store_true", help="print what the ranks printed")
    parser.add_argument("--rank", type=int, metavar="N", help="with --logs: one rank, its whole log")
    parser.add_argument("--follow", action="store_true", help="show a run while it runs")
    parser.add_argument("--plain", action="store_true", help="with --follow: plain lines")
    parser.add_argument("--sync", action="store_true", help="send a run's trackers what they do not hold")
    parser.add_argument("--root", default="runs", help="folder of the runs; default: runs")
    _json_option(parser)


def _show(options: Namespace) -> int:
    from headway.cli import showing

    count = len(options.runs)
    _refuse_idle(options)
    if options.follow or options.logs or options.sync or count == 1:
        if count > 1:
            raise UserError("--follow, --logs and --sync take one run", fix="name one, or none for the newest")
        name = showing.named(options.runs[0] if count else None, options.root)
        if options.sync:
            return showing.sync(name, as_json=options.json)
        if options.follow:
            return showing.follow(name, plain=options.plain or None)
        if options.logs:
            return showing.logs(name, options.rank)
        return showing.one(name, as_json=options.json)
    if count > 2:
        raise UserError("show compares two runs", fix="name two")
    if count == 2:
        a, b = (showing.named(name, options.root) for name in options.runs)
        return showing.compare(a, b, as_json=options.json)
    return showing.every(Path(options.root), as_json=options.json)


def _refuse_idle(options: Namespace) -> None:
    """An option without effect is a misunderstanding, and said."""
    asked = [name for name in ("follow", "logs", "sync") if getattr(options, name)]
    if len(asked) > 1:
        raise UserError(f"--{asked[0]} and --{asked[1]} are two things to do", fix="give one")
    for name, given, goes_with in (
        ("--rank", options.rank is not None, ("logs",)),
        ("--plain", options.plain, ("follow",)),
        ("--json", options.json and bool(asked), ("sync",)),
    ):
        if given and not set(goes_with) & set(asked):
            what = f"headway show --{asked[0]}" if asked else "headway show"
            fix = f"--{goes_with[0]} {name}" if name != "--json" else f"{what} without --json"
            raise UserError(f"{name} has no effect on {what}", fix=fix)


# --- export ----------------------------------------------------------------------------------------------------------


def _export_arguments(parser: ArgumentParser) -> None:
    _run_argument(parser)
    parser.add_argument("--step", type=int, help="the checkpoint of this step; default: the newest complete one")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: export/ in the run")
    _json_option(parser)


def _export(options: Namespace) -> int:
    from headway import api
    from headway.cli import tables

    result = api.export(options.run_name, step=options.step, out=options.out)
    if options.json:
        print_json(asdict(result))
    else:
        tables.print_export(result)
    return EXIT_OK


# --- more ------------------------------------------------------------------------------------------------------------


def _stop(options: Namespace) -> int:
    from headway import api

    print(f"{api.stop(options.run_name).name} will save and stop; `headway resume` goes on from there")
    return EXIT_OK


def _generate_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("target", metavar="MODEL_OR_RUN", help="an exported folder, or a run that has one")
    parser.add_argument("--prompt", required=True, help="what to continue; - reads it from stdin")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="default: 64")
    parser.add_argument(
        "--temperature", type=float, default=0.8, metavar="T", help="default: 0.8; 0: the likeliest token"
    )
    parser.add_argument("--seed", type=int, default=0)
    _json_option(parser)


def _generate(options: Namespace) -> int:
    from headway import api
    from headway.cli.lines import printable

    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    text = api.generate(
        options.target, prompt, max_tokens=options.max_tokens, temperature=options.temperature, seed=options.seed
    )
    if options.json:
        print_json({"prompt": prompt, "text": text})
    else:
        print(printable(text if api.answers(options.target) else f"{prompt}{text}"))
    return EXIT_OK


def _evaluate_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("target", metavar="RUN_OR_MODEL", help="a run (its newest checkpoint), or an exported folder")
    parser.add_argument("--step", type=int, metavar="N", help="of a run: the checkpoint of this step")
    parser.add_argument("--tasks", type=_names, default=(), metavar="A,B", help="tasks of lm-evaluation-harness")
    parser.add_argument("--tasks-folder", type=Path, metavar="FOLDER", help="of task files of your own")
    parser.add_argument("--limit", type=int, metavar="N", help="documents of each task; default: all")
    parser.add_argument("--no-held-out", action="store_true", help="tasks only, not the held-out data")
    _json_option(parser)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _evaluate(options: Namespace) -> int:
    from headway import api
    from headway.cli import tables
    from headway.cli.lines import evaluated_rows

    found, path = api.evaluate(
        options.target,
        step=options.step,
        held_out=not options.no_held_out,
        tasks=options.tasks,
        tasks_folder=options.tasks_folder,
        limit=options.limit,
    )
    if options.json:
        print_json(asdict(found))
    else:
        print(f"{found.what}, {found.sha256[:16]}")
        tables.print_pairs(evaluated_rows(found))
        print(f"kept in {path}")
    return EXIT_OK


def _data_build_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="RUN_FILE")
    parser.add_argument("--plain", action="store_true", help="plain lines, as when the output is no terminal")
    _json_option(parser)


def _data_build(options: Namespace) -> int:
    from headway import api
    from headway.cli.screen import make_screen

    if options.json:
        print_json({"store": api.data_build(Path(options.file), options.overrides)})
        return EXIT_OK
    with make_screen(options.plain or None) as screen:
        store = api.data_build(Path(options.file), options.overrides, screen.progress("reading the data"))
    print(f"the data is ready in {store}")
    return EXIT_OK


# --- certify ---------------------------------------------------------------------------------------------------------


def _certify_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="RUN_FILE")
    parser.add_argument("--again", action="store_true", help="make a new certificate where one still holds")
    parser.add_argument(
        "--claims",
        type=_numbers,
        default=(),
        metavar="1,4",
        help="prove only these of the eight claims; no run relies on such a certificate",
    )
    parser.add_argument("--plain", action="store_true", help="plain lines, as when the output is no terminal")
    _json_option(parser)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no list of claims, such as 1,4") from None


def _certify(options: Namespace) -> int:
    from headway import api
    from headway.certify.report import render
    from headway.cli.screen import make_screen
    from headway.errors import NotCertified

    with make_screen(options.plain or options.json or None) as screen:
        certificate, path = api.certify(
            Path(options.file),
            options.overrides,
            again=options.again,
            claims=options.claims,
            progress=lambda name: None if options.json else screen.waiting(f"certify: the {name} run"),
            report=None if options.json else screen.progress("reading the data"),
        )
    if options.json:
        print_json(certificate.model_dump(mode="json"))
    else:
        print(render(certificate) + f"\nkept in {path}")
    return EXIT_OK if certificate.holds else NotCertified.exit_code


# --- launch ----------------------------------------------------------------------------------------------------------


def _launch_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--processes", type=int, help="default: every GPU, or two on a CPU")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=REMAINDER, metavar="...", help="the script's own arguments")


def _launch(options: Namespace) -> int:
    from headway.launch.script import become, script_command

    become(script_command(Path(options.script), options.arguments, options.processes))


VERBS: tuple[Verb, ...] = (
    Verb(
        "init",
        "write a commented run file to start from",
        ("headway init", "headway init my-model.yaml"),
        _init_arguments,
        _init,
    ),
    Verb(
        "plan",
        "say what a run will do and need, and whether it can; starts nothing",
        planning.EXAMPLE,
        planning.arguments,
        planning.run,
        planning.DESCRIPTION,
        takes_overrides=True,
    ),
    Verb(
        "train",
        "plan, check, train, evaluate, export",
        ("headway train run.yaml", "headway train run.yaml train.length='500 steps' launch.processes=2 --name try-1"),
        _train_arguments,
        _train,
        takes_overrides=True,
    ),
    Verb(
        "resume",
        "go on from the newest complete checkpoint",
        ("headway resume", "headway resume quickstart launch.processes=1 strategy=ddp"),
        _resume_arguments,
        _resume,
        "Go on from the newest complete checkpoint of a run. Overrides make a new plan, for example for another\n"
        "number of processes or another strategy; the order of the samples and the learning rates stay.",
        takes_overrides=True,
    ),
    Verb(
        "show",
        "list runs, tell one run's story or logs, compare two",
        (
            "headway show",
            "headway show quickstart",
            "headway show quickstart --logs --rank 1",
            "headway show run-a run-b",
        ),
        _show_arguments,
        _show,
    ),
    Verb(
        "export",
        "write a checkpoint as a model folder that plain transformers loads",
        ("headway export", "headway export quickstart --step 200 --out ./my-model"),
        _export_arguments,
        _export,
    ),
    Verb(
        "certify",
        "prove on a small copy of the plan that it computes, resumes and exports what it should",
        ("headway certify run.yaml", "headway certify run.yaml strategy=zero-3 --claims 1,2"),
        _certify_arguments,
        _certify,
        takes_overrides=True,
    ),
    Verb(
        "doctor",
        "find what is wrong with this machine, with hosts, a script or a log, each with its fix",
        doctor.EXAMPLE,
        doctor.arguments,
        doctor.run,
        doctor.DESCRIPTION,
    ),
    Verb(
        "calibrate",
        "measure this machine, so that plans for it are right",
        planning.CALIBRATE_EXAMPLE,
        planning.calibrate_arguments,
        planning.calibrate,
        planning.CALIBRATE_DESCRIPTION,
        more=True,
    ),
    Verb(
        "stop",
        "ask a run to save and stop at its next step",
        ("headway stop", "headway stop quickstart"),
        _run_argument,
        _stop,
        more=True,
    ),
    Verb(
        "generate",
        "continue a text with an exported model",
        ('headway generate quickstart --prompt "def main("',),
        _generate_arguments,
        _generate,
        more=True,
    ),
    Verb(
        "evaluate",
        "judge a checkpoint or model on held-out data and on tasks of lm-evaluation-harness",
        ("headway evaluate quickstart", "headway evaluate ./my-model --tasks hellaswag,my_task --tasks-folder tasks"),
        _evaluate_arguments,
        _evaluate,
        more=True,
    ),
    Verb(
        "data build",
        "tokenise the data of a run file ahead of time",
        ("headway data build run.yaml",),
        _data_build_arguments,
        _data_build,
        takes_overrides=True,
        more=True,
    ),
    Verb(
        "launch",
        "start your own script, which calls headway.prepare, on every rank",
        ("headway launch train.py", "headway launch --processes 2 train.py --my-option 3"),
        _launch_arguments,
        _launch,
        more=True,
    ),
)
