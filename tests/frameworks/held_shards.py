"""`held_shards.py MARK SCRIPT ARGUMENTS...`: runs a script that waits in its loop of shards until MARK, a file, exists.

It waits when it has done ENOUGH shards. So a training does not end before a test is done with it, however little of
the machine the test gets.
"""

import runpy
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import everstep

ENOUGH, PAUSE_S = 6, 0.05
"""The chief saves after 5."""


def held(shards: Iterator[Any], mark: Path) -> Iterator[Any]:
    """The same shards; it waits with the one after ENOUGH."""
    pause = threading.Event()
    for number, shard in enumerate(shards):
        while number >= ENOUGH and not mark.exists():
            pause.wait(PAUSE_S)
        yield shard


def main() -> None:
    """Run the script."""
    mark, unheld = Path(sys.argv[1]), everstep.shards
    del sys.argv[:2]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    with patch.object(everstep, "shards", lambda *args, **settings: held(unheld(*args, **settings), mark)):
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
