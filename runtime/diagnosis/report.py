"""The output of a check, for people and as JSON. Pure but for the table, which needs rich and a terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import IO, Any, NamedTuple

from everstep.runtime.diagnosis.evidence import FAILED_S, Measurement, Round
from everstep.runtime.diagnosis.verdicts import Health, Verdict, avoided_hosts, nodes_with, usable_count
from everstep.runtime.job.topology import order_by_place

VERSION = 2
_COLOURS = {Health.HEALTHY: "green", Health.STRAGGLER: "yellow", Health.UNDECIDED: "magenta", Health.FAULTY: "red"}


class Place(NamedTuple):
    """Where a machine stands; empty: unknown."""

    zone: str = ""
    switch: str = ""


def round_line(round_: Round) -> str:
    """`Round 1: {0: 0.88, 1: 0.87 | 2: failed, 3: failed} s, adjacent pairs`: elapsed seconds by group. A group
    with devices also tells by what library it reduced: `{0: 0.88, 1: 0.87 (NCCL)}`."""
    elapsed = round_.elapsed_s()
    groups = (
        ", ".join(f"{node}: {_format_seconds(elapsed[node])}" for node in group) + _library(round_, group)
        for group in round_.groups
    )
    return f"Round {round_.number}: {{{' | '.join(groups)}}} s, {round_.reason}"


def _library(round_: Round, group: Sequence[str]) -> str:
    members = [round_.measured[node] for node in group]
    if len(group) == 1 or round_.has_failed(group) or not any(of.devices or of.untested for of in members):
        return ""
    return " (NCCL)" if all(of.nccl_devices for of in members) else " (gloo)"


def verdict_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """A line for each node that is not healthy, with the reason; then all unfit nodes in one line."""
    unfit = [verdict for verdict in verdicts if verdict.health is not Health.HEALTHY]
    lines = [
        f"{verdict.node} is {'a ' * (verdict.health is Health.STRAGGLER)}{verdict.health}: {verdict.reason}"
        for verdict in unfit
    ]
    kinds = {"faulty": Health.FAULTY, "stragglers": Health.STRAGGLER, "undecided": Health.UNDECIDED}
    kind_words = (f"{word}: {', '.join(nodes_with(verdicts, health)) or 'none'}" for word, health in kinds.items())
    return [*lines, "  ".join(kind_words)]


def link_lines(rounds: Sequence[Round], min_bandwidth: float) -> list[str]:
    """Links within a machine that are below the minimum bandwidth, even if the node passes."""
    lines = []
    for node, measurement in _first_measurements(rounds).items():
        slow = [f"{pair} {speed:.4g} MB/s" for pair, speed in measurement.links.items() if speed < min_bandwidth]
        if slow:
            lines.append(f"{node}: links below {min_bandwidth:g} MB/s: {', '.join(slow)}")
    return lines


def device_lines(rounds: Sequence[Round]) -> list[str]:
    """Devices that were not tested, and those whose driver lowers their clocks, even if the node passes; and nodes
    whose driver does not tell."""
    lines = []
    for node, measurement in _first_measurements(rounds).items():
        if measurement.untested:
            lines.append(f"{node} on {measurement.host}: not tested: {measurement.untested}")
        if measurement.unread:
            lines.append(
                f"{node} on {measurement.host}: memory errors and clocks of its devices were not read: "
                f"{measurement.unread}"
            )
        lines += [
            f"{node} on {measurement.host}, {of.device}: {', '.join(of.lowered)}"
            for of in measurement.devices
            if of.lowered
        ]
    return lines


def print_verdicts(out: IO[str], verdicts: Sequence[Verdict], rounds: Sequence[Round]) -> None:
    """Print the verdicts: a table on a terminal, else plain lines (each round's line was printed when it ended)."""
    if not out.isatty():
        print("\n".join([*device_lines(rounds), *verdict_lines(verdicts)]), file=out)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title="node check, elapsed seconds")
    for column in ("node", "host", *(f"round {round_.number}" for round_ in rounds), "verdict", "why"):
        table.add_column(column, justify="right" if column.startswith("round") else "left")
    elapsed = [round_.elapsed_s() for round_ in rounds]
    for verdict in verdicts:
        times = (_format_seconds(seconds[verdict.node]) if verdict.node in seconds else "rested" for seconds in elapsed)
        health = Text(str(verdict.health), style=_COLOURS[verdict.health])
        table.add_row(Text(verdict.node), Text(verdict.host), *times, health, Text(verdict.reason))
    console = Console(file=out)
    console.print(table)
    for line in device_lines(rounds):
        console.print(Text(line))


