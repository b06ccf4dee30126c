"""`python -m everstep.runtime.agent`: one node of a job.

Its fork server starts first, and imports what the script imports while the agent imports the rest of itself.
Exit codes: 0 left when the master said so, 2 bad input, 75 lost its master.
"""

import asyncio
import os
import sys
import traceback
from dataclasses import replace

from everstep.runtime.agent.forkserver_process import start_fork_server
from everstep.runtime.agent.script import Kind, split_command
from everstep.runtime.agent.settings import Settings, settings_of
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.store import StoreError, open_store
from everstep.runtime.store.code import fetch_code, is_code_address


def _with_code_here(settings: Settings) -> Settings:
    """Fetch a script that is in the store; its workers run in the folder of its code, and import from there.

    Raises ValueError, StoreError.
    """
    kind, target, arguments = split_command(settings.command)
    if kind is not Kind.SCRIPT or not is_code_address(target):
        return settings
    folder, script = fetch_code(target)
    os.chdir(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return replace(settings, command=[str(script), *arguments])


def main() -> None:
    """Run one agent to its end."""
    try:
        settings, persist_interval = settings_of(sys.argv[1:], os.environ)
        open_store(settings.store)
        settings = _with_code_here(settings)
    except (ValueError, StoreError) as error:
        print(f"agent: {error}", file=sys.stderr)
        sys.exit(ExitCode.BAD_INPUT)
    os.environ["EVERSTEP_NODE"] = settings.node  # This and EVERSTEP_JOB identify the node's processes.
    try:
        fork_server = None if settings.plain else start_fork_server(settings.command, settings.preload)
        from everstep.runtime.agent.node_process import run

        code = asyncio.run(run(settings, persist_interval, fork_server))
    except Exception:  # noqa: BLE001 - the outermost edge of the process
        traceback.print_exc()
        code = ExitCode.TRY_AGAIN
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Not sys.exit: a thread in the keeper may still wait for a dead worker.


if __name__ == "__main__":
    main()
