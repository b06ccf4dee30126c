"""`everstep check`: are these machines fit to train? Checks processes of this machine, or one node per machine."""

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from everstep.errors import BadInput
from everstep.extras import require
from everstep.flags import Flag, add_action
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.net.token import TOKEN_VARIABLE

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


@dataclass(frozen=True)
class Check:
    """Are these machines fit to train? Here, or one node on each of several machines."""

    nodes: int | None = None
    """Nodes to check, as processes of this machine (default: 2)."""
    min_nodes: int | None = None
    """With --nodes: exit 3 when fewer are usable (default: all)."""
    rdzv_endpoint: Annotated[str, Flag(metavar="HOST:PORT")] = ""
    """Where node 0 coordinates (default: $DLROVER_MASTER_ADDR)."""
    nnodes: Annotated[str | None, Flag(metavar="N|MIN:MAX")] = None
    """Number of machines that take part."""
    node_rank: int | None = None
    """Number of this machine, from 0 (default: $NODE_RANK)."""
    rdzv_id: str = "none"
    """Name of this check, the same on all machines."""
    join_timeout: Annotated[float, Flag(metavar="S")] = 600.0
    """Seconds to wait for the others."""
    topology: Annotated[str | None, Flag(metavar="FILE")] = None
    """Lines `asw-0 psw-0 192.168.0.0`: pairs share a switch (rank 0)."""
    timeout: Annotated[float, Flag(metavar="S")] = 300.0
    """Seconds for a node's part in one round."""
    exclude_straggler: bool = False
    """Treat a node slower than twice the median as unfit."""
    switchbox_check: bool = False
    """Measure the links between this machine's CUDA devices too."""
    box_pairs: str = "0:1 2:4 3:5 6:7"
    """Pairs of devices."""
    min_bandwidth: float = 10000.0
    """MB/s of a working pair."""
    min_channels: int = 2
    """Working pairs a machine needs."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Check, run)
    parser.epilog = EPILOG


def run(flags: Check) -> int:
    """Run the check; returns the exit code. Raises BadInput."""
    require("torch")
    from everstep.runtime.diagnosis.errors import (
        CoordinatorLostError,
        MeasurementError,
        NoQuorumError,
        RefusedError,
        UnknownNodeError,
    )
    from everstep.runtime.diagnosis.switchbox import SwitchboxError

    try:
        return _check(flags)
    except (RefusedError, SwitchboxError) as error:
        raise BadInput(str(error)) from None
    except NoQuorumError as error:
        code, message = ExitCode.NO_QUORUM, str(error)
    except (CoordinatorLostError, MeasurementError, UnknownNodeError) as error:
        code, message = ExitCode.TRY_AGAIN, str(error)
    except KeyboardInterrupt:
        return 130
    print(f"everstep check: {message}", file=sys.stderr)
    return code


def _check(flags: Check) -> int:
    from everstep.runtime.diagnosis.switchbox import parse_switchbox

    if not flags.timeout > 0 or not flags.join_timeout > 0:
        raise BadInput("--timeout and --join-timeout must be above 0 (seconds)")
    box = None
    if flags.switchbox_check:
        box = parse_switchbox(flags.box_pairs, flags.min_bandwidth, flags.min_channels)
    endpoint = flags.rdzv_endpoint or os.environ.get("DLROVER_MASTER_ADDR", "")
    if flags.nodes is not None and flags.rdzv_endpoint:
        raise BadInput(
            "--nodes checks processes of this machine, --rdzv-endpoint several machines: give only one of them"
        )
    if endpoint and flags.nodes is None:
        return _check_across_machines(_across_options(flags, endpoint, os.environ, box))
    if flags.nnodes is not None:
        raise BadInput("--nnodes: several machines need --rdzv-endpoint HOST:PORT or $DLROVER_MASTER_ADDR")
    return _check_locally(flags, box)


def _check_locally(flags: Check, box: "SwitchboxSpec | None") -> int:
    from everstep.runtime.diagnosis import report
    from everstep.runtime.diagnosis.single_machine import check_one_machine
    from everstep.runtime.diagnosis.verdicts import usable_count

    nodes = 2 if flags.nodes is None else flags.nodes
    least = nodes if flags.min_nodes is None else flags.min_nodes
    if not 1 <= least <= nodes:
        raise BadInput(f"--nodes {nodes}, --min-nodes {least}: must be at least 1, --min-nodes at most --nodes")
    verdicts, rounds = asyncio.run(
        check_one_machine(
            [f"local-{index}" for index in range(nodes)],
            timeout_s=flags.timeout,
            exclude_straggler=flags.exclude_straggler,
            box=box,
            on_round=lambda round_: print(report.round_line(round_), file=sys.stderr, flush=True),
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
    flags: Check, endpoint: str, environment: Mapping[str, str], box: "SwitchboxSpec | None"
) -> "MultiMachineCheck":
    """The flags of a check across machines. Raises BadInput that names the flag or the variable."""
    from everstep.runtime.diagnosis import report
    from everstep.runtime.diagnosis.multi_machine import Endpoint, MultiMachineCheck, shared_token

    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadInput(f"--rdzv-endpoint {endpoint}: write HOST:PORT, as in 10.0.0.1:29400")
    rank = flags.node_rank
    if rank is None:
        rank_text = environment.get("NODE_RANK", "")
        if not rank_text.isdigit():
            raise BadInput(
                f"NODE_RANK={rank_text!r}: give --node-rank, or set NODE_RANK, to this machine's number from 0"
            )
        rank = int(rank_text)
    least, most = _bounds(flags.nnodes)
    if not 0 <= rank < most:
        raise BadInput(f"--node-rank {rank}: must be from 0 to {most - 1}, below --nnodes")
    if flags.min_nodes is not None:
        raise BadInput("--min-nodes goes with --nodes; across machines write --nnodes MIN:MAX")
    return MultiMachineCheck(
        endpoint=Endpoint(host.strip("[]"), int(port)),
        rank=rank,
        min_nodes=least,
        max_nodes=most,
        token=environment.get(TOKEN_VARIABLE) or shared_token(flags.rdzv_id, int(port)),
        join_timeout_s=flags.join_timeout,
        timeout_s=flags.timeout,
        exclude_straggler=flags.exclude_straggler,
        box=box,
        topology=_topology(flags.topology),
        on_round=lambda round_: print(report.round_line(round_), file=sys.stderr, flush=True),
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

    if options.rank == 0 and not options.endpoint.bind_host and TOKEN_VARIABLE not in os.environ:
        print(
            f"everstep check: no {TOKEN_VARIABLE}: port {options.endpoint.port} is protected by --rdzv-id only",
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
    nodes_by_word = {"faulty": over.faulty, "stragglers": over.stragglers, "undecided": over.undecided}
    node_lists = "; ".join(f"{word}: {', '.join(nodes)}" for word, nodes in nodes_by_word.items() if nodes)
    return 0, f"{reason} ({node_lists})" if node_lists else reason
