"""One table of exit codes: the classes, the tree in the module's docstring, and the README say the same."""

from __future__ import annotations

import re
from pathlib import Path

from headway import errors

README = Path(__file__).parents[2] / "README.md"
CLASSES = {
    name: kind.exit_code
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.HeadwayError)
}


def test_the_drawn_tree_is_that_of_the_classes() -> None:
    assert errors.documented_exit_codes() | {"HeadwayError": 1} == CLASSES


def test_the_readme_lists_every_code() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {int(code) for row in rows for code in row.split(",")}
    assert listed == {errors.EXIT_OK, *CLASSES.values()}
