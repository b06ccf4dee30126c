"""A script that ends with code 3 while its memory is registered with the device, and more of it is to be."""

import sys
import threading
from collections.abc import Callable

from tests.checkpoint.test_overlapped_saves import Training
from tests.checkpoint.threaded_device import ThreadedDevice


class Slow(ThreadedDevice):
    """Registers until it is cancelled."""

    def register(self, memory: memoryview, is_cancelled: Callable[[], bool] = lambda: False) -> bool:
        for _ in range(2000):
            if is_cancelled():
                print("registration was cancelled")
                return False
            threading.Event().wait(0.01)
        print("registered")
        return True


def main() -> int:
    """Two saves, into two slots."""
    run = Training(Slow(0))
    for _ in range(2):
        run.step()
        run.save()
    run.saves.finish()
    return 3


if __name__ == "__main__":
    sys.exit(main())
