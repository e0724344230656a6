"""The live display on a terminal: what has happened scrolls by, what is now stands below it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.status import Status
from rich.table import Table
from rich.text import Text

from headway.cli.lines import check_lines, event_lines, headline, printable, what_next, where_things_are
from headway.cli.seam import Outcome, Planned, Record, Report, RunScreen
from headway.cli.state import RunState
from headway.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from headway.data.seam import ProgressReporter
    from headway.plan.schema import Plan

_REFRESH_PER_SECOND = 4
_COLUMN_WIDTH = 26  # of one short figure, so that the columns stand still while the numbers change
_LINE_STYLES = {"warning": "yellow", "failed": "bold red", "evaluation": "bold", "checkpoint": "dim", "notice": "dim"}
_LEVELS = {"red": "bold red", "yellow": "yellow"}
_ENDINGS = {"done": "bold green", "stopped": "bold yellow", "failed": "bold red"}


class LiveScreen(RunScreen):
    """Prints events above a status area that is redrawn four times a second."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.time):
        self._console = console or Console(highlight=False)
        self._state = RunState()
        self._area = StatusArea(self._state, clock)
        self._live: Live | None = None
        self._displays: list[LiveProgress] = []
        self._status: Status | None = None

    def attach(self, plan: Plan) -> None:
        self._state.take_plan(plan)

    def plan(self, planned: Planned) -> None:
        from headway.plan.explain import note_texts, summary_rows

        self.attach(planned.plan)
        self._print(Text("plan", "bold"), pairs([row[:2] for row in summary_rows(planned.plan)]))
        self._print(*(Text(f"note: {text}", "dim") for text in note_texts(planned.plan)))

    def checks(self, report: Report) -> None:
        for line in check_lines(report):
            level = line.strip().partition(":")[0]
            self._print(Text(line, _LEVELS.get(level, "")))

    def event(self, event: Record) -> None:
        self._state.take_event(event)
        name = str(event.get("event"))
        if name in ("started", "process_group", "engine_ready"):
            self._begin()
        if name in ("sample", "sample_data"):
            self._print(framed(event_lines(event)[0], sample_text(event)))
            return
        self._print(*(Text(line, _LINE_STYLES.get(name, "")) for line in event_lines(event)))

    def metrics(self, metrics: Record) -> None:
        self._state.take_metrics(metrics)
        self._begin()

    def finish(self, outcome: Outcome) -> None:
        self._end(keep=bool(self._state.last))
        self._print(*(Text(f"NOT AS PLANNED: {text}", "bold red") for text in outcome.differences))
        self._print(*(Text(text) for text in outcome.remarks))
        self._print(Text(headline(outcome), _ENDINGS.get(outcome.state, "bold")), pairs(where_things_are(outcome)))
        self._print(Text("next", "bold"), *(Text(f"  {line}", "cyan") for line in what_next(outcome)))

    def progress(self, title: str) -> ProgressReporter:
        display = LiveProgress(title, self._console, self._clear)
        self._displays.append(display)
        return display

    def waiting(self, text: str) -> None:
        if self._status is not None:
            self._status.update(Text(text, "dim"))
        elif self._live is None:
            self._status = self._console.status(Text(text, "dim"))
            self._status.start()

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a terminal that was closed must not hide how the run ended
            self._clear()
            self._end(keep=False)

    def _clear(self) -> None:
        """End what is shown before the run: a terminal can have one redrawn area at a time."""
        if self._status is not None:
            self._status.stop()
            self._status = None
        for display in self._displays:
            display.close()

    def _print(self, *renderables: RenderableType) -> None:
        self._clear()
        for renderable in renderables:
            self._console.print(renderable)

    def _begin(self) -> None:
        if self._live is None:
            self._clear()
            self._live = Live(
                self._area, console=self._console, refresh_per_second=_REFRESH_PER_SECOND, redirect_stderr=False
            )
            self._live.start()

    def _end(self, *, keep: bool) -> None:
        if self._live is not None:
            self._live.transient = not keep
            self._area.closed = True
            self._live.stop()
            self._live = None


