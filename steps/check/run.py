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
    """Check the nodes and write the verdict. Raises StepError with exit code 3 if fewer than `min_nodes` are usable."""
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
        verdicts, rounds, places = asyncio.run(_check(config, box, on_round))
    except SwitchboxError as error:
        raise StepError(str(error)) from None
    except MeasurementError as error:
        raise StepError(str(error), ExitCode.TRY_AGAIN) from None
    except KubeError as error:
        raise StepError(str(error), ExitCode.TRY_AGAIN if error.passing else ExitCode.BAD_INPUT) from None
    if box is not None:
        for line in report.link_lines(rounds, box.min_bandwidth):
            print(line, file=sys.stderr)
    report.print_verdicts(sys.stderr, verdicts, rounds)
    json_verdict = report.json_report(verdicts, rounds, config.min_nodes, places)
    path = _write(config, json_verdict)
    if usable_count(verdicts) < min(config.min_nodes, len(verdicts)):  # Several nodes may share a machine.
        worst = "; ".join(f"{verdict.node}: {verdict.reason}" for verdict in verdicts if verdict.avoid)
        short = f"{usable_count(verdicts)} of {len(verdicts)} nodes usable, {config.min_nodes} needed"
        raise StepError(f"{short} ({worst}); see {path}", ExitCode.NO_QUORUM)
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
    return MachineCheck(verdicts, rounds, {})


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write(config: Config, verdict: dict[str, Any]) -> Path:
    folder = Path(config.outputs)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "verdict.json"
    path.write_text(json.dumps(verdict, indent=1) + "\n")
    return path
