"""docs/reference/flags.md: the flags of every verb, step and pipeline, from their parsers."""

import argparse
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from docs.rendering.source import cell
from everstep import flags
from everstep.cli.main import VERBS
from everstep.options import Submission
from everstep.pipelines import llama_finetune
from everstep.runtime.display.flaghelp import Flags
from everstep.runtime.launch.flags import Parser

STEPS = ("corpus", "model", "preprocess", "check", "train", "evaluate", "report", "chaos", "verdict")


def verb_parsers() -> Iterator[argparse.ArgumentParser]:
    """The parser of each verb, and of each verb below it."""
    yield Parser({})
    for verb, text in VERBS.items():
        if verb == "launch":
            continue
        parser = Flags(prog=f"everstep {verb}", description=text)
        importlib.import_module(f"everstep.cli.{verb}").configure(parser)
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        yield from below[0].choices.values() if below else (parser,)


def step_parser(step: str) -> argparse.ArgumentParser:
    """The parser of that step."""
    config = importlib.import_module(f"everstep.steps.{step}.config").Config
    parser = Flags(prog=f"python -m everstep.steps.{step}", description=inspect.getdoc(config), allow_abbrev=False)
    flags.add_flags(parser, config)
    return parser


def pipeline_parser(config: type[Any] = llama_finetune.Config) -> argparse.ArgumentParser:
    """The parser of a pipeline with that config."""
    parser = Flags(prog="python PIPELINE.py", description="", allow_abbrev=False)
    flags.add_flags(parser, Submission)
    flags.add_flags(parser, config)
    return parser


def _rows(actions: list[argparse.Action]) -> str:
    rows = "| flag | meaning |\n|---|---|\n"
    for action in actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        names = [option for option in action.option_strings if "_" not in option] or [action.metavar or action.dest]
        metavar = "" if action.nargs == 0 or not action.option_strings else f" {action.metavar or action.dest.upper()}"
        names_shown = ", ".join(f"`{name}`" for name in names[:-1] if isinstance(name, str))
        last = f"`{names[-1]}{metavar}`".replace("|", "\\|")
        text = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
        rows += f"| {names_shown + ', ' if names_shown else ''}{last} | {cell(text)} |\n"
    return rows


def _section(title: str, parser: argparse.ArgumentParser) -> str:
    actions = parser._actions
    return f"### {title}\n{_rows(actions)}\n" if len(actions) > 1 else ""


def render() -> str:
    """The page."""
    verbs = "".join(_section(f"`{parser.prog}`", parser) for parser in verb_parsers())
    steps = "".join(_section(f"`python -m everstep.steps.{step}`", step_parser(step)) for step in STEPS)
    common, own = Flags(allow_abbrev=False), Flags(allow_abbrev=False)
    flags.add_flags(common, Submission)
    flags.add_flags(own, llama_finetune.Config)
    return f"""\
# Flags

Made from the parsers by `make reference`; a test keeps it true. `--help` of each command says the same, with examples.
Flags may be spelled with underscores, too.

## Pipelines
Every field of a pipeline's `Config` is a flag. Every pipeline also has the flags below.

### Every pipeline
{_rows(common._actions)}
### `pipelines/llama_finetune.py`
{_rows(own._actions)}
## The command `everstep`
{verbs}
## Steps
A step's flags are the inputs of its template: `train.task(learning_rate=1e-3)` passes `--learning-rate`. A pipeline
fills `--store`, `--run`, `--task` and `--outputs` itself.

{steps}"""
