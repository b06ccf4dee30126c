"""A plain `python script.py` waits for gloo before the interpreter ends: `process_group._wait_for_gloo` says why."""

import ctypes
import threading
import time

from everstep import process_group
from tests.harness import wait_until


def test_it_waits_for_a_gloo_thread_that_works_and_not_for_one_that_rests() -> None:
    working, worked, leave = threading.Event(), threading.Event(), threading.Event()

    def thread() -> None:
        assert ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop", 0, 0, 0) == 0  # PR_SET_NAME
        working.set()
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
        worked.set()
        leave.wait()

    gloo = threading.Thread(target=thread)
    gloo.start()
    working.wait()
    process_group._wait_for_gloo(60)
    assert worked.is_set()
    process_group._wait_for_gloo(60)
    leave.set()
    gloo.join()
    wait_until(
        lambda: not list(process_group._threads("pt_gloo_runloop")), "the thread to be gone: its join is earlier"
    )
