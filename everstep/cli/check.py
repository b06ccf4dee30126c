"""`everstep check`: are these machines fit to train? Checks processes of this machine, or one node per machine."""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.errors import BadInput
from everstep.runtime.exit_codes import ExitCode

if TYPE_CHECKING:
    from everstep.runtime.diagnosis.messages import Over
    from everstep.runtime.diagnosis.multi_machine import MultiMachineCheck
    from everstep.runtime.diagnosis.switchbox import SwitchboxSpec

EPILOG = """\
Each node does matrix products on one CPU core, then all-reduces with its group (gloo), in up to three rounds: the
faulty nodes are named exactly, if at most a quarter is faulty. Of two or three nodes that fail only together, some stay
undecided and are named, too.

Exit codes: 0 healthy, 2 bad input, 3 this node is not fit (or too few are), 75 the coordinator went away.

examples:
  everstep check --nodes 4                              four nodes as processes of this machine
  everstep check --rdzv-endpoint 10.0.0.1:29400 --nnodes 4 --node-rank 2
                                                        on each of four machines; rank 0 runs on 10.0.0.1
  NODE_RANK=$RANK DLROVER_MASTER_ADDR=$MASTER_ADDR:$MASTER_PORT everstep check --nnodes $NODE_NUM
                                                        in every pod of a PyTorchJob

EVERSTEP_JOB_TOKEN, the same on all machines, protects the coordinator's port."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.epilog = EPILOG

    def flag(name: str, **options: Any) -> None:
        parser.add_argument(name, name.replace("-", "_").replace("__", "--", 1), **options)

    parser.add_argument("--nodes", type=int, help="nodes to check, as processes of this machine (default: 2)")
    flag("--min-nodes", type=int, help="with --nodes: exit 3 when fewer are usable (default: all)")
    flag("--rdzv-endpoint", metavar="HOST:PORT", help="where node 0 coordinates (default: $DLROVER_MASTER_ADDR)")
    parser.add_argument("--nnodes", metavar="N|MIN:MAX", help="number of machines that take part")
    flag("--node-rank", type=int, help="number of this machine, from 0 (default: $NODE_RANK)")
    flag("--rdzv-id", default="none", help="name of this check, the same on all machines")
    flag("--join-timeout", type=float, default=600.0, metavar="S", help="seconds to wait for the others (default: 600)")
    parser.add_argument(
        "--topology", metavar="FILE", help="lines `asw-0 psw-0 192.168.0.0`: pairs share a switch (rank 0)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds for a node's part in one round (default: 300)",
    )
    flag("--exclude-straggler", action="store_true", help="treat a node slower than twice the median as unfit")
    flag("--switchbox-check", action="store_true", help="measure the links between this machine's CUDA devices too")
    flag("--box-pairs", default="0:1 2:4 3:5 6:7", help="pairs of devices (default: '0:1 2:4 3:5 6:7')")
    flag("--min-bandwidth", type=float, default=10000.0, help="MB/s of a working pair (default: 10000)")
    flag("--min-channels", type=int, default=2, help="working pairs a machine needs (default: 2)")


def run(arguments: argparse.Namespace) -> int:
    """Run the check; returns the exit code."""
    from everstep.runtime.diagnosis.errors import CoordinatorLostError, MeasurementError, NoQuorumError, RefusedError
    from everstep.runtime.diagnosis.switchbox import SwitchboxError

    try:
        return _check(arguments)
    except (BadInput, RefusedError, SwitchboxError) as error:
        code, message = 2, str(error)
    except NoQuorumError as error:
        code, message = ExitCode.NO_QUORUM, str(error)
    except (CoordinatorLostError, MeasurementError) as error:
        code, message = ExitCode.TRY_AGAIN, str(error)
    except KeyboardInterrupt:
        return 130
    print(f"everstep check: {message}", file=sys.stderr)
    return code


def _check(arguments: argparse.Namespace) -> int:
    from everstep.runtime.diagnosis.switchbox import parse_switchbox

    if not arguments.timeout > 0 or not arguments.join_timeout > 0:
        raise BadInput("--timeout and --join-timeout must be above 0 (seconds)")
    box = None
    if arguments.switchbox_check:
        box = parse_switchbox(arguments.box_pairs, arguments.min_bandwidth, arguments.min_channels)
    endpoint = arguments.rdzv_endpoint or os.environ.get("DLROVER_MASTER_ADDR", "")
    if arguments.nodes is not None and arguments.rdzv_endpoint:
        raise BadInput(
            "--nodes checks processes of this machine, --rdzv-endpoint several machines: give only one of them"
        )
    if endpoint and arguments.nodes is None:
        return _check_across_machines(_across_options(arguments, endpoint, os.environ, box))
    if arguments.nnodes is not None:
        raise BadInput("--nnodes: several machines need --rdzv-endpoint HOST:PORT or $DLROVER_MASTER_ADDR")
    return _check_locally(arguments, box)


def _check_locally(arguments: argparse.Namespace, box: "SwitchboxSpec | None") -> int:
    from everstep.runtime.diagnosis import report
    from everstep.runtime.diagnosis.single_machine import check_one_machine
    from everstep.runtime.diagnosis.verdicts import usable_count

    nodes = 2 if arguments.nodes is None else arguments.nodes
    least = nodes if arguments.min_nodes is None else arguments.min_nodes
    if not 1 <= least <= nodes:
        raise BadInput(f"--nodes {nodes}, --min-nodes {least}: must be at least 1, --min-nodes at most --nodes")
    verdicts, rounds = asyncio.run(
        check_one_machine(
            [f"local-{index}" for index in range(nodes)],
            timeout_s=arguments.timeout,
            exclude_straggler=arguments.exclude_straggler,
            box=box,
            on_round=lambda told: print(report.round_line(told), file=sys.stderr, flush=True),
        )
    )
    if box is not None:
        for line in report.link_lines(rounds, box.min_bandwidth):
            print(line, file=sys.stderr)
    report.print_verdicts(sys.stderr, verdicts, rounds)
    print(report.summary(verdicts, rounds), file=sys.stderr)
    if usable_count(verdicts) >= least:
        return 0
    print(f"everstep check: {usable_count(verdicts)} of {nodes} nodes are usable, {least} needed", file=sys.stderr)
    return ExitCode.NO_QUORUM


def _across_options(
    arguments: argparse.Namespace, endpoint: str, environment: Mapping[str, str], box: "SwitchboxSpec | None"
) -> "MultiMachineCheck":
    """The flags of a check across machines. Raises BadInput that names the flag or the variable."""
    from everstep.runtime.diagnosis import report
    from everstep.runtime.diagnosis.multi_machine import Endpoint, MultiMachineCheck, shared_token

    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadInput(f"--rdzv-endpoint {endpoint}: write HOST:PORT, as in 10.0.0.1:29400")
    rank = arguments.node_rank
    if rank is None:
        rank_text = environment.get("NODE_RANK", "")
        if not rank_text.isdigit():
            raise BadInput(
                f"NODE_RANK={rank_text!r}: give --node-rank, or set NODE_RANK, to this machine's number from 0"
            )
        rank = int(rank_text)
    least, most = _bounds(arguments.nnodes)
    if not 0 <= rank < most:
        raise BadInput(f"--node-rank {rank}: must be from 0 to {most - 1}, below --nnodes")
    if arguments.min_nodes is not None:
        raise BadInput("--min-nodes goes with --nodes; across machines write --nnodes MIN:MAX")
    return MultiMachineCheck(
        endpoint=Endpoint(host.strip("[]"), int(port)),
        rank=rank,
        min_nodes=least,
        max_nodes=most,
        token=environment.get("EVERSTEP_JOB_TOKEN") or shared_token(arguments.rdzv_id, int(port)),
        join_timeout_s=arguments.join_timeout,
        timeout_s=arguments.timeout,
        exclude_straggler=arguments.exclude_straggler,
        box=box,
        topology=_topology(arguments.topology),
        on_round=lambda told: print(report.round_line(told), file=sys.stderr, flush=True),
    )


def _bounds(text: str | None) -> tuple[int, int]:
    least, colon, most = (text or "").partition(":")
    if not least.isdigit() or (colon and not most.isdigit()) or not 1 <= int(least) <= int(most or least):
        raise BadInput(f"--nnodes {text or '(missing)'}: write N or MIN:MAX, the number of machines")
    return int(least), int(most or least)


def _topology(path: str | None) -> Any:
    from everstep.runtime.job.topology import TopologyError, switches

    if path is None:
        return {}
    try:
        return switches(Path(path).read_text().splitlines())
    except TopologyError as error:
        raise BadInput(f"--topology {path}:{error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--topology {path}: {getattr(error, 'strerror', None) or error}") from None


def _check_across_machines(options: "MultiMachineCheck") -> int:
    from everstep.runtime.diagnosis import report
    from everstep.runtime.diagnosis.multi_machine import check_machines

    if options.rank == 0 and not options.endpoint.bind_host and "EVERSTEP_JOB_TOKEN" not in os.environ:
        print(
            f"everstep check: no EVERSTEP_JOB_TOKEN: port {options.endpoint.port} is protected by --rdzv-id only",
            file=sys.stderr,
        )
    outcome = asyncio.run(check_machines(options))
    if outcome.verdicts:
        report.print_verdicts(sys.stderr, outcome.verdicts, outcome.rounds)
        print(report.summary(outcome.verdicts, outcome.rounds), file=sys.stderr)
    if outcome.refused:
        print(f"everstep check: {outcome.refused} requests without the token were refused", file=sys.stderr)
    code, reason = exit_code_of(outcome.over, options.min_nodes if options.min_nodes < options.max_nodes else 1)
    print(f"everstep check: {reason}", file=sys.stderr)
    return code


def exit_code_of(over: "Over", quorum: int) -> tuple[int, str]:
    """This node's exit code, and why. With --nnodes MIN:MAX every node fails when fewer than MIN are usable."""
    own = over.verdict
    if own.avoid and own.node in over.stragglers:
        return (
            ExitCode.NO_QUORUM,
            f"this node ({own.node}) is a straggler and is excluded (--exclude-straggler): {own.reason}",
        )
    reason = f"this node ({own.node}) is {'a ' * (own.node in over.stragglers)}{own.health}: {own.reason}"
    if own.avoid:
        return ExitCode.NO_QUORUM, reason
    if over.usable < quorum:
        return ExitCode.NO_QUORUM, f"{over.usable} nodes are usable, {quorum} needed (--nnodes MIN:MAX); {reason}"
    others = {"faulty": over.faulty, "stragglers": over.stragglers, "undecided": over.undecided}
    named = "; ".join(f"{word}: {', '.join(nodes)}" for word, nodes in others.items() if nodes)
    return 0, f"{reason} ({named})" if named else reason
