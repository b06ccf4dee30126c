"""`make accept-seeing`: where every second went, who hangs and why, in any script: wanted, measured, holds or not.

Words on the command line select lines.
"""

import argparse
from collections.abc import Iterator

from benchmarks import calm, report, watching
from benchmarks.acceptance import Limit, Line, is_asked, judge, parse_options, prove
from tests.watch.named_after import NAMED_S

OVERHEAD = "any script: watching it costs <= 0.5 % of its time"
SCALE = "1,000 nodes x 10,000 iterations: the report's time, memory, page"
CALM = "no false alarm in ordinary training with pauses (--minutes 60: the promised hour)"
PLANTED = "tests/watch/test_planted_hangs.py::named_before_the_job_fails"
QUIET = "tests/watch/test_planted_hangs.py::only_takes_long"
SLOW = "tests/watch/test_slow_rank.py::what_of_it_is_slow"
CASES = {
    "one rank in an endless loop": [f"{PLANTED}::endless"],
    "never entering a collective": [f"{PLANTED}::entering"],
    "SIGSTOP": [f"{PLANTED}::SIGSTOP"],
    "a blocked read": [f"{PLANTED}::blocked"],
    "a full pipe": [f"{PLANTED}::pipe"],
    "deadlock by mismatched order": [f"{PLANTED}::mismatched order"],
    "mismatched shapes": [
        "tests/watch/test_planted_hangs.py::shapes_differ",
        "tests/watch/test_hang_culprit.py::different shape",
    ],
    "a dead data loader worker": [f"{PLANTED}::dead"],
    "a data loader worker that is stopped, or blocked": [f"{PLANTED}::loader worker that"],
    "swapped-out memory": [f"{PLANTED}::swapped", f"{SLOW}::memory"],
    "a slow disk": [f"{PLANTED}::slow disk", f"{SLOW}::disk"],
    "one slow rank (x 3)": ["tests/watch/test_slow_rank.py::three_times"],
    "a slow link": ["tests/launch/test_slow_link.py"],
    "a busy neighbour on the node": [f"{PLANTED}::busy", f"{SLOW}::CPU"],
    "a lock in a user's thread": [f"{PLANTED}::lock"],
    "a hang before the first iteration (one that computes: threshold is the start timeout, once a user sets one)": [
        "tests/watch/test_planted_hangs.py::first_iteration"
    ],
    "a hang in the check": ["tests/check/test_check_step.py::hangs_is_faulty"],
    "a hang in a restore": ["tests/watch/test_planted_hangs.py::restore_is_named"],
    "no alarm: an evaluation that is only long": [f"{QUIET}::evaluation"],
    "no alarm: a save that is only long": [f"{QUIET}::save"],
    "no alarm: a store that is only slow": ["tests/watch/test_planted_hangs.py::only_slow"],
    "no alarm: a start and an export that are only long": [f"{QUIET}::export", f"{QUIET}::start"],
}
"""The twenty planted cases and two more, each in real processes, and the tests that plant it."""
NAMED = Limit(NAMED_S, 30.0, "named {} s after its threshold")
"""The threshold of a hang: the time limit (4 s there) after it was planted; in the check half of the check's time. Of
shapes that differ: when they were planted. Of a slow rank or link: one window of 10 s after it was planted."""
PROVEN = {
    "any script, no everstep in it: iterations, collectives, phases, hangs": ["tests/watch/test_in_worker.py"],
    **{f"planted: {case}": tests for case, tests in CASES.items()},
    "the judgement: every cause, any order of ranks": ["tests/watch/test_hang_culprit.py"],
    "stacks: merged, folded, text, speedscope, SVG; properties": ["tests/watch/test_merge.py"],
    "stacks: dumps made before; faulthandler where ptrace is refused": ["tests/watch/test_dumps.py"],
    "stacks: native ones of real ranks, both pictures and the timeline as files": [
        "tests/watch/test_stack_pictures.py"
    ],
    "ledger: fourteen classes and `other`, no gap, no overlap, equal to a model second by second": [
        "tests/report/test_ledger.py"
    ],
    "attribution: the first cause among all ends, its echoes, evidence, hope": [
        "tests/diagnosis/test_error_kinds.py::first_cause",
        "tests/diagnosis/test_error_kinds.py::paragraph",
        "tests/diagnosis/test_error_kinds.py::kernel",
        "tests/agent/test_kernel_log.py",
    ],
    "kinds of errors: real ends of real processes, texts of torch, NCCL and the kernel": [
        "tests/diagnosis/test_error_kinds.py::kind"
    ],
    "the page in Chromium, 390, 1024, 1440 px, light, dark: overflow, contrast, planted script": [
        "tests/report/test_browser.py::planted"
    ],
    "the page: a hundred nodes": ["tests/report/test_browser.py::hundred"],
    "the page: when each checkpoint was in memory and in the store, and from which tier each round restored it": [
        "tests/report/test_restores.py"
    ],
    "report of what a store has, without its run folder": ["tests/report/test_report_verb.py::store"],
    "timeline of the last iterations as a Chrome trace": ["tests/watch/test_timeline.py"],
    "slow ranks: named from how long each waits for the others, with its slow part": [
        "tests/watch/test_slow_ranks.py",
        SLOW,
    ],
    "slow ranks: CPU, memory, disk and network of each node in telemetry": [
        "tests/agent/test_host_watch.py",
        "tests/report/test_host_use.py",
    ],
    "slow ranks: an hour of ranks that are alike names one with a probability of at most 0.001": [
        "tests/watch/test_slow_by_chance.py"
    ],
    "slow ranks: the policy: report, or replace once; a slow node is replaced in real processes": [
        "tests/job/test_slow_nodes.py",
        "tests/job/test_liveness.py",
        "tests/survival/test_slow_node.py",
    ],
    "slow ranks: a GPU that is slowed down is named (a driver's stand-in)": [
        "tests/watch/test_slow_ranks.py",
        "tests/agent/test_device_watch.py",
    ],
    "any script: operators and kernels of the next iterations on request": ["tests/watch/test_kernel_profile.py"],
    "any script: its report has its iterations, and a launch's advice": ["tests/watch/test_plain_report.py"],
    "status --watch; top": [
        "tests/face/test_status_command.py",
        "tests/watch/test_slow_rank.py",
        "tests/watch/test_top_table.py",
        "tests/watch/test_top_there.py",
    ],
    "ui: token, other sites, other names, planted scripts, 1,000 runs": [
        "tests/ui/test_server.py",
        "tests/ui/test_page.py::planted",
        "tests/ui/test_page.py::without",
    ],
    "ui: in Chromium while a training runs, a worker is killed, scaled, stopped": ["tests/ui/test_page.py::watched"],
    "stacks on a cluster by one command": ["tests/cluster/test_seeing.py::stacks"],
    "top on a cluster by one command": ["tests/cluster/test_seeing.py::ranks"],
    "ui: a cluster's runs": ["tests/cluster/test_seeing.py::page"],
    "metrics: OpenMetrics of all nodes": ["tests/master/test_metrics.py"],
    "metrics: dashboard and alert rules before a real Prometheus": ["tests/prometheus/test_prometheus.py"],
    "traces: a step is a span below Argo's parent": ["tests/report/test_traces.py"],
    "trackers: one callback": ["tests/training/test_trackers.py"],
    "trackers: TensorBoard, MLflow, Weights & Biases read back what a job wrote (make test-frameworks)": [
        "tests/frameworks/test_trackers.py"
    ],
    "report RUN -o md|json|html, also while it runs, also without its master": ["tests/report/test_report_verb.py"],
}


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """The selected lines: the measurement first."""
    if is_asked(OVERHEAD, options.words):
        overhead = watching.overhead()
        yield Line(OVERHEAD, "<= 0.5 %", str(overhead), overhead.holds)
    if is_asked(SCALE, options.words):
        cost = report.measure()
        yield Line(SCALE, "<= 10 s, 500 MiB, 5 MiB", str(cost), cost.holds)
    if is_asked(CALM, options.words):
        trained = calm.measure(options.minutes)
        yield Line(CALM, "no alarm", str(trained), trained.holds)
    yield from prove(PROVEN, options, limit=NAMED)


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0, help="of ordinary training that raises no alarm (3)")
    judge(lines(parse_options(parser, [OVERHEAD, SCALE, CALM, *PROVEN])))


if __name__ == "__main__":
    main()
