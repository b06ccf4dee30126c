"""Command lines with argparse: help that fits the terminal, mistakes in one line with what was probably meant."""

import argparse
import difflib
import os
import re
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, NoReturn

from everstep.runtime.display.completion import COMPLETE_VARIABLE, candidates


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


_CHOICE = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)")


class Flags(argparse.ArgumentParser):
    """A parser that reports a mistake in one line on stderr: exit code 2."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"formatter_class": Help, **more})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown words in the parser of the verb that they follow, which knows the flags that may be meant."""
        if os.environ.get(COMPLETE_VARIABLE):
            print("\n".join(candidates(self, list(sys.argv[1:] if args is None else args))))
            self.exit()
        try:
            os.getcwd()
        except FileNotFoundError:
            self.exit(2, f"{self.prog}: the working folder was removed; change to another one\n")
        values, unknown = super().parse_known_args(args, namespace)
        if unknown:
            names = [word.partition("=")[0] for word in unknown if word.startswith("-")]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{did_you_mean(names, self._option_string_actions)}")
        return values, unknown

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, and where the right usage is."""
        if choice := _CHOICE.search(message):
            message += did_you_mean([choice[1]], re.findall(r"[\w.-]+", choice[2]))
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def did_you_mean(words: Iterable[str], words_allowed: Iterable[str]) -> str:
    """`; did you mean --nodes?` for words of which some are nearly known ones, else empty."""
    names = [*words_allowed]
    suggestions = [matches[0] for word in words if (matches := difflib.get_close_matches(word, names, 1))]
    return f"; did you mean {', '.join(dict.fromkeys(suggestions))}?" if suggestions else ""
