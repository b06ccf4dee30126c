"""A user's own evaluation script: a process of its own that names what it measured with `everstep.results`."""

import os
import subprocess
import sys
from typing import Any

from everstep.runtime.data.results import read_results
from everstep.runtime.store import open_store
from everstep.runtime.store.code import fetch_code, is_code_address
from everstep.steps.entry import StepError
from everstep.steps.evaluate.config import Config
from everstep.steps.model import directory


def run_script(config: Config) -> dict[str, Any]:
    """Run it to its end; returns what it named. Raises StepError with its exit code (1) if it fails."""
    job = f"{config.run}-{config.task}"
    script_values = {
        "CHECKPOINT": config.checkpoint,
        "VALIDATION": config.validation,
        "MODEL": directory.absolute_address(config.model),
        "RESULTS": config.results or "{}",
        "STORE": config.store,
        "JOB": job,
    }
    environment = {**os.environ, **{f"EVERSTEP_{name}": value for name, value in script_values.items()}}
    script, folder = config.script, None
    if is_code_address(script):
        try:
            folder, script = fetch_code(script)
        except ValueError as error:
            raise StepError(f"--script {error}") from None
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), environment.get("PYTHONPATH"))))
    command = [sys.executable, "-u", script]
    process = subprocess.run(command, env=environment, cwd=folder, stdout=sys.stderr, check=False)
    if process.returncode:
        how = f"code {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
        raise StepError(f"--script {config.script}: it ended with {how}; its own error is above", 1)
    return dict(read_results(open_store(config.store), job))
