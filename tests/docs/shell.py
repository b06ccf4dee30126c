"""Does what a page tells its reader: its files are written and its commands run, in an empty folder, as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.harness import PATIENCE_S, ROOT

FILE = re.compile(r"[Ss]ave (?:it|this|this one) as `([\w./]+)`")


def prepare(folder: Path) -> Path:
    """Make it a user's folder: the repository's pipelines, and `python` and `everstep` in the PATH."""
    (folder / "bin").mkdir()
    for name, words in (("python", ""), ("everstep", "-m everstep")):
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        command.chmod(0o755)
    (folder / "pipelines").symlink_to(ROOT / "pipelines")
    return folder


def script_of(page: Path) -> str:
    """A shell script of all that the page tells its reader to do."""
    script = ["set -e"]
    for text, kind, block in re.findall(r"(.*?)^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        if kind == "sh":
            script.append(block)
        elif names := FILE.findall(text):
            script.append(f"cat > {names[-1]} <<'END_OF_FILE'\n{block}END_OF_FILE")
    return "\n".join(script)


def follow(page: Path, folder: Path) -> str:
    """Do what the page says; returns what was printed. An exit code other than 0 fails the test."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("ARGO_", "EVERSTEP_", "KUBE"))
    }
    environment |= {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "COLUMNS": "120"}
    completed = subprocess.run(
        ["bash", "-c", script_of(page)], cwd=folder, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False, timeout=3 * PATIENCE_S,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout[-5000:]
    return completed.stdout
