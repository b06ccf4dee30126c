"""torchrun, imported once for many launches: each line of JSON on stdin is one, which runs in a fork of this process.

A line tells `folder`, `arguments`, `environment`, `out` and `err`; the answer is a line with the launch's exit code.
"""

import json
import os
import sys
import traceback
from typing import Any, NoReturn


def launch(request: dict[str, Any], added: dict[str, str], parent: int) -> NoReturn:
    """Be `python -m torch.distributed.run` in that folder."""
    from torch.distributed import run

    from everstep.runtime.agent.forkserver import die_with_parent

    die_with_parent(parent)
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update({**request["environment"], **added})
    for file, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["out"], os.O_WRONLY),
        (2, request["err"], os.O_WRONLY),
    ):
        os.dup2(os.open(path, flags | os.O_CREAT), file)
    sys.argv = [str(run.__file__), *request["arguments"]]
    sys.path[0] = request["folder"]
    sys.modules["__main__"] = run  # What it starts by `spawn` imports this again.
    try:
        run.main(request["arguments"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the outermost edge of the process
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """One launch after the other."""
    before = dict(os.environ)
    import torch.distributed.run  # noqa: F401

    added = {name: value for name, value in os.environ.items() if before.get(name) != value}
    answers, parent = os.dup(1), os.getpid()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.close(answers)
            launch(json.loads(line), added, parent)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(answers, f"{code}\n".encode())


if __name__ == "__main__":
    main()
