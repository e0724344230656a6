"""pydantic's findings as Problems in plain words: one for each key, with the rule, the value and a fix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, cast, get_args

from pydantic import ValidationError

from headway.config.keys import field_at, fields, section_of, suggestion
from headway.config.reader import KeyPath, dotted
from headway.config.schema import RunConfig, Section
from headway.errors import Problem

Finding = Mapping[str, Any]  # one entry of ValidationError.errors()

_RULES = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "tuple_type": "must be a list",
    "dict_type": "must be a section of keys",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "too_long": "must have {max_length} entries, not {actual_length}",
}


def place_of(finding: Finding) -> KeyPath:
    """The key path of a finding: pydantic's location without the tags of union members."""
    path: KeyPath = ()
    section: type[Section] | None = RunConfig
    location = cast("tuple[str | int, ...]", finding["loc"])
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if isinstance(part, int):
            path = (*path, part)
        elif section is not None and part in fields(section):
            path = (*path, part)
            section = section_of(fields(section)[part].annotation)
        elif last and finding["type"] == "extra_forbidden":
            path = (*path, part)
    return path


def _literals(annotation: Any) -> list[str]:
    """The texts that a Literal inside the annotation allows."""
    arguments = get_args(annotation)
    texts = [argument for argument in arguments if isinstance(argument, str)]
    return texts or [text for argument in arguments for text in _literals(argument)]


def _rule(finding: Finding, path: KeyPath) -> str:
    kind, context = cast("str", finding["type"]), cast("dict[str, Any]", finding.get("ctx", {}))
    if kind == "value_error":
        return str(context["error"])
    if kind == "model_type":
        info = field_at(path)
        section = section_of(info.annotation) if info else None
        return f"must be a section with keys of: {', '.join(fields(section))}" if section else "must be a section"
    if kind == "missing" and path and isinstance(path[-1], int):
        return "is one entry short"
    rule = _RULES.get(kind)
    return rule.format(**context) if rule else str(finding["msg"])


def _fix(findings: list[Finding], path: KeyPath, value: object) -> str:
    info = field_at(path)
    kinds = {finding["type"] for finding in findings}
    example = f"{path[-1]}: {info.examples[0]}" if info and info.examples else ""
    if "missing" in kinds:
        return f"add it, for example `{example}`" if example else "add it"
    if isinstance(value, str) and value.lower() in ("yes", "no", "on", "off") and "bool_type" in kinds:
        return f"write true or false: in YAML 1.2 {value!r} is a word"
    if isinstance(value, str) and kinds & {"int_type", "float_type", "bool_type"} and "literal_error" not in kinds:
        return "write it without quotes" if value.strip()[:1].isdigit() or value in ("true", "false") else ""
    if "string_type" in kinds:
        return f'put it in quotes: "{value}"' if isinstance(value, int | float) else ""
    if info and isinstance(value, str) and (near := get_close_matches(value.lower(), _literals(info.annotation), n=1)):
        return f"did you mean {near[0]}?"
    return f"for example `{example}`" if example else ""


def _joined(rules: list[str]) -> str:
    """'must be a whole number', 'must be true or false' -> 'must be a whole number, or true or false'."""
    unique = list(dict.fromkeys(rules))
    tails = [rule.removeprefix("must be ") for rule in unique[1:]]
    return ", or ".join([unique[0], *tails]) if unique else ""


def shown(value: object) -> object:
    """A value worth repeating in a message; sections and long texts are not."""
    if isinstance(value, dict | list):
        return None
    return f"{value[:57]}..." if isinstance(value, str) and len(value) > 60 else value


def problems_of(error: ValidationError, where: Callable[[KeyPath], str]) -> list[Problem]:
    """One Problem a key, in the order of the schema. Findings of a union's members become one sentence."""
    groups: dict[KeyPath, list[Finding]] = {}
    for finding in cast("list[Finding]", error.errors(include_url=False)):
        groups.setdefault(place_of(finding), []).append(finding)
    problems: list[Problem] = []
    for path, findings in groups.items():
        deeper = any(other[: len(path)] == path and len(other) > len(path) for other in groups)
        if deeper:  # the value was meant as a section: what is wrong in there says more
            continue
        value = findings[0]["input"]
        if findings[0]["type"] == "extra_forbidden":
            rule, fix = suggestion(path)
            problems.append(Problem(dotted(path), rule, shown(value), fix, where(path)))
            continue
        missing = findings[0]["type"] == "missing"
        rule = _joined([_rule(finding, path) for finding in findings])
        problem_value = None if missing else shown(value)
        problems.append(Problem(dotted(path), rule, problem_value, _fix(findings, path, value), where(path)))
    renamed = {problem.fix.removeprefix("write ") for problem in problems}
    return [problem for problem in problems if problem.rule != _RULES["missing"] or problem.key not in renamed]
