"""`oom_once.py MARK FOLDER MIB SCRIPT ARGUMENTS...`: runs a script whose memory grows by MIB, once.

It grows when FOLDER has a checkpoint, and if MARK, a file, is not there yet: MARK shows that it has begun to grow.
"""

import mmap
import runpy
import sys
import threading
from pathlib import Path

PAUSE_S = 0.05


def grow(mark: Path, folder: Path, size: int) -> None:
    """In a thread beside the script."""
    pause = threading.Event()
    while not (folder / "checkpoint").exists():
        pause.wait(PAUSE_S)
    mark.touch(exist_ok=False)
    block = mmap.mmap(-1, size)
    for page in range(0, size, mmap.PAGESIZE):
        block[page] = 1
    pause.wait()


if __name__ == "__main__":
    mark, folder, mib = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    del sys.argv[:4]
    if not mark.exists():
        threading.Thread(target=grow, args=(mark, folder, mib << 20), daemon=True).start()
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
