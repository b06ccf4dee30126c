"""Command lines with argparse: help that fits the terminal, mistakes in one line."""

import argparse
import textwrap
from typing import Any, NoReturn


class Help(argparse.HelpFormatter):
    """Shows each flag once, spelled with dashes; wraps paragraphs, except those that begin with a `title:`."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        names = ", ".join(name for name in action.option_strings if "_" not in name)
        if action.nargs == 0:
            return names
        return f"{names} {self._format_args(action, self._get_default_metavar_for_optional(action))}"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = (part.strip("\n") for part in text.split("\n\n"))
        return "\n\n".join(
            part
            if part.partition("\n")[0].endswith(":")
            else textwrap.fill(" ".join(part.split()), width, break_on_hyphens=False)
            for part in paragraphs
        )


class Flags(argparse.ArgumentParser):
    """A parser that reports a mistake in one line on stderr: exit code 2."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"formatter_class": Help, **more})

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, and where the right usage is."""
        self.exit(2, f"{self.prog}: {message}; see --help\n")
