"""Reads stacks that were dumped before: ours, py-spy's (text and JSON), faulthandler's. Pure.

Formats: py-spy 0.4, `dump` and `dump --json`; CPython, `Modules/faulthandler.c` and "faulthandler".
"""

import re

import msgspec

from everstep.runtime.watch.stacks import Frame, RankStacks, Thread

_RANK = re.compile(r"--- rank (\d+), process (\d+)(?:, node (.*))?$")
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d+)")
_OUR_THREAD = re.compile(r'Thread "(.*)"(?: \((.*)\))?$')
_PY_SPY_THREAD = re.compile(r'Thread (?:0x)?[0-9A-Fa-f]+ \(([a-z+]+)\)(?:: "(.*)")?$')
_FAULT_THREAD = re.compile(r"(Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):$")
_FRAME = re.compile(r"    (.*) \((.*?)(?::(\d+))?\)( \[native\])?$")
_FAULT_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)$')


class NotStacksError(ValueError):
    """The file has no stacks of a known format."""


class _PySpyFrame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0
    module: str | None = None


class _PySpyThread(msgspec.Struct):
    frames: list[_PySpyFrame]
    thread_name: str | None = None
    active: bool = False
    owns_gil: bool = False
    thread_id: int = 0
    os_thread_id: int | None = None
    pid: int = 0


def parse_py_spy(data: bytes) -> tuple[Thread, ...]:
    """The threads in the output of `py-spy dump --json`. Raises msgspec.MsgspecError."""
    threads = msgspec.json.decode(data, type=list[_PySpyThread])
    return tuple(
        Thread(
            thread.thread_name or ("MainThread" if thread.os_thread_id == thread.pid else "thread"),
            tuple(Frame(_name(f.name), f.filename, f.line, f.module is not None) for f in reversed(thread.frames)),
            ("active+gil" if thread.owns_gil else "active") if thread.active else "idle",
        )
        for thread in threads
    )


def _name(function: str) -> str:
    """The function's name; `??` for a bare address, which differs from process to process."""
    return "??" if function.startswith("0x") else function


def parse_faulthandler(text: str) -> tuple[Thread, ...]:
    """The threads in a dump of faulthandler, whose last one is the main thread."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if _FAULT_THREAD.match(line):
            threads.append(("thread", []))
        elif (frame := _FAULT_FRAME.match(line)) and threads:
            threads[-1][1].append(Frame(frame[3], frame[1], int(frame[2])))
    if threads:
        threads[-1] = "MainThread", threads[-1][1]
    return tuple(Thread(name, tuple(reversed(frames))) for name, frames in reversed(threads))


def parse_dump(name: str, text: str) -> list[RankStacks]:
    """The ranks' stacks in one file. A file of one process names its rank (`rank-3.txt`).

    Raises NotStacksError with one line.
    """
    if text.lstrip().startswith("["):
        return _parse_json(name, text)
    if any(_RANK.match(line) for line in text.splitlines()):
        return parse_text(text)
    threads = parse_faulthandler(text) or _parse_threads(text.splitlines())
    if not threads:
        raise NotStacksError(f"{name}: no stacks of Everstep, py-spy or faulthandler")
    return [RankStacks(_rank_of(name), threads)]


def parse_text(text: str) -> list[RankStacks]:
    """The stacks that `stacks.as_text` wrote, other lines between them."""
    ranks: list[tuple[re.Match[str], list[str]]] = []
    for line in text.splitlines():
        if head := _RANK.match(line):
            ranks.append((head, []))
        elif ranks:
            ranks[-1][1].append(line)
    return [
        RankStacks(int(head[1]), _parse_threads(lines), int(head[2]), head[3] or "", _failure(lines))
        for head, lines in ranks
    ]


def _failure(lines: list[str]) -> str:
    return lines[0][1:-1] if lines and lines[0].startswith("(") else ""


def _parse_json(name: str, text: str) -> list[RankStacks]:
    try:
        return msgspec.json.decode(text, type=list[RankStacks])
    except msgspec.MsgspecError:
        pass
    try:
        return [RankStacks(_rank_of(name), parse_py_spy(text.encode()))]
    except msgspec.MsgspecError as error:
        raise NotStacksError(f"{name}: neither stacks of Everstep nor of py-spy: {error}") from None


def _rank_of(name: str) -> int:
    if match := _RANK_IN_NAME.search(name):
        return int(match[1])
    raise NotStacksError(f"{name}: which rank is it? Name the file rank-N.txt")


def _parse_threads(lines: list[str]) -> tuple[Thread, ...]:
    threads: list[tuple[str, str, list[Frame]]] = []
    for line in lines:
        if ours := _OUR_THREAD.match(line):
            threads.append((ours[1], ours[2] or "", []))
        elif theirs := _PY_SPY_THREAD.match(line):
            threads.append((theirs[2] or "thread", theirs[1], []))
        elif (frame := _FRAME.match(line)) and threads:
            threads[-1][2].append(Frame(frame[1], frame[2], int(frame[3] or 0), bool(frame[4])))
    return tuple(Thread(name, tuple(reversed(frames)), state) for name, state, frames in threads)