class StatusArea:
    """The redrawn part: a bar and the figures, or before the first step what is being waited for."""

    def __init__(self, state: RunState, clock: Callable[[], float]):
        self._state = state
        self._clock = clock
        self._spinner = Spinner("dots")
        self._lock = threading.Lock()
        self.closed = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        with self._lock:
            yield from self._rows(options.max_width)

    def _rows(self, width: int) -> Iterator[RenderableType]:
        state, now = self._state, self._clock()
        if not state.last:
            yield self._waiting(now)
            return
        figures = {figure.name: figure.value for figure in state.figures(now)}
        eta = figures.pop("ETA", "")
        yield self._bar(width, f"ETA {eta}" if eta and not self.closed else "")
        wide = {name: figures.pop(name) for name in ("memory", "checkpoint") if name in figures}
        columns = max(1, width // _COLUMN_WIDTH)
        grid = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(columns):
            grid.add_column(width=_COLUMN_WIDTH - 2, no_wrap=True)
        cells = [labelled(name, value) for name, value in figures.items()]
        for start in range(0, len(cells), columns):
            grid.add_row(*cells[start : start + columns])
        yield grid
        for name, value in wide.items():
            yield labelled(name, value)
        if state.phase != "training" and not self.closed:
            yield Text(state.phase, "yellow")

    def _waiting(self, now: float) -> RenderableType:
        began = self._state.started_time
        passed = f", {format_seconds(max(0.0, now - began))}" if began is not None else ""
        self._spinner.update(text=Text(f"{self._state.phase}{passed}", "dim"))
        return self._spinner

    def _bar(self, width: int, tail: str) -> RenderableType:
        step, steps = self._state.step, self._state.steps
        head = f"step {step}/{steps}" if steps else f"step {step}"
        share = f"{100 * step // steps}%" if steps else ""  # 100% is the last step only
        row = Table.grid(padding=(0, 1, 0, 0))
        bar = ProgressBar(
            total=steps or None, completed=step, width=max(8, width - len(head) - len(share) - len(tail) - 6)
        )
        row.add_row(Text(head, "bold"), bar, Text(share), Text(tail, "cyan"))
        return row


class LiveProgress:
    """A bar for long work before the run: tokenising, training a tokenizer."""

    def __init__(self, title: str, console: Console, clear: Callable[[], None]):
        self._title, self._console, self._clear = title, console, clear
        self._progress: Progress | None = None
        self._total = self._done = 0

    def start(self, total_bytes: int) -> None:
        self._clear()
        self._total, self._done = total_bytes, 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
            expand=True,
        )
        self._progress.add_task(f"{self._title}, {format_bytes(total_bytes)}", total=total_bytes or None)
        self._progress.start()

    def advance(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=self._done)
            if self._done >= self._total:
                self.close()

    def note(self, text: str) -> None:
        self._console.print(Text(printable(text), "dim"))

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def labelled(name: str, value: str) -> Text:
    """A figure with its name in a quieter colour."""
    return Text.assemble((f"{name} ", "dim"), value)


def pairs(rows: Iterable[Sequence[str]]) -> RenderableType:
    """(name, value) or (name, value, reason) in two columns: values wrap, a reason stands below its value."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", max_width=22)
    grid.add_column(overflow="fold")
    for name, value, *reasons in rows:
        cell = Text(printable(value))
        for reason in filter(None, reasons):
            cell.append(f"\n{printable(reason)}", "dim")
        grid.add_row(Text(name), cell)
    return Padding(grid, (0, 0, 0, 2))


def sample_text(event: Record) -> str:
    return printable(f"{event.get('prompt', '')}{event.get('text', '')}")


def framed(title: str, text: str) -> Panel:
    """Text of the data or the model, set apart from Headway's own words."""
    return Panel(Text(text.expandtabs(4)), title=Text(title.rstrip(":")), title_align="left", border_style="dim")
