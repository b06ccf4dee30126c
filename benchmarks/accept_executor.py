"""`make accept-executor`: every promise of the embedded executor: wanted, measured, holds or not.

What tests prove is proven by the tests named in the line; the recorded cases, times and memory are measured here.
"""

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
COMMAND = f"{WORKFLOW}/test_command_workflow.py"


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


def lint() -> Iterator[Line]:
    """What it finds, what it lets pass, how long it takes."""
    found = sum(bool(told(GOLDEN / "mistakes" / f"{case}.yaml")) for case in MISTAKES)
    yield Line("lint: planted mistakes that are found", f"{len(MISTAKES)}", f"{found}", found == len(MISTAKES))
    right = [case for case in RIGHT if case not in REFUSED_BY_ARGO]
    accused = [case for case in right if any(one.error for one in told(GOLDEN / f"{case}.yaml"))]
    shown = f"{len(accused)} of {len(right)} {' '.join(accused[:5])}".strip()
    yield Line("lint: cases that succeeded on Argo and are accused", "0", shown, not accused)
    yield proven(
        "lint: file:line: code: message and the mend; json, sarif", f"{WORKFLOW}/test_lint.py", "-k", "says or sarif"
    )
    yield proven("lint runs in everstep.submit", "tests/face/test_pipeline.py", "-k", "linted")


def examples() -> Line:
    """The published examples, from the table that their test has left."""
    wanted, table = "at least 120 end as on Argo", ROOT / WORKFLOW / "examples.json"
    if not table.exists():
        return Line("published examples of Argo Workflows", wanted, "never run: ARGO_EXAMPLES=DIR pytest "
                    f"{WORKFLOW}/test_examples.py", False)  # fmt: skip
    ended = json.loads(table.read_text())
    well = sum(one["phase"] == one["expected"] for one in ended.values())
    return Line("published examples of Argo Workflows", wanted, f"{well} of {len(ended)}", well >= 120)


def behaviour() -> Iterator[Line]:
    """What a user does with it."""
    runs, laptop, services = (f"{WORKFLOW}/test_{name}.py" for name in ("runs", "laptop", "services"))
    yield proven(
        "run: -p, -n, -o, --with, --path, --image; exit codes 0, 1, 2", COMMAND, "-k", "run or exit or programs"
    )
    yield proven("run: a pipeline's Python file is as good as its YAML", runs, "-k", "python")
    yield proven("get, list, logs: printed as by the argo command", runs, "-k", "argo or logs or times")
    yield proven("logs -f, resume, set, retry, stop, terminate: as the argo command names them", COMMAND,
                 f"{WORKFLOW}/test_readme.py", f"{WORKFLOW}/test_engine.py", "-k",
                 "logs or stop or suspended or again or killed")  # fmt: skip
    yield proven("what the README says of it is true when pasted", f"{WORKFLOW}/test_readme.py")
    yield proven("bad input: one line with file and line, exit 2, nothing run", f"{WORKFLOW}/test_bad_input.py",
                 COMMAND, "-k", "bad or another_file or one_line or lint")  # fmt: skip
    yield proven(
        "kill -9 at any write, then the same again: nothing runs twice", "tests/survival/test_executor_killed.py"
    )
    yield proven("two pods write one absolute path and do not meet; stop ends what was made a daemon",
                 f"{WORKFLOW}/test_isolation.py")  # fmt: skip
    yield proven("a kernel without namespaces: it is said once, and declared files are still found", laptop, "-k",
                 "namespaces")  # fmt: skip
    yield proven("http templates, daemons with a probe, artifacts in a bucket, artifactRepositoryRef", services)
    yield proven("git, http with a password, data templates, the pod's own facts, progress", laptop, "-k",
                 "not namespaces")  # fmt: skip
    yield proven("what needs a cluster: refused by name", f"{WORKFLOW}/test_engine.py", f"{WORKFLOW}/test_bad_input.py",
                 "-k", "refused or cluster")  # fmt: skip
    yield proven("locks and remembered outputs, also between runs", f"{WORKFLOW}/test_shared.py")
    yield proven(
        "random DAGs and retries against a slow model; a crash after any event", f"{WORKFLOW}/test_properties.py"
    )
    yield proven("the engine: virtual time, every order of ends, replay", f"{WORKFLOW}/test_engine.py")
    yield proven("twice the nodes are twice the work, counted in calls", f"{WORKFLOW}/test_growth.py")


def lines() -> Iterator[Line]:
    """All; the figures first, so that their memory is only theirs."""
    yield from (line for line in executor.lines() if line.wanted)
    yield from recorded()
    yield examples()
    yield from lint()
    yield from behaviour()


def main() -> None:
    """Measure and print."""
    judge(lines())


if __name__ == "__main__":
    main()
