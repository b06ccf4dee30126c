"""`everstep launch`: torchrun by another word. The command line is read by `runtime.launch`, as torch reads it."""

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Run one node of a job; returns the exit code (see `everstep launch --help`)."""
    from runtime.launch.flags import Parser
    from runtime.launch.options import options
    from runtime.launch.run import launch
    from runtime.store import StoreError

    environment = dict(os.environ)
    try:
        return launch(options(Parser(environment).parse_args(arguments), environment), environment)
    except (ValueError, StoreError) as error:
        print(f"everstep launch: {error}", file=sys.stderr)
        return 2
