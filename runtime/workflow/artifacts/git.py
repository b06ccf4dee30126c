"""Artifacts from git repositories.

After Argo's documentation ("Git"). Credentials come from Secrets and reach `git` by its environment.
"""

import json
import os
import subprocess
import tempfile
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.runtime.net import web
from everstep.runtime.system import processes
from everstep.runtime.workflow.artifacts.remote import RemoteError, basic_auth, secret_value
from everstep.runtime.workflow.manifest.fields import list_at
from everstep.runtime.workflow.manifest.library import Library

MARK_VARIABLE = "EVERSTEP_CLONE"
"""The variable that marks the processes of a clone: some that git starts detach themselves."""


def clone(git: Mapping[str, Any], library: Library, to: Path, ending: web.Ending | None = None) -> None:
    """Clone a git location at its revision; `ending` may end it. Raises RemoteError, MissingObjectError."""
    repo, single, depth = str(git["repo"]), bool(git.get("singleBranch")), git.get("depth")
    if single and not git.get("branch"):
        raise RemoteError("single branch mode without a branch specified")
    shallow = [f"--depth={int(depth)}"] if depth else []
    over = ["--no-local"] if depth else []  # A local clone hard-links objects and ignores the depth.
    which = ["--single-branch", f"--branch={git['branch']}"] if single else ["--no-single-branch"]
    with tempfile.TemporaryDirectory() as keys:
        run = _Commands(repo, _git_environment(git, library, Path(keys)), to, ending or web.Ending()).run
        run("clone", "--quiet", *shallow, *over, *which, "--", repo, str(to), at=None)
        for ref in list_at(git, "fetch"):
            run("fetch", "--quiet", "--update-head-ok", *shallow, "origin", "--", str(ref))
        revision = str(git.get("revision") or "")
        if revision:
            ways = (f"refs/tags/{revision}", f"refs/remotes/origin/{revision}", revision)
            commits = (
                way for way in ways if run("rev-parse", "--verify", "--quiet", f"{way}^{{commit}}", may_fail=True)
            )
            at = next(commits, "")
            if not at and not run("fetch", "--quiet", "origin", "--", revision, may_fail=True):
                raise RemoteError("failed to get resolve revision: reference not found")
            run("checkout", "--quiet", "--detach", at or "FETCH_HEAD", "--")
        if not git.get("disableSubmodules"):
            run("submodule", "--quiet", "update", "--init", "--recursive")


class _Commands:
    """Runs git commands for one clone, each in a session of its own, so that none prompts at a terminal."""

    def __init__(self, repo: str, environment: Mapping[str, str], to: Path, ending: web.Ending) -> None:
        self._repo = repo
        self._mark = f"{MARK_VARIABLE}={to}"
        self._environment = {**environment, MARK_VARIABLE: str(to)}
        self._to = to
        self._ending = ending

    def run(self, *words: str, at: Path | None = Path(), may_fail: bool = False) -> bool:
        """Run a command in the clone, or in the current folder if `at` is None. Returns whether it succeeded.

        Raises RemoteError if it fails and `may_fail` is not set, or if it was ended; then no process of it is left.
        """
        cwd = self._to / at if at else None
        with tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    ["git", *words], cwd=cwd, env=self._environment, start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                )  # fmt: skip
            except FileNotFoundError:
                raise RemoteError("git is not in PATH; install it") from None
            with self._ending.reaching(process.kill):
                process.wait()
            if self._ending.why:
                processes.kill_processes(lambda variables: self._mark.encode() in variables)
                raise RemoteError(self._ending.why)
            if process.returncode and not may_fail:
                errors.seek(0)
                lines = errors.read().decode(errors="replace").strip().splitlines()
                why = lines[-1] if lines else process.returncode
                raise RemoteError(f"failed to {words[0]} {json.dumps(self._repo)}: {why}")
        return process.returncode == 0


def _git_environment(git: Mapping[str, Any], library: Library, keys: Path) -> dict[str, str]:
    """Variables with the credentials, so that none appears in a command line."""
    variables = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    user, password = secret_value(git, "usernameSecret", library), secret_value(git, "passwordSecret", library)
    place = urllib.parse.urlsplit(str(git["repo"]))
    if user or password:
        variables["GIT_CONFIG_COUNT"] = "1"
        variables["GIT_CONFIG_KEY_0"] = f"http.{place.scheme}://{place.netloc}/.extraHeader"
        variables["GIT_CONFIG_VALUE_0"] = f"Authorization: {basic_auth(user, password)}"
    if git.get("insecureSkipTLS"):
        variables["GIT_SSL_NO_VERIFY"] = "1"
    ssh = ["ssh", "-o", "BatchMode=yes"]
    if key := secret_value(git, "sshPrivateKeySecret", library):
        path = keys / "key"
        path.touch(0o600)
        path.write_text(f"{key.rstrip()}\n")
        ssh += ["-i", str(path), "-o", "IdentitiesOnly=yes"]
    if git.get("insecureIgnoreHostKey"):
        ssh += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    return {**variables, "GIT_SSH_COMMAND": " ".join(ssh)} if len(ssh) > 3 else variables
