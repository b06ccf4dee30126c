"""What the flags say about a manifest: its files, the commands of its images, its parameters."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from everstep.cli.workflow_flags import Manifest
from everstep.errors import BadInput

if TYPE_CHECKING:
    from everstep.runtime.workflow.manifest.files import LoadedWorkflow


def load_workflow(flags: Manifest) -> "LoadedWorkflow":
    """The workflow of the files that they name. Raises BadInput."""
    from everstep.runtime.workflow import ManifestError
    from everstep.runtime.workflow.manifest.files import load

    try:
        return load(flags.file, flags.with_, image_commands(flags))
    except ManifestError as error:
        raise BadInput(str(error)) from None


def image_commands(flags: Manifest) -> dict[str, list[str]]:
    """By image, for containers that have no command. Raises BadInput."""
    return {name: _split_command(name, command) for name, command in parse_pairs(flags.image, "--image").items()}


def _split_command(image: str, command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise BadInput(f"--image {image}={command}: {error}") from None


def parse_pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    """Each NAME=VALUE of a flag that may be given several times. Raises BadInput."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, value in pairs:
        if not name or not equals:
            raise BadInput(f"{flag} {name or value!r}: write NAME=VALUE")
    for name, _, value in pairs:
        if not f"{name}{value}".isascii() and any("\ud800" <= character <= "\udfff" for character in f"{name}{value}"):
            raise BadInput(f"{flag} {name!r}: not UTF-8 text")
    return {name: value for name, _, value in pairs}


def parameter_values(flags: Manifest) -> dict[str, str]:
    """Of the file with parameters, then of the command line. Raises BadInput."""
    from everstep.runtime.workflow.expressions.values import go_json
    from everstep.runtime.workflow.manifest.yaml_source import ReadError, read

    values: dict[str, str] = {}
    if flags.parameter_file:
        try:
            values_of_file = read(flags.parameter_file)
        except ReadError as error:
            raise BadInput(str(error)) from None
        if len(values_of_file) != 1 or not isinstance(values_of_file[0].value, Mapping):
            raise BadInput(f"{flags.parameter_file}: not a map of parameters")
        entries = values_of_file[0].value.items()
        values = {str(name): value if isinstance(value, str) else go_json(value) for name, value in entries}
    return {**values, **parse_pairs(flags.parameter, "-p")}


def warn_unread_parameters(workflows: "Sequence[LoadedWorkflow]", values: Mapping[str, str]) -> None:
    """Say which given parameters no workflow has or reads: they change nothing."""
    from everstep.runtime.workflow.manifest.parse import parameter_names
    from everstep.runtime.workflow.manifest.schema import nearest_hint

    parameter_names_read = dict.fromkeys(
        name for workflow in workflows for name in parameter_names(workflow.document.value, workflow.library)
    )
    for name in values:
        if name not in parameter_names_read and "" not in parameter_names_read:
            message = (
                f"the workflow has no such parameter, so it changes nothing{nearest_hint(name, parameter_names_read)}"
            )
            print(f"warning: -p {name}: {message}", file=sys.stderr)
