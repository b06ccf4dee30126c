"""The script of a training that is a command, not a script: runs its role's command in this process's place.

Its one argument is a JSON mapping from roles to commands as a shell reads them. The command has the variables of a
worker: RANK, WORLD_SIZE, MASTER_ADDR, ROLE_NAME...
"""

import json
import os
import shlex
import sys

from everstep.runtime.exit_codes import ExitCode


def main(arguments: list[str], role: str) -> int:
    """Never returns if there is such a command; else the exit code."""
    try:
        commands = json.loads(arguments[0])
        words = shlex.split(commands[role] if role in commands else next(iter(commands.values())))
        os.execvp(words[0], words)
    except (IndexError, ValueError, StopIteration, AttributeError, TypeError) as error:
        print(f'@command: give --script-args \'{{"worker": "COMMAND"}}\' ({error})', file=sys.stderr)
        return ExitCode.BAD_INPUT
    except OSError as error:
        print(f"@command: {words[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ.get("ROLE_NAME", "")))
