"""A run elsewhere in the terminal: Argo's tree, alive, on a TTY; plain lines otherwise. Everything goes to stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from everstep.runtime.display.terminal import as_text
from everstep.runtime.submission.follow import View, last_lines
from everstep.runtime.submission.route import Route
from everstep.runtime.submission.tree import Row
from everstep.runtime.workflow.engine.nodes import Phase
from everstep.runtime.workflow.run.view import LAST_LINES, MARKS, PLAIN_EVERY_S


@contextmanager
def open_view(route: Route, workflow: str, plain: bool = False) -> Iterator[Callable[[View], None]]:
    """Yields a function that shows a View. `plain`: lines also on a terminal, so that log lines fit between them."""
    console = Console(stderr=True, highlight=False)
    lines = _PlainView(route, workflow)
    if plain or not console.is_terminal:
        yield lines.show
        return
    newest: list[View] = []
    with Live(console=console, auto_refresh=False, transient=False) as live:

        def show(view: View) -> None:
            newest[:] = [view]
            live.update(table(view, time.time(), console.height - 1), refresh=True)

        yield show
        for view in newest:
            live.update(table(view, time.time()), refresh=False)
    for view in newest:
        for row in view.rows:
            if row.phase.bad:
                lines.print_log_tail(row)


def table(view: View, now: float, height: int | None = None) -> Table:
    """The tree, a line a node: mark, name, message or newest line, seconds.

    `height`: of the terminal; nodes that ended well are left out when not all fit.
    """
    crowded = height is not None and len(view.rows) >= height
    rows = [row for row in view.rows if not (crowded and row.phase.fulfilled and not row.phase.bad)]
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    for row in rows:
        mark, style = MARKS[row.phase]
        title = f"{row.branch}[{style}]{mark}[/] {escape(as_text(row.title))}"
        grid.add_row(title, escape(row_text(row, view)), duration_text(row, now))
    status = view.workflow.get("status") or {}
    left_out = f"({len(view.rows) - len(rows)} that ended well are not shown)" if crowded else ""
    parts = (status.get("phase") or "Pending", status.get("progress"), status.get("message"), left_out)
    message = as_text(" ".join(filter(None, parts)))
    grid.add_row("", escape(message) if not view.note else f"[yellow]{escape(view.note)}[/]", "")
    return grid


def row_text(row: Row, view: View) -> str:
    """The text of a row: the message of an ended node, else its newest line."""
    if row.phase.fulfilled:
        return as_text(row.message)
    return as_text(row.message or view.lines.get(row.pod, ""))


def duration_text(row: Row, now: float) -> str:
    """How long it has run."""
    if not row.started or row.phase in (Phase.OMITTED, Phase.SKIPPED, Phase.PENDING):
        return ""
    return f"{(row.finished or now) - row.started:.0f} s"


class _PlainView:
    """A line when a step starts or ends, and now and then its newest line."""

    def __init__(self, route: Route, workflow: str) -> None:
        self._route = route
        self._workflow = workflow
        self._seen: dict[str, Phase] = {}
        self._lines: dict[str, tuple[float, str]] = {}
        self._note = ""

    def show(self, view: View) -> None:
        """Print what is new."""
        if view.note != self._note:
            self._note = view.note
            if view.note:
                self._print(f" ! {view.note}")
        for row in view.rows:
            if row.is_step:
                self._show_step(row, view)

    def print_log_tail(self, row: Row) -> None:
        """The last lines of a failed step's log."""
        if row.pod:
            for line in last_lines(self._route, self._workflow, row.pod, LAST_LINES):
                self._print(f"     {line}")
            self._print(f"   pod: {row.pod}")

    def _show_step(self, row: Row, view: View) -> None:
        moment, line = time.monotonic(), row_text(row, view)
        if row.phase is not self._seen.get(row.id, Phase.PENDING):
            self._lines[row.id] = (moment, line)
            self._print_line(row, line if row.phase.fulfilled else "started")
            if row.phase.bad:
                self.print_log_tail(row)
        elif not row.phase.fulfilled:
            before, last_line = self._lines.get(row.id, (0.0, ""))
            if moment - before >= PLAIN_EVERY_S and line and line != last_line:
                self._lines[row.id] = (moment, line)
                self._print_line(row, line)
        self._seen[row.id] = row.phase

    def _print_line(self, row: Row, text: str) -> None:
        self._print(f" {MARKS[row.phase][0]} {row.title:<11} {text:<60} {duration_text(row, time.time()):>8}".rstrip())

    def _print(self, text: str) -> None:
        print(as_text(text), file=sys.stderr, flush=True)
