"""`oom_once.py MARK FOLDER MIB SCRIPT ARGUMENTS...`: runs a script whose memory grows by MIB, once.

It grows when FOLDER has a checkpoint, and if MARK, a file, is not there yet: MARK shows that it has begun to grow. The
process does not end by itself before it has grown: how long that takes depends on what else the machine does, and a
training that ends first sees no fault. With 0 MIB it only waits so, for another process that grows.
"""

import mmap
import runpy
import sys
import threading
from pathlib import Path

PAUSE_S = 0.05


def grow(mark: Path, folder: Path, size: int) -> None:
    """In a thread beside the script. Does not return: the kernel ends the process, or the round's end does."""
    pause = threading.Event()
    while size and not (folder / "checkpoint").exists():
        pause.wait(PAUSE_S)
    if size:
        mark.touch(exist_ok=False)
        block = mmap.mmap(-1, size)
        for page in range(0, size, mmap.PAGESIZE):
            block[page] = 1
    pause.wait()


def main() -> None:
    """Run the script, and in its first life the thread."""
    mark, folder, mib = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    del sys.argv[:4]
    beside = threading.Thread(target=grow, args=(mark, folder, mib << 20), daemon=True)
    is_first = not mark.exists()
    if is_first:
        beside.start()
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    if is_first:
        beside.join()


if __name__ == "__main__":
    main()
