"""`everstep completion bash|zsh|fish`: what a shell reads to complete everstep's verbs, flags and runs."""

import argparse
from dataclasses import dataclass
from typing import Annotated, Literal

from everstep.flags import Flag, add_action
from everstep.runtime.display.completion import SCRIPTS


@dataclass(frozen=True)
class Completion:
    """Print the completion for a shell."""

    shell: Annotated[Literal["bash", "zsh", "fish"], Flag(is_positional=True)]
    """The shell that will read it."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Completion, run)
    parser.epilog = "example: echo 'source <(everstep completion bash)' >> ~/.bashrc"


def run(flags: Completion) -> int:
    """Print the script."""
    print(SCRIPTS[flags.shell], end="")
    return 0
