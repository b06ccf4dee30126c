"""Namespaces of Linux that a test makes for a program of its own."""

import subprocess


def unshare(*options: str) -> list[str] | None:
    """The words of `unshare` with these options that begin a command, as root or in a user namespace of its own. None:
    they cannot be made here."""
    for begin in (["unshare"], ["unshare", "-Ur"]):
        command = [*begin, *options]
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    return None
