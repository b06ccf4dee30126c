"""How long after a threshold something was named, by the journal's own times. `make accept-seeing` prints it."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from everstep.runtime.job.records import HangExplained, Record
from tests.launch.launchers import Launcher, until

Note = Callable[[str, object], None]
"""pytest's `record_property`."""
NAMED_S = "named_s"


def records(launcher: Launcher) -> list[Record]:
    """What the journals of its jobs hold."""
    files = sorted({path for place in (launcher.tmp, launcher.folder) for path in place.rglob("journal/[0-9]*")})
    lines = [line for path in files for line in path.read_bytes().splitlines() if b'"kind":"Segment"' not in line]
    return [msgspec.json.decode(line, type=Record) for line in lines]


def note_seconds(
    note: Note,
    launcher: Launcher,
    planted: Path,
    threshold_s: float,
    names: Callable[[Record], bool] = lambda record: isinstance(record, HangExplained),
) -> None:
    """Note the seconds from the threshold, `threshold_s` after that file was made, to the first record that names."""
    until(lambda: any(map(names, records(launcher))), lambda: f"a record that names, in {records(launcher)}")
    named_at = min(record.time for record in records(launcher) if names(record))
    note(NAMED_S, round(named_at - planted.stat().st_mtime - threshold_s, 1))
