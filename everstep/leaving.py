"""How a command ends whose threads may still wait for an answer."""

import logging
import os
import sys
from typing import NoReturn


def exit_now(code: int) -> NoReturn:
    """End the process with that code, whatever its daemon threads do.

    sys.exit would tear them down: one that gets its answer just then is ended within compiled code, and aborts the
    process.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
