"""Workers that write to one console at once: every line stays whole."""

import asyncio
import os
import select
from pathlib import Path

from everstep.runtime.agent.logs import LaunchLogs, LogPlan, Streams
from everstep.runtime.agent.output import Pipe, write_lines


async def tee(folder: Path, pieces: list[tuple[int, bytes]]) -> bytes:
    """What a console shows of two workers that write these (local rank, piece) to stdout."""
    reader, writer = os.pipe()
    plan = LogPlan(folder=str(folder / "logs"), tee=Streams(3))
    logs = LaunchLogs(plan, "default", folder, console=(writer, writer))
    logs.begin(0, [])
    outputs = [logs.open(rank, rank) for rank in (0, 1)]
    for rank, piece in pieces:
        await asyncio.to_thread(os.write, outputs[rank].stdout, piece)  # Meanwhile the loop reads.
    for output in outputs:
        output.close_descriptors()
        output.close()
    os.close(writer)
    with open(reader, "rb") as console:
        return console.read()


def test_a_line_that_comes_in_pieces_is_shown_whole(tmp_path: Path) -> None:
    pieces = [(0, b"apple"), (1, b"pear"), (0, b"\n"), (1, b"\nplum"), (0, b"cherry"), (1, b"\n"), (0, b"\n")]
    output = asyncio.run(tee(tmp_path, pieces))
    assert sorted(output.splitlines()) == [
        b"[default0]:apple", b"[default0]:cherry", b"[default1]:pear", b"[default1]:plum",
    ]  # fmt: skip


def test_no_write_of_many_lines_is_longer_than_a_pipe_keeps_together() -> None:
    reader, writer = os.pipe2(os.O_DIRECT)  # Each read gives one write.
    lines = [b"%04d %s\n" % (number, b"x" * 300) for number in range(40)]
    write_lines(writer, lines)
    os.close(writer)
    writes = list(iter(lambda: os.read(reader, 1 << 16), b""))
    os.close(reader)
    assert b"".join(writes) == b"".join(lines)
    assert 1 < len(writes) < len(lines)
    assert all(len(each) <= select.PIPE_BUF and each.endswith(b"\n") for each in writes)


def test_somebody_who_goes_on_writing_does_not_keep_a_dead_workers_pipe_open() -> None:
    lines_shown: list[bytes] = []

    async def story() -> None:
        def again(lines: list[bytes]) -> None:
            lines_shown.extend(lines)
            os.write(pipe.write_end, b"x" * 4000 + b"\n")

        pipe = Pipe(again)
        os.write(pipe.write_end, b"last words\n")
        pipe.close()
        os.close(pipe.write_end)

    asyncio.run(story())
    assert lines_shown[0] == b"last words"
