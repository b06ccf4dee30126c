"""Check the nodes, write the verdict, name the hosts to avoid."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from steps.check.config import Config
from steps.entry import NO_QUORUM, Result, StepError

VERSION = 1


def run(config: Config) -> Result:
    """Raises StepError with exit code 3 when fewer than `min_nodes` are usable; the verdict is written all the same."""
    from runtime.diagnosis.local import check_here
    from runtime.diagnosis.pairs import avoided_hosts, judge, usable

    verdicts = judge(check_here([f"local-{index}" for index in range(config.nodes)], config.time_limit_s))
    nodes = [
        {
            "node": verdict.measurement.node,
            "host": verdict.measurement.host,
            "verdict": str(verdict.health),
            "avoid": verdict.avoid,
            "reason": verdict.reason,
            "matmul_s": round(verdict.measurement.matmul_s, 4),
            "all_reduce_alone_s": round(verdict.measurement.self_reduce_s, 4),
            "all_reduce_s": round(verdict.measurement.all_reduce_s, 4),
        }
        for verdict in verdicts
    ]
    for node in nodes:
        if node["verdict"] != "healthy":
            print(f"{node['node']} is {node['verdict']}: {node['reason']}", file=sys.stderr)
    told = {"version": VERSION, "usable": usable(verdicts), "min_nodes": config.min_nodes, "nodes": nodes}
    path = _write(config, told)
    if usable(verdicts) < config.min_nodes:
        worst = "; ".join(f"{node['node']}: {node['reason']}" for node in nodes if node["avoid"])
        short = f"{usable(verdicts)} of {config.nodes} nodes usable, {config.min_nodes} needed"
        raise StepError(f"{short} ({worst}); see {path}", NO_QUORUM)
    avoid = avoided_hosts(verdicts)
    return Result(summary(nodes), {"avoid_hosts": json.dumps(avoid)}, {**told, "avoid_hosts": avoid}, {path.name: path})


def summary(nodes: Sequence[dict[str, object]]) -> str:
    """`2 nodes healthy  matmul 0.41 s  all-reduce 0.22 s`: the slowest healthy node's times."""
    healthy = [node for node in nodes if node["verdict"] == "healthy"]
    count = f"{len(healthy)} of {len(nodes)}" if len(healthy) < len(nodes) else f"{len(nodes)}"
    words = [f"{count} node{'' if len(nodes) == 1 else 's'} healthy"]
    for label, key in (("matmul", "matmul_s"), ("all-reduce", "all_reduce_s")):
        times = [float(str(node[key])) for node in healthy]
        if known := [seconds for seconds in times if seconds < 3600]:
            words.append(f"{label} {max(known):.2f} s")
    if avoided := [str(node["host"]) for node in nodes if node["avoid"]]:
        words.append(f"avoid {', '.join(avoided)}")
    return "  ".join(words)


def _write(config: Config, told: dict[str, object]) -> Path:
    folder = Path(config.outputs)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "verdict.json"
    path.write_text(json.dumps(told, indent=1) + "\n")
    return path
