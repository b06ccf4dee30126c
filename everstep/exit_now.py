"""How a command exits while its threads may still wait for an answer."""

import logging
import os
import sys
from typing import NoReturn


def exit_now(code: int) -> NoReturn:
    """End the process with that exit code, whatever its daemon threads do.

    sys.exit would tear the threads down. A thread that gets its answer at that moment ends within compiled code and
    aborts the process.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
