"""`everstep ui`: one local page over all runs of a folder and of a namespace.

`sources` reads runs, `snapshot` makes the page's data of one, `live_ranks` what its workers do now, `actions` runs the
verbs behind the buttons, `server` serves all that to a browser, which runs `static`. The story begins in `server`.
"""

import argparse
import asyncio
import secrets
import sys
import webbrowser
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from everstep.errors import BadInput
from everstep.flags import Flag, add_action

if TYPE_CHECKING:
    from everstep.cli.ui.sources import Source


@dataclass(frozen=True)
class Ui:
    """Serve a page that shows every run while it happens: steps, loss, nodes, faults, logs; with buttons."""

    runs: Path = Path("runs")
    """Directory of the run folders."""
    namespace: Annotated[str, Flag("-n")] = ""
    """Show the runs of this namespace, too (ARGO_SERVER, else the kube context)."""
    port: int = 0
    """Port on 127.0.0.1; 0: a free one."""
    open: bool = False
    """Open the page in a browser."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Ui, run)
    parser.epilog = "examples: everstep ui --open; everstep ui --runs /data/runs -n ml --port 8899"


def run(flags: Ui) -> int:
    """Serve until Ctrl-C or SIGTERM; returns the exit code. Raises BadInput."""
    from everstep.cli.ui.server import serve
    from everstep.runtime.net.token_gate import listen

    if not 0 <= flags.port <= 65535:
        raise BadInput(f"--port {flags.port}: give a number up to 65535")
    sources = _sources(flags)
    try:
        listener = listen("127.0.0.1", flags.port)
    except OSError as error:
        raise BadInput(f"--port {flags.port}: {error.strerror}; give another one, or none") from None
    token = secrets.token_urlsafe(32)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/#{token}"
    print(f"{address}\nWhoever knows this address may stop and scale these runs. Ctrl-C ends the page.", flush=True)
    with ExitStack() as stack:
        if flags.open:
            _open_in_browser(address, Path(stack.enter_context(TemporaryDirectory(prefix="everstep-ui-"))))
        try:
            asyncio.run(serve(sources, listener, token))
        except KeyboardInterrupt:
            print(file=sys.stderr)
    return 0


def _open_in_browser(address: str, folder: Path) -> None:
    """Open the page by a file of this user that redirects to it: all users see a browser's command line."""
    path = folder / "everstep.html"
    path.touch(mode=0o600)
    path.write_text(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={address}">\n')
    webbrowser.open(path.as_uri())


def _sources(flags: Ui) -> "dict[str, Source]":
    """Where runs are, by name. Raises BadInput."""
    from everstep.cli.ui.sources import ClusterRuns, LocalRuns

    if flags.runs.exists() and not flags.runs.is_dir():
        raise BadInput(f"--runs {flags.runs}: not a folder")
    local_runs = LocalRuns(flags.runs)
    if not flags.namespace:
        return {local_runs.place: local_runs}
    cluster_runs = ClusterRuns(flags.namespace)
    cluster_runs.entries()  # Says now what is wrong.
    return {local_runs.place: local_runs, cluster_runs.place: cluster_runs}
