"""Follows a run elsewhere to its end: its status, the newest lines of its steps, and trouble on the way.

The connection may break: the run goes on, and so does following it.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from everstep.runtime.submission.route import ApiError, PodLog, Route, Trouble
from everstep.runtime.submission.submit import ENDED
from everstep.runtime.submission.tree import Row, is_offloaded, rows
from everstep.runtime.system.backoff import backoff

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
REDRAW_S = 0.5
TAIL_EVERY_S = 2.0
ARGOS_MARK, OWN_LINES = "argo=true", 5
"""A word of the lines that Argo's executor adds to a step's, and how many it may add at the log's end."""
MAX_TAILS = 8
"""The most running steps whose newest line is fetched."""
TAKEN_UP_S = 30.0
"""A working controller takes up a new workflow much sooner."""
UNSEEN = "no controller has started it yet: does Argo's workflow-controller run, and does it watch this namespace?"
OFFLOADED = "its controller keeps the steps in a database: only an Argo Server shows them, see ARGO_SERVER"


@dataclass
class View:
    """What a terminal shows of a run."""

    workflow: dict[str, Any]
    lines: dict[str, str] = field(default_factory=dict)
    """The newest log line of each running step, by pod."""
    note: str = ""
    """Trouble with the connection or with the run as a whole; "" when there is none."""
    rows: list[Row] = field(default_factory=list)


def updates(route: Route, name: str, wait: Callable[[float], object]) -> Iterator[dict[str, Any] | ApiError]:
    """The Workflow each time that it changed, until it has ended; an ApiError where asking failed and is tried again.

    Raises ApiError for what asking again cannot mend: it was deleted, the right to see it is gone.
    """
    pauses = backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
    while True:
        try:
            workflow = route.get(name)
            pauses = backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
            yield workflow
            if not has_ended(workflow):
                for workflow in route.changes(name):
                    yield workflow
                    if has_ended(workflow):
                        return
        except ApiError as error:
            if not error.trouble.is_passing:
                raise
            yield error
            wait(next(pauses))
            continue
        if has_ended(workflow):
            return
        wait(0.2)  # The stream ended without a reason: not a loop as fast as the machine.


def has_ended(workflow: dict[str, Any]) -> bool:
    """Whether the workflow has ended, including its exit handler."""
    return (workflow.get("status") or {}).get("phase") in ENDED


class Follower:
    """Threads that read, and a loop in the caller's thread that shows; leave the `with` to stop them."""

    def __init__(self, route: Route, workflow: dict[str, Any], tails: bool) -> None:
        self._route = route
        self._name = workflow["metadata"]["name"]
        self._view = View(workflow, rows=rows(workflow))
        self._news: queue.SimpleQueue[dict[str, Any] | Exception] = queue.SimpleQueue()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._read_updates, daemon=True)]
        if tails:
            self._threads.append(threading.Thread(target=self._read_tails, daemon=True))

    def __enter__(self) -> "Follower":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def follow(self, show: Callable[[View], None]) -> dict[str, Any]:
        """Show what is new, and every now and then the time; returns the Workflow that has ended. Raises ApiError,
        and whatever else ended the thread that reads."""
        began = time.monotonic()
        while True:
            try:
                news = self._news.get(timeout=REDRAW_S)
            except queue.Empty:
                news = None
            if isinstance(news, Exception):
                if not isinstance(news, ApiError) or not news.trouble.is_passing:
                    raise news
                self._view.note = f"the run continues, but cannot be watched: {news}"
            elif news:
                self._view = View(news, self._view.lines, OFFLOADED if is_offloaded(news) else "", rows(news))
            if not (self._view.workflow.get("status") or {}).get("phase") and time.monotonic() - began > TAKEN_UP_S:
                self._view.note = self._view.note or UNSEEN
            show(self._view)
            if news is not None and has_ended(self._view.workflow):
                return self._view.workflow

    def _read_updates(self) -> None:
        try:
            for news in updates(self._route, self._name, self._over.wait):
                self._news.put(news)
                if self._over.is_set():
                    return
        except Exception as error:  # noqa: BLE001 - `follow` raises it: nobody else hears of the end of this thread
            self._news.put(error)

    def _read_tails(self) -> None:
        while not self._over.wait(TAIL_EVERY_S):
            running = [row for row in self._view.rows if row.pod and not row.phase.fulfilled]
            for row in running[:MAX_TAILS]:
                self._view.lines[row.pod] = newest_line(self._route, self._name, row.pod)


def newest_line(route: Route, workflow: str, pod: str) -> str:
    """The last line of a pod's log; "" where there is none, yet or any more."""
    return next(iter(last_lines(route, workflow, pod, 1)), "")


def last_lines(route: Route, workflow: str, pod: str, count: int) -> list[str]:
    """The last lines of a pod's log; none where it cannot be had."""
    try:
        lines = list(route.log(workflow, pod, tail=count + OWN_LINES))
        return [line for line in lines if line and not is_argos(line)][-count:]
    except ApiError:
        return []


def is_argos(line: str) -> bool:
    """Whether Argo's executor wrote it among the lines of a step."""
    return line.startswith("time=") and ARGOS_MARK in line.split()


def step_logs(rows: Iterable[Row]) -> list[PodLog]:
    """The logs of the steps that have started."""
    return [PodLog(row.title, row.pod, row.phase.fulfilled) for row in rows if row.pod]


class LogFollower:
    """Every line of the logs, as it comes."""

    def __init__(self, route: Route, workflow: str, say: Callable[[str, str], None]) -> None:
        """`say(title of the log, line)`; called from several threads, one line each time."""
        self._route = route
        self._workflow = workflow
        self._say = say
        self._done: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []

    def follow(self, logs: Iterable[PodLog]) -> None:
        """Follow these logs, too, from now on."""
        for log in logs:
            if log.pod not in self._done:
                self._done[log.pod] = threading.Event()
                self._threads.append(threading.Thread(target=self._follow, args=(log,), daemon=True))
                self._threads[-1].start()
            if log.is_over:
                self._done[log.pod].set()

    def end(self) -> None:
        """No more lines come to any of them."""
        for done in self._done.values():
            done.set()

    def finish(self, within_s: float = 10.0) -> None:
        """Wait for what is still on its way."""
        deadline = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _follow(self, log: PodLog) -> None:
        printed_count = 0
        while True:
            over = self._done[log.pod].is_set()
            try:
                lines = self._route.log(self._workflow, log.pod, container=log.container, follow=not over)
                for number, line in enumerate(lines):
                    if number >= printed_count:  # A stream that broke off is read again from its beginning.
                        printed_count += 1
                        self._say(log.title, line)
                problem = ""
            except ApiError as error:
                problem = str(error) if error.trouble is not Trouble.NOT_FOUND else "its log is gone"
            if over:
                if problem and not printed_count:
                    self._say(log.title, f"({problem})")
                return
            self._done[log.pod].wait(1.0)
