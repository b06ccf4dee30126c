"""`make accept-seeing`: where every second went, who hangs and why, in any script: wanted, measured, holds or not.

Lines that are not built yet are printed as such. Words on the command line select lines.
"""

import argparse
from collections.abc import Iterator

from benchmarks import watching
from benchmarks.acceptance import Line, is_asked, judge, parse_options, prove

OVERHEAD = "any script: watching it costs <= 0.5 % of its time"
PLANTED = "tests/watch/test_planted_hangs.py::named_before_the_job_fails"
QUIET = "tests/watch/test_planted_hangs.py::only_takes_long"
PROVEN = {
    "any script, no everstep in it: iterations, collectives, phases, hangs": ["tests/watch/test_in_worker.py"],
    "culprit: one rank in an endless loop": [f"{PLANTED}::endless"],
    "culprit: never entering a collective": [f"{PLANTED}::entering"],
    "culprit: SIGSTOP": [f"{PLANTED}::SIGSTOP"],
    "culprit: a blocked read": [f"{PLANTED}::blocked"],
    "culprit: a full pipe": [f"{PLANTED}::pipe"],
    "culprit: deadlock by mismatched order": [f"{PLANTED}::mismatched"],
    "culprit: a lock in a user's thread": [f"{PLANTED}::lock"],
    "culprit: a dead data loader worker": [f"{PLANTED}::dead"],
    "culprit: one slow rank (x 3)": ["tests/watch/test_slow_rank.py"],
    "no alarm: an evaluation that is only long": [f"{QUIET}::evaluation"],
    "no alarm: a save that is only long": [f"{QUIET}::save"],
    "the judgement: every cause, any order of ranks": ["tests/watch/test_hang_culprit.py"],
    "stacks: merged, folded, text, speedscope, SVG; properties": ["tests/watch/test_merge.py"],
    "stacks: dumps made before; faulthandler where ptrace is refused": ["tests/watch/test_dumps.py"],
    "timeline of the last iterations as a Chrome trace": ["tests/watch/test_timeline.py"],
    "ledger: no second twice, parts add up": ["tests/report/test_ledger.py"],
    "slow ranks: named from how long each waits for the others": ["tests/watch/test_slow_ranks.py"],
    "status --watch; top": ["tests/face/test_status_command.py", "tests/watch/test_slow_rank.py"],
    "ui: token, other sites, other names, planted scripts, 1,000 runs": [
        "tests/ui/test_server.py",
        "tests/ui/test_page.py::planted",
        "tests/ui/test_page.py::without",
    ],
    "ui: in Chromium while a training runs, a worker is killed, scaled, stopped": ["tests/ui/test_page.py::watched"],
    "metrics: OpenMetrics of all nodes": ["tests/master/test_metrics.py"],
    "metrics: dashboard and alert rules before a real Prometheus": ["tests/prometheus/test_prometheus.py"],
    "traces: a step is a span below Argo's parent": ["tests/report/test_traces.py"],
    "trackers: one callback": ["tests/training/test_trackers.py"],
    "report RUN -o md|json|html, also while it runs, also without its master": ["tests/report/test_report_verb.py"],
}
NOT_BUILT = (
    "culprit: mismatched shapes, swapped-out memory, a slow disk, a slow link, a busy neighbour, hangs before the "
    "first iteration (found after 30 minutes: hang.start_timeout_s), in the check, in a restore",
    "no false alarm in an hour of ordinary training",
    "stacks on a cluster by one command",
    "slow ranks while training: what is slow of it; the policy replace",
    "attribution: first cause among all ends, its evidence; kinds of errors in one table",
    "ledger: fourteen classes, names of ml-goodput-measurement, model second by second",
    "report of s3:// without its run folder",
    "the page in a headless Chromium at three widths",
    "ui: a cluster's runs, tested with a real one",
    "trackers: each in its own package, by a test (tried by hand)",
    "1,000 nodes x 10,000 iterations: report <= 10 s, <= 500 MB, page <= 5 MB",
)


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """The selected lines: the measurement first."""
    if is_asked(OVERHEAD, options.words):
        measured = watching.overhead(15)
        yield Line(OVERHEAD, "<= 0.5 %", str(measured), measured.share <= watching.BUDGET)
    yield from prove(PROVEN, options)
    yield from (Line(promise, "built", "not built", False) for promise in NOT_BUILT if is_asked(promise, options.words))


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    judge(lines(parse_options(parser, [OVERHEAD, *PROVEN, *NOT_BUILT])))


if __name__ == "__main__":
    main()
