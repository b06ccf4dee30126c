"""Checks the nodes, writes the verdict, names the hosts to avoid."""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.runtime.exit_codes import ExitCode
from everstep.steps.check.config import Config
from everstep.steps.entry import Result, StepError

if TYPE_CHECKING:
    from everstep.runtime.diagnosis.evidence import Round
    from everstep.runtime.diagnosis.switchbox import SwitchboxSpec
    from everstep.steps.check.machines import MachineCheck


def run(config: Config) -> Result:
    """Check the nodes and write the verdict.

    Raises StepError if fewer than `min_nodes` are usable: with exit code 3, or 75 if those not checked may be enough.
    """
    from everstep.runtime.diagnosis import report
    from everstep.runtime.diagnosis.errors import MeasurementError
    from everstep.runtime.diagnosis.evidence import Round
    from everstep.runtime.diagnosis.switchbox import SwitchboxError, parse_switchbox
    from everstep.runtime.diagnosis.verdicts import usable_count
    from everstep.runtime.platform.kubernetes import KubeError

    def on_round(round_: Round) -> None:
        print(report.round_line(round_), file=sys.stderr, flush=True)

    box = (
        parse_switchbox(config.box_pairs, config.min_bandwidth, config.min_channels) if config.switchbox_check else None
    )
    try:
        checked = asyncio.run(_check(config, box, on_round))
    except SwitchboxError as error:
        raise StepError(str(error)) from None
    except MeasurementError as error:
        raise StepError(str(error), ExitCode.TRY_AGAIN) from None
    except KubeError as error:
        raise StepError(str(error), ExitCode.TRY_AGAIN if error.passing else ExitCode.BAD_INPUT) from None
    verdicts, rounds = checked.verdicts, checked.rounds
    if box is not None:
        for line in report.link_lines(rounds, box.min_bandwidth):
            print(line, file=sys.stderr)
    report.print_verdicts(sys.stderr, verdicts, rounds)
    json_verdict = report.json_report(verdicts, rounds, config.min_nodes, checked.places)
    path = _write(config, json_verdict)
    missing = checked.needed_count(config.min_nodes) - usable_count(verdicts)
    if missing > 0:
        reasons = [f"{verdict.node}: {verdict.reason}" for verdict in verdicts if verdict.avoid]
        reasons += [f"{host} was not checked: {reason}" for host, reason in checked.unchecked.items()]
        short = f"{usable_count(verdicts)} of {len(verdicts)} nodes usable, {config.min_nodes} needed"
        code = ExitCode.TRY_AGAIN if len(checked.unchecked) >= missing else ExitCode.NO_QUORUM
        raise StepError(f"{short} ({'; '.join(reasons)}); see {path}", code)
    outputs = {name: json.dumps(json_verdict[name]) for name in ("avoid_hosts", "host_order")}
    return Result(report.summary(verdicts, rounds), outputs, json_verdict, {path.name: path})


async def _check(config: Config, box: "SwitchboxSpec | None", on_round: "Callable[[Round], None]") -> "MachineCheck":
    """The cluster's machines in a pod that Argo made; else processes of this machine."""
    from everstep.runtime.platform import POD_VARIABLE

    if pod := os.environ.get(POD_VARIABLE):
        from everstep.runtime.platform.kubernetes import Access
        from everstep.steps.check.machines import check_machines

        return await check_machines(config, pod, Access.of_this_pod(os.environ), _print_line, on_round)
    from everstep.runtime.diagnosis.single_machine import check_one_machine
    from everstep.steps.check.machines import MachineCheck

    hosts = [f"local-{index}" for index in range(config.nodes)]
    verdicts, rounds = await check_one_machine(
        hosts, timeout_s=config.timeout, exclude_straggler=config.exclude_straggler, box=box, on_round=on_round
    )
    return MachineCheck(verdicts, rounds)


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write(config: Config, verdict: dict[str, Any]) -> Path:
    folder = Path(config.outputs)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "verdict.json"
    path.write_text(json.dumps(verdict, indent=1) + "\n")
    return path
