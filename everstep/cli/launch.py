"""`everstep launch`: torchrun under another name. `runtime.launch` reads the command line as torch does."""

import os
import sys
from collections.abc import Sequence

from everstep.errors import BadInput, require_platform
from everstep.exit_now import exit_now
from everstep.runtime.exit_codes import ExitCode


def main(arguments: Sequence[str]) -> int:
    """Run one node of a job to its end (see `everstep launch --help`); returns only for bad input, with 2."""
    try:
        require_platform()
    except BadInput as error:
        print(f"everstep launch: {error}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    from everstep.runtime.launch.flags import Parser
    from everstep.runtime.launch.options import read_launch
    from everstep.runtime.launch.run import launch
    from everstep.runtime.store import StoreError

    environment = dict(os.environ)
    try:
        code = launch(read_launch(Parser(environment).parse_args(arguments), environment), environment)
    except (ValueError, StoreError) as error:
        print(f"everstep launch: {error}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    return exit_now(code)  # A thread may still be waiting for a store that does not answer.
