"""The screen that suits where the output goes: live on a terminal, plain lines everywhere else."""

from __future__ import annotations

import os
import sys

from headway.cli.plain import PlainScreen
from headway.cli.seam import RunScreen


def make_screen(plain: bool | None = None) -> RunScreen:
    """Live on a terminal that can, else plain; `plain` decides where it is given."""
    if plain is None:
        plain = not sys.stdout.isatty() or os.environ.get("TERM") == "dumb"
    if plain:
        return PlainScreen()
    from headway.cli.live import LiveScreen

    return LiveScreen()
