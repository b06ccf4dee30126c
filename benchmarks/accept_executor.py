"""`make accept-executor`: every promise of the embedded executor: wanted, measured, holds or not.

The tests named in a line prove it; the recorded cases, times and memory are measured here.
`python -m benchmarks.accept_executor WORD...`: only lines that contain one of the words.
"""

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks import executor
from benchmarks.acceptance import Line, is_asked, judge, parse_options, prove
from tests.harness import ROOT
from tests.workflow.different import DIFFERENT
from tests.workflow.golden_cases import answers
from tests.workflow.test_golden import CASES, GOLDEN
from tests.workflow.test_lint import MISTAKES, REFUSED_BY_ARGO, RIGHT, findings_in

WORKFLOW = "tests/workflow"
EXAMPLES = 120
"""Published examples that must end as on Argo."""


def figures() -> Iterator[Line]:
    """Times, growth and memory."""
    yield from (line for line in executor.lines() if line.wanted)


def recorded_cases() -> Iterator[Line]:
    """Run every recorded case again."""
    paths = [GOLDEN / f"{case}.yaml" for case in CASES]
    with tempfile.TemporaryDirectory() as runs:
        answers_of_cases = asyncio.run(answers(paths, Path(runs)))
    counts, differing = Counter[str](), list[str]()
    for case, answer in answers_of_cases.items():
        expected_verdict = DIFFERENT[case][0] if case in DIFFERENT else "agrees"
        counts[
            "otherwise" if expected_verdict != answer.verdict else "agree" if expected_verdict == "agrees" else "listed"
        ] += 1
        differing += [case] if expected_verdict != answer.verdict else []
    measured_text = (
        f"{counts['agree']} agree, {counts['listed']} are listed with their reason, {len(differing)} do otherwise"
    )
    yield Line(f"recorded answers of a real Argo, {len(CASES)} cases: phases, messages, nodes, inputs, outputs",
               "all agree or are listed", f"{measured_text} {' '.join(differing[:5])}".strip(),
               not differing)  # fmt: skip


def mistakes() -> Iterator[Line]:
    """Planted mistakes that the lint finds."""
    accused_cases = sum(bool(findings_in(GOLDEN / "mistakes" / f"{case}.yaml")) for case in MISTAKES)
    yield Line(
        "lint: planted mistakes that are found", f"{len(MISTAKES)}", f"{accused_cases}", accused_cases == len(MISTAKES)
    )


def false_alarms() -> Iterator[Line]:
    """Correct workflows that the lint rejects."""
    right = [case for case in RIGHT if case not in REFUSED_BY_ARGO]
    wrong = [case for case in right if any(finding.error for finding in findings_in(GOLDEN / f"{case}.yaml"))]
    summary_text = f"{len(wrong)} of {len(right)} {' '.join(wrong[:5])}".strip()
    yield Line("lint: cases that succeeded on Argo and are accused", "0", summary_text, not wrong)


def examples() -> Iterator[Line]:
    """The published examples, from the table that their test wrote."""
    promise, budget_text = "published examples of Argo Workflows", f"at least {EXAMPLES} end as on Argo"
    table = ROOT / WORKFLOW / "examples.json"
    if not table.exists():
        bound_text = f"never run: ARGO_EXAMPLES=DIR pytest {WORKFLOW}/test_examples.py"
        yield Line(promise, budget_text, bound_text, False)
        return
    outcomes = json.loads(table.read_text())
    well = sum(outcome["phase"] == outcome["expected"] for outcome in outcomes.values())
    yield Line(promise, budget_text, f"{well} of {len(outcomes)}", well >= EXAMPLES)


MEASURED = {
    "times, growth, memory": figures,
    "recorded answers": recorded_cases,
    "published examples": examples,
    "lint: planted mistakes": mistakes,
    "lint: accused": false_alarms,
}
"""In this order: the memory of the figures must be theirs alone."""


WORKFLOWS, COMMAND = "tests/workflow/test_", f"{WORKFLOW}/test_command_workflow.py"
PROVEN = {
    "lint: file:line: code: message and the mend; json, sarif": (
        f"{WORKFLOWS}lint.py::says", f"{WORKFLOWS}lint.py::sarif", f"{WORKFLOWS}lint.py::json",
    ),
    "lint runs in everstep.submit": ("tests/face/test_pipeline.py::linted",),
    "run: -p, --parameter-file, --entrypoint, -n, -o, --work-dir, --with, --path, --image; exit codes 0, 1, 2": (
        f"{COMMAND}::run", f"{COMMAND}::exit", f"{COMMAND}::programs",
    ),
    "run: a pipeline's Python file is as good as its YAML": (f"{WORKFLOWS}runs.py::python",),
    "get, list, logs: printed as by the argo command": (f"{WORKFLOWS}runs.py", "!python"),
    "logs -f, resume, set, retry, stop, terminate: as the argo command names them": (
        f"{COMMAND}::stop", f"{COMMAND}::suspended", f"{COMMAND}::killed", f"{COMMAND}::logs",
        f"{WORKFLOWS}page.py::stopped",
        f"{WORKFLOWS}engine.py::again",
    ),
    "rules without a recorded answer, their ends written down from Argo's documentation": (
        f"{WORKFLOWS}expected.py", f"{WORKFLOWS}everyday.py",
    ),
    "both expression languages: own grammars, own types; errors say where": (f"{WORKFLOWS}expressions.py",),
    "what the documentation says of it is true when pasted": (f"{WORKFLOWS}page.py",),
    "bad input: one line with file and line, exit 2, nothing run": (
        f"{WORKFLOWS}bad_input.py", f"{COMMAND}::one_line", f"{COMMAND}::lint",
    ),
    "kill -9 at any write, then the same again: nothing runs twice": ("tests/survival/test_executor_killed.py",),
    "two pods write one absolute path and do not meet; stop ends what was made a daemon": (f"{WORKFLOWS}isolation.py",),
    "a kernel without namespaces: it is said once, and declared files are still found": (
        f"{WORKFLOWS}laptop.py::namespaces",
    ),
    "http templates, daemons with a probe, artifacts in a bucket, artifactRepositoryRef": (f"{WORKFLOWS}services.py",),
    "git, http with a password, data templates, the pod's own facts, progress": (
        f"{WORKFLOWS}laptop.py", "!namespaces",
    ),
    "what needs a cluster: refused by name": (f"{WORKFLOWS}engine.py::refused", f"{WORKFLOWS}bad_input.py::cluster"),
    "locks and remembered outputs, also between runs": (f"{WORKFLOWS}shared.py",),
    "random DAGs and retries against a slow model; a crash after any event": (f"{WORKFLOWS}properties.py",),
    "the engine: virtual time, every order of ends, replay": (f"{WORKFLOWS}engine.py",),
    "the runner of processes stands behind a Protocol": (f"{WORKFLOWS}runner.py",),
    "twice the nodes are twice the work, counted in calls": (f"{WORKFLOWS}growth.py",),
}  # fmt: skip
"""Promise -> the tests that prove it, in the words of `acceptance.proven`."""


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """The selected lines: the figures first, with the machine to themselves."""
    for name, measure in MEASURED.items():
        if is_asked(name, options.words):
            yield from measure()
    yield from prove(PROVEN, options)


def main() -> None:
    """Measure and print."""
    judge(lines(parse_options(argparse.ArgumentParser(description=__doc__), [*MEASURED, *PROVEN])))


if __name__ == "__main__":
    main()
