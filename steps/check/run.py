"""Checks the nodes, writes the verdict, names the hosts to avoid."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from everstep.runtime.exit_codes import ExitCode
from everstep.steps.check.config import Config
from everstep.steps.entry import Result, StepError


def run(config: Config) -> Result:
    """Check the nodes and write the verdict. Raises StepError with exit code 3 if fewer than `min_nodes` are usable."""
    from everstep.runtime.diagnosis import report
    from everstep.runtime.diagnosis.errors import MeasurementError
    from everstep.runtime.diagnosis.evidence import Round
    from everstep.runtime.diagnosis.single_machine import check_one_machine
    from everstep.runtime.diagnosis.switchbox import SwitchboxError, parse_switchbox
    from everstep.runtime.diagnosis.verdicts import usable_count

    def on_round(told: Round) -> None:
        print(report.round_line(told), file=sys.stderr, flush=True)

    box = (
        parse_switchbox(config.box_pairs, config.min_bandwidth, config.min_channels) if config.switchbox_check else None
    )
    hosts = [f"local-{index}" for index in range(config.nodes)]
    try:
        verdicts, rounds = asyncio.run(
            check_one_machine(
                hosts,
                timeout_s=config.timeout,
                exclude_straggler=config.exclude_straggler,
                box=box,
                on_round=on_round,
            )
        )
    except SwitchboxError as error:
        raise StepError(str(error)) from None
    except MeasurementError as error:
        raise StepError(str(error), ExitCode.TRY_AGAIN) from None
    if box is not None:
        for line in report.link_lines(rounds, box.min_bandwidth):
            print(line, file=sys.stderr)
    report.print_verdicts(sys.stderr, verdicts, rounds)
    told = report.json_report(verdicts, rounds, config.min_nodes)
    path = _write(config, told)
    if usable_count(verdicts) < config.min_nodes:
        worst = "; ".join(f"{one.node}: {one.reason}" for one in verdicts if one.avoid)
        short = f"{usable_count(verdicts)} of {config.nodes} nodes usable, {config.min_nodes} needed"
        raise StepError(f"{short} ({worst}); see {path}", ExitCode.NO_QUORUM)
    outputs = {"avoid_hosts": json.dumps(told["avoid_hosts"])}
    return Result(report.summary(verdicts, rounds), outputs, told, {path.name: path})


def _write(config: Config, verdict: dict[str, Any]) -> Path:
    folder = Path(config.outputs)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "verdict.json"
    path.write_text(json.dumps(verdict, indent=1) + "\n")
    return path