def summary(verdicts: Sequence[Verdict], rounds: Sequence[Round]) -> str:
    """`2 nodes healthy  matmul 0.41 s  all-reduce 0.22 s`: the slowest healthy node's best times."""
    healthy = nodes_with(verdicts, Health.HEALTHY)
    count = f"{len(healthy)} of {len(verdicts)}" if len(healthy) < len(verdicts) else f"{len(verdicts)}"
    words = [f"{count} node{'' if len(verdicts) == 1 else 's'} healthy"]
    best = _best_times(rounds)
    for label, field in (("matmul", "matmul_s"), ("all-reduce", "all_reduce_s")):
        times = [best[node][field] for node in healthy if node in best]
        if measured_s := [seconds for seconds in times if 0 < seconds < FAILED_S]:
            words.append(f"{label} {max(measured_s):.2f} s")
    if stragglers := nodes_with(verdicts, Health.STRAGGLER):
        words.append(f"slow {', '.join(stragglers)}")
    if hosts_to_avoid := avoided_hosts(verdicts):
        words.append(f"avoid {', '.join(hosts_to_avoid)}")
    return "  ".join(words)


def host_order(verdicts: Sequence[Verdict], places: Mapping[str, Place]) -> list[str]:
    """The usable machines in rank order: those of a zone, then of a switch, side by side. Empty: all are this one."""
    usable = list(dict.fromkeys(verdict.host for verdict in verdicts if verdict.host not in avoided_hosts(verdicts)))
    if not places:
        return []
    return order_by_place(usable, lambda host: places.get(host, Place()))


def json_report(
    verdicts: Sequence[Verdict], rounds: Sequence[Round], min_nodes: int, places: Mapping[str, Place] = {}
) -> dict[str, Any]:
    """The whole result for JSON: seconds, 3600 for a failure; each node's times are its best of all rounds.

    `places`: of hosts.
    """
    best, first = _best_times(rounds), _first_measurements(rounds)
    return {
        "version": VERSION,
        "usable": usable_count(verdicts),
        "min_nodes": min_nodes,
        "rounds": [
            {
                "round": round_.number,
                "reason": round_.reason,
                "groups": [list(group) for group in round_.groups],
                "elapsed_s": {node: round(seconds, 4) for node, seconds in round_.elapsed_s().items()},
            }
            for round_ in rounds
        ],
        "nodes": [
            {
                "node": verdict.node,
                "host": verdict.host,
                "verdict": str(verdict.health),
                "avoid": verdict.avoid,
                "reason": verdict.reason,
                **{field: round(seconds, 4) for field, seconds in best.get(verdict.node, {}).items()},
                **{name: part for name, part in places.get(verdict.host, Place())._asdict().items() if part},
                **_extras(first.get(verdict.node)),
            }
            for verdict in verdicts
        ],
        "faulty": nodes_with(verdicts, Health.FAULTY),
        "stragglers": nodes_with(verdicts, Health.STRAGGLER),
        "undecided": nodes_with(verdicts, Health.UNDECIDED),
        "avoid_hosts": avoided_hosts(verdicts),
        "host_order": host_order(verdicts, places),
    }


def _extras(first: Measurement | None) -> dict[str, Any]:
    """What only nodes with devices have."""
    links = {"links": dict(first.links)} if first and first.links else {}
    return {**links, **({"devices": [asdict(device) for device in first.devices]} if first and first.devices else {})}


def _format_seconds(seconds: float) -> str:
    return "failed" if seconds >= FAILED_S else f"{seconds:.2f}"


def _best_times(rounds: Sequence[Round]) -> dict[str, dict[str, float]]:
    best_by_node: dict[str, dict[str, float]] = {}
    for round_ in rounds:
        for node, measurement in round_.measured.items():
            times = {
                "matmul_s": measurement.matmul_s,
                "all_reduce_alone_s": measurement.self_reduce_s,
                "all_reduce_s": measurement.all_reduce_s,
            }
            times_before = best_by_node.setdefault(node, times)
            best_by_node[node] = {field: min(seconds, times_before[field]) for field, seconds in times.items()}
    return best_by_node


def _first_measurements(rounds: Sequence[Round]) -> Mapping[str, Measurement]:
    first_ones: dict[str, Measurement] = {}
    for round_ in rounds:
        for node, measurement in round_.measured.items():
            first_ones.setdefault(node, measurement)
    return first_ones
