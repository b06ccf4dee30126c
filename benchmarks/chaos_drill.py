"""`make drill-on-cluster`: the drill in pods of two nodes, by Argo's own controller and executor; its page is kept.

    python -m benchmarks.chaos_drill --page build/drill-argo.html process-crash master-lost

One Workflow has all experiments, or those that are named. Printed are their rows, as
Markdown, with the load of the machine meanwhile. As root. Exit code 1: a row does not hold, or is missing.
"""

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from everstep.runtime.store import open_store
from everstep.steps.chaos.drill import CASES, check_names
from everstep.steps.entry import StepError
from tests.cluster import argo, corpora, lifecycle
from tests.cluster.commands import argo_flags, environment_of
from tests.cluster.lifecycle import Cluster
from tests.cluster.plane import BUCKET
from tests.cluster.processes import ClusterError
from tests.golang import NoGoError
from tests.harness import ROOT

PIPELINE = ROOT / "pipelines" / "chaos_drill.py"
ITERATIONS = 100
LOOK_S = 5.0
TITLES = (
    "holds", "final state, against the reference", "iterations computed again", "seconds without a new iteration",
)  # fmt: skip


@dataclass
class Row:
    """An experiment, as the page of the verdict tells it: the cells by their titles."""

    cells: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The experiment's."""
        return self.cells["experiment"]

    @property
    def holds(self) -> bool:
        """Does everything hold?"""
        return self.cells["holds"] == "yes"

    @property
    def text(self) -> str:
        """One line: seconds, iterations computed again and state, with their limits."""
        _, state, again, seconds = (self.cells[title] for title in TITLES)
        samples, happened = self.cells["samples"], self.cells["what happened"]
        return f"seconds {seconds}, computed again {again}, state {state}, samples {samples}; {happened}"

    @property
    def markdown(self) -> str:
        """A line of a Markdown table."""
        happened = f"{self.name}: {self.cells['what happened']}"
        return f"| {' | '.join([happened, *(self.cells[title] for title in TITLES)])} |"


class _Page(HTMLParser):
    """Reads the rows of a verdict's page."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self._title = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._title = (tag == "td" and dict(attrs).get("data-label")) or ""
        if self._title == "experiment":
            self.rows.append(Row())

    def handle_endtag(self, tag: str) -> None:
        self._title = ""

    def handle_data(self, data: str) -> None:
        if self._title:
            self.rows[-1].cells[self._title] = self.rows[-1].cells.get(self._title, "") + data


def rows_of(page: str) -> dict[str, Row]:
    """By the name of the experiment."""
    parser = _Page()
    parser.feed(page)
    return {row.name: row for row in parser.rows}


def drill_here(names: Sequence[str], iterations: int) -> str:
    """Run these experiments on this machine; returns the page, empty if there is none."""
    with tempfile.TemporaryDirectory(prefix="everstep-drill-") as folder:
        _call(["--name", "drill"], names, iterations, folder)
        page = Path(folder, "runs/drill/drill.html")
        return page.read_text() if page.exists() else ""


def drill_in_pods(names: Sequence[str], iterations: int) -> str:
    """Run these experiments on the cluster, which is up meanwhile; returns the page, empty if there is none. Raises
    ClusterError, NoGoError."""
    name = f"drill-{secrets.token_hex(3)}"
    with lifecycle.brought_up() as cluster:
        argo.install(cluster.kubectl)
        flags = [*argo_flags(name), "--corpus", corpora.corpus_in(cluster), "--logs"]
        _call(flags, names, iterations, ROOT, environment_of(cluster))
        return fetch_page(cluster, name)


def _call(
    flags: Sequence[str],
    names: Sequence[str],
    iterations: int,
    folder: str | Path,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run the pipeline as a user does; the page tells how it went."""
    command = [sys.executable, str(PIPELINE), *flags, "--only", ",".join(names), "--iterations", str(iterations)]
    subprocess.run(command, cwd=folder, env=variables, stdout=sys.stderr, check=False)


def fetch_page(cluster: Cluster, name: str) -> str:
    """The page of that Workflow, where Argo's executor has put it; empty if there is none."""
    for node in argo.workflow(cluster.kubectl, name)["status"].get("nodes", {}).values():
        for artifact in node.get("outputs", {}).get("artifacts", ()):
            if (node.get("templateName"), artifact["name"]) == ("verdict", "drill"):
                store = open_store(f"s3://{BUCKET}", environment=cluster.store)
                return store.get(artifact["s3"]["key"]).decode()
    return ""


@contextmanager
def _watch_load() -> Iterator[list[float]]:
    """Averages over 1 minute, from the whole time."""
    loads, over = [os.getloadavg()[0]], threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            loads.append(os.getloadavg()[0])

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield loads
    finally:
        over.set()
        thread.join()


def main() -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="only these")
    parser.add_argument("--iterations", type=int, default=ITERATIONS, help="of each training")
    parser.add_argument(
        "--page", type=Path, default=ROOT / "build/drill-argo.html", help="file that the page is kept in"
    )
    options = parser.parse_args()
    try:
        names = check_names(",".join(options.experiments or CASES))
        if why := lifecycle.missing():
            raise ClusterError(why)
        with _watch_load() as loads:
            page = drill_in_pods(names, options.iterations)
    except (StepError, ClusterError, NoGoError) as error:
        print(f"chaos_drill: {error}", file=sys.stderr)
        return 2
    rows = rows_of(page)
    if page:
        options.page.parent.mkdir(parents=True, exist_ok=True)
        options.page.write_text(page)
    load = f"load {min(loads):.0f} to {max(loads):.0f} on {os.cpu_count()} cores"
    print(f"{options.iterations} iterations, {load}; {f'the page: {options.page}' if page else 'no page'}\n")
    print(f"| {' | '.join(['experiment', *TITLES])} |\n|{'---|' * (1 + len(TITLES))}")
    print("\n".join(row.markdown for row in rows.values()))
    return 0 if all(name in rows and rows[name].holds for name in names) else 1


if __name__ == "__main__":
    sys.exit(main())
