"""`make accept-executor`: every promise of the embedded executor: wanted, measured, holds or not.

What tests prove is proven by the tests named in the line; the recorded cases, times and memory are measured here.
`python -m benchmarks.accept_executor WORD...`: only lines that have one of the words.
"""

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks import executor
from benchmarks.acceptance import Line, judge, proven
from tests.harness import ROOT
from tests.workflow.different import DIFFERENT
from tests.workflow.golden_cases import answers
from tests.workflow.test_golden import CASES, GOLDEN
from tests.workflow.test_lint import MISTAKES, REFUSED_BY_ARGO, RIGHT, told

WORKFLOW = "tests/workflow"
EXAMPLES = 120
"""How many published examples shall end as on Argo."""


def figures() -> Iterator[Line]:
    """Times, growth and memory."""
    yield from (line for line in executor.lines() if line.wanted)


def recorded() -> Iterator[Line]:
    """Every recorded case is run again."""
    paths = [GOLDEN / f"{case}.yaml" for case in CASES]
    with tempfile.TemporaryDirectory() as runs:
        found = asyncio.run(answers(paths, Path(runs)))
    counts, others = Counter[str](), list[str]()
    for case, answer in found.items():
        wanted = DIFFERENT[case][0] if case in DIFFERENT else "agrees"
        counts["otherwise" if wanted != answer.verdict else "agree" if wanted == "agrees" else "listed"] += 1
        others += [case] if wanted != answer.verdict else []
    shown = f"{counts['agree']} agree, {counts['listed']} are listed with their reason, {len(others)} do otherwise"
    yield Line(f"recorded answers of a real Argo, {len(CASES)} cases: phases, messages, nodes, inputs, outputs",
               "all agree or are listed", f"{shown} {' '.join(others[:5])}".strip(), not others)  # fmt: skip


def mistakes() -> Iterator[Line]:
    """What the lint finds."""
    found = sum(bool(told(GOLDEN / "mistakes" / f"{case}.yaml")) for case in MISTAKES)
    yield Line("lint: planted mistakes that are found", f"{len(MISTAKES)}", f"{found}", found == len(MISTAKES))


def accused() -> Iterator[Line]:
    """What it does not let pass."""
    right = [case for case in RIGHT if case not in REFUSED_BY_ARGO]
    wrong = [case for case in right if any(one.error for one in told(GOLDEN / f"{case}.yaml"))]
    shown = f"{len(wrong)} of {len(right)} {' '.join(wrong[:5])}".strip()
    yield Line("lint: cases that succeeded on Argo and are accused", "0", shown, not wrong)


def examples() -> Iterator[Line]:
    """The published examples, from the table that their test has left."""
    promise, wanted = "published examples of Argo Workflows", f"at least {EXAMPLES} end as on Argo"
    table = ROOT / WORKFLOW / "examples.json"
    if not table.exists():
        shown = f"never run: ARGO_EXAMPLES=DIR pytest {WORKFLOW}/test_examples.py"
        yield Line(promise, wanted, shown, False)
        return
    ended = json.loads(table.read_text())
    well = sum(one["phase"] == one["expected"] for one in ended.values())
    yield Line(promise, wanted, f"{well} of {len(ended)}", well >= EXAMPLES)


MEASURED = {
    "times, growth, memory": figures,
    "recorded answers": recorded,
    "published examples": examples,
    "lint: planted mistakes": mistakes,
    "lint: accused": accused,
}
"""In this order: the memory of the figures is only theirs."""


def in_tests(names: str, words: str = "") -> tuple[str, ...]:
    """Arguments of pytest: files of tests/workflow, and which of their tests."""
    files = [f"{WORKFLOW}/test_{name}.py" for name in names.split()]
    return (*files, "-k", words) if words else tuple(files)


PROVEN = {
    "lint: file:line: code: message and the mend; json, sarif": in_tests("lint", "says or sarif or json"),
    "lint runs in everstep.submit": ("tests/face/test_pipeline.py", "-k", "linted"),
    "run: -p, --parameter-file, --entrypoint, -n, -o, --work-dir, --with, --path, --image; exit codes 0, 1, 2":
        in_tests("command_workflow", "run or exit or programs"),
    "run: a pipeline's Python file is as good as its YAML": in_tests("runs", "python"),
    "get, list, logs: printed as by the argo command": in_tests("runs", "argo or logs or times"),
    "logs -f, resume, set, retry, stop, terminate: as the argo command names them":
        in_tests("command_workflow readme engine", "logs or stop or suspended or again or killed"),
    "rules without a recorded answer, their ends written down from Argo's documentation": in_tests("expected everyday"),
    "both expression languages: own grammars, own types; errors say where": in_tests("expressions"),
    "what the README says of it is true when pasted": in_tests("readme"),
    "bad input: one line with file and line, exit 2, nothing run":
        in_tests("bad_input command_workflow", "bad or another_file or one_line or lint"),
    "kill -9 at any write, then the same again: nothing runs twice": ("tests/survival/test_executor_killed.py",),
    "two pods write one absolute path and do not meet; stop ends what was made a daemon": in_tests("isolation"),
    "a kernel without namespaces: it is said once, and declared files are still found":
        in_tests("laptop", "namespaces"),
    "http templates, daemons with a probe, artifacts in a bucket, artifactRepositoryRef": in_tests("services"),
    "git, http with a password, data templates, the pod's own facts, progress": in_tests("laptop", "not namespaces"),
    "what needs a cluster: refused by name": in_tests("engine bad_input", "refused or cluster"),
    "locks and remembered outputs, also between runs": in_tests("shared"),
    "random DAGs and retries against a slow model; a crash after any event": in_tests("properties"),
    "the engine: virtual time, every order of ends, replay": in_tests("engine"),
    "the runner of processes stands behind a Protocol": in_tests("runner"),
    "twice the nodes are twice the work, counted in calls": in_tests("growth"),
}  # fmt: skip


def lines(words: list[str]) -> Iterator[Line]:
    """Those that are meant, or all."""

    def meant(name: str) -> bool:
        return not words or any(word.lower() in name.lower() for word in words)

    for name, measure in MEASURED.items():
        if meant(name):
            yield from measure()
    yield from (proven(promise, *tests) for promise, tests in PROVEN.items() if meant(promise))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only lines that have it")
    judge(lines(parser.parse_args().words))


if __name__ == "__main__":
    main()
