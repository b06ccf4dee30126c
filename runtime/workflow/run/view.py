"""A run in the terminal: a live table on a TTY, plain lines otherwise. Everything goes to stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from everstep.runtime.display.terminal import as_text
from everstep.runtime.workflow.engine.engine import Engine
from everstep.runtime.workflow.engine.nodes import Node, NodeType, Phase, log_name
from everstep.runtime.workflow.engine.retries import NOT_TRIED_AGAIN

MARKS = {
    Phase.PENDING: ("○", "dim"), Phase.RUNNING: ("●", "yellow"), Phase.SUCCEEDED: ("✔", "green"),
    Phase.SKIPPED: ("-", "dim"), Phase.OMITTED: ("-", "dim"), Phase.FAILED: ("✖", "red"), Phase.ERROR: ("✖", "red"),
}  # fmt: skip
SHOWN_TYPES = (NodeType.POD, NodeType.RETRY, NodeType.SKIPPED, NodeType.SUSPEND, NodeType.HTTP)
PLAIN_EVERY_S = 5.0
LAST_LINES = 15


@contextmanager
def watch() -> Iterator[Callable[[Engine, Path], None]]:
    """Yields a function for RunOptions.on_change."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _PlainView().show
        return
    newest: list[tuple[Engine, Path]] = []
    with Live(console=console, auto_refresh=False, transient=False) as live:

        def show(engine: Engine, folder: Path) -> None:
            newest[:] = [(engine, folder)]
            live.update(table(engine, folder, console.height - 2, console.width), refresh=True)

        yield show
    for engine, folder in newest:
        for node in _shown_steps(engine):
            if node.phase.bad:
                _print_log_tail(engine, node, folder)


def _shown_steps(engine: Engine) -> list[Node]:
    """The nodes that a person calls steps: a pod and its retries are one, the exit handler is last."""
    return [node for node in engine.state.nodes.values() if node.type in SHOWN_TYPES and not _is_attempt(engine, node)]


def _is_attempt(engine: Engine, node: Node) -> bool:
    owner = engine.state.nodes.get(node.owner)
    return owner is not None and owner.type is NodeType.RETRY


def _last_attempt(engine: Engine, node: Node) -> Node:
    if node.type is not NodeType.RETRY:
        return node
    attempts = [name for name in node.children if name.startswith(f"{node.name}(")]
    return engine.state.nodes[attempts[-1]] if attempts else node


def _title(node: Node, engine: Engine) -> str:
    return as_text(node.template if node.display_name == f"{engine.state.name}.onExit" else node.display_name)


def _last_lines(engine: Engine, node: Node, folder: Path, count: int) -> list[str]:
    path = folder / "logs" / f"{log_name(engine.state.name, _last_attempt(engine, node))}.log"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16384))
            return [as_text(line) for line in file.read().decode(errors="replace").splitlines()[-count:]]
    except OSError:
        return []


def _status_line(engine: Engine, node: Node, folder: Path) -> str:
    if node.phase in (Phase.OMITTED, Phase.SKIPPED):
        return as_text(node.message)
    last = _last_lines(engine, node, folder, 1)
    words = last[0] if last else ""
    attempts = len(node.children) if node.type is NodeType.RETRY else 1
    again = f"  (try {attempts})" if attempts > 1 else ""
    message = _last_attempt(engine, node).message if node.message in NOT_TRIED_AGAIN else node.message
    return f"{as_text(message)}: {words}{again}" if node.phase.bad else f"{words}{again}"


def _duration_text(node: Node, now: float) -> str:
    if node.phase in (Phase.OMITTED, Phase.SKIPPED, Phase.PENDING):
        return ""
    return f"{(node.finished or now) - node.started:.1f} s"


def table(engine: Engine, folder: Path, rows: int, width: int) -> Table:
    """At most `rows` steps: where there are more, the newest of those that run or failed.

    Names take at most two fifths of the width, which leaves the rest to log lines.
    """
    steps = _shown_steps(engine)
    rows_shown = (
        steps if len(steps) <= rows else [step for step in steps if step.phase.bad or not step.phase.fulfilled][-rows:]
    )
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(width=2, no_wrap=True)
    grid.add_column(no_wrap=True, max_width=max(12, width * 2 // 5), overflow="ellipsis")
    grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    grid.add_column(justify="right", no_wrap=True)
    for node in rows_shown:
        mark, style = MARKS[node.phase]
        line = Text(_status_line(engine, node, folder), overflow="ellipsis", no_wrap=True)
        title = Text(_title(node, engine), overflow="ellipsis")
        grid.add_row(Text(f" {mark}", style), title, line, _duration_text(node, engine.now))
    if len(rows_shown) < len(steps):
        ended_count = sum(step.phase.fulfilled for step in steps)
        grid.add_row("", f"{ended_count} of {len(steps)} steps have ended", "", "")
    return grid


class _PlainView:
    """A line when a step starts or ends, and now and then its newest log line."""

    def __init__(self) -> None:
        self._seen: dict[str, Phase] = {}
        self._lines: dict[str, tuple[float, str]] = {}

    def show(self, engine: Engine, folder: Path) -> None:
        """Print what is new."""
        now = time.monotonic()
        for node in _shown_steps(engine):
            before = self._seen.get(node.name)
            if node.phase is not before and node.phase is not Phase.PENDING:
                self._seen[node.name] = node.phase
                line = _status_line(engine, node, folder)
                self._print(engine, node, line if node.phase.fulfilled else "started")
                if node.phase.bad:
                    _print_log_tail(engine, node, folder)
                self._lines[node.name] = (now, line)
            elif node.phase is Phase.RUNNING and now - self._lines[node.name][0] >= PLAIN_EVERY_S:
                line, last_line = _status_line(engine, node, folder), self._lines[node.name][1]
                self._lines[node.name] = (now, line or last_line)
                if line and line != last_line:
                    self._print(engine, node, line)

    def _print(self, engine: Engine, node: Node, line: str) -> None:
        mark = MARKS[node.phase][0]
        text = f" {mark} {_title(node, engine):<11} {line:<60} {_duration_text(node, engine.now):>8}"
        print(text.rstrip(), file=sys.stderr, flush=True)


def _print_log_tail(engine: Engine, node: Node, folder: Path) -> None:
    """Print the last lines of a failed step's log, and its path."""
    for line in _last_lines(engine, node, folder, LAST_LINES):
        print(f"     {line}", file=sys.stderr)
    log = folder / "logs" / f"{log_name(engine.state.name, _last_attempt(engine, node))}.log"
    if log.exists():
        print(f"   log: {log}", file=sys.stderr, flush=True)
