"""Alert rules, dashboard and metrics before a real Prometheus, built from its Go module (`make test-metrics`)."""

import asyncio
import json
import random
import re
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from everstep.runtime.agent.ports import free_port
from everstep.runtime.job.spec import JobSpec, RoleSpec
from everstep.runtime.master.metrics import FAMILIES
from everstep.runtime.master.server import serving
from everstep.runtime.net.token_gate import listen
from everstep.runtime.protocol.messages import Heartbeat
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.watch.slow_ranks import Pace
from tests.golang import build_programs
from tests.harness import ROOT
from tests.master.shell import TOKEN, Shell, TroubledStore

METRICS = ROOT / "templates" / "metrics"
PACKAGES = tuple(f"github.com/prometheus/prometheus/cmd/{name}" for name in ("prometheus", "promtool"))
NAMES = {family.name + {"counter": "_total", "info": "_info"}.get(family.type, "") for family in FAMILIES}
DEADLINE_S = 120.0


@pytest.fixture(scope="session")
def programs() -> Path:
    return build_programs("prometheus", PACKAGES)


def test_promtool_accepts_the_alert_rules(programs: Path) -> None:
    completed = subprocess.run(
        [programs / "promtool", "check", "rules", METRICS / "alerts.yaml"], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


CASES = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'everstep_node_still_seconds{{instance="m", node="a", role="w", host="h"}}', values: '0+60x30'}}
      - {{series: 'everstep_hang_timestamp_seconds{{instance="m", rank="1"}}', values: '600x30'}}
      - {{series: 'everstep_node_pace_seconds{{instance="m", node="a", role="w", host="h"}}', values: '1x30'}}
      - {{series: 'everstep_node_pace_seconds{{instance="m", node="b", role="w", host="h"}}', values: '1x30'}}
      - {{series: 'everstep_node_pace_seconds{{instance="m", node="c", role="w", host="h"}}', values: '2x30'}}
      - {{series: 'everstep_nodes{{instance="m", role="w", phase="running"}}', values: '2x30'}}
      - {{series: 'everstep_nodes_desired{{instance="m", role="w"}}', values: '3x30'}}
      - {{series: 'up{{job="everstep", instance="n"}}', values: '0x30'}}
    promql_expr_test:
      - {{expr: 'count by (alertname) (ALERTS{{alertstate="firing"}})', eval_time: 20m, exp_samples: [{firing}]}}
"""


def test_each_alert_fires_when_its_time_has_come(programs: Path, tmp_path: Path) -> None:
    names = ("EverstepHung", "EverstepMasterDown", "EverstepNodesMissing", "EverstepSlowNode",
             "EverstepStandsStill")  # fmt: skip
    firing = ", ".join(f"{{labels: '{{alertname=\"{name}\"}}', value: 1}}" for name in names)
    (tmp_path / "cases.yaml").write_text(CASES.format(rules=METRICS / "alerts.yaml", firing=firing))
    completed = subprocess.run(
        [programs / "promtool", "test", "rules", tmp_path / "cases.yaml"], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


def with_prometheus(programs: Path, folder: Path, story: Callable[[str], Awaitable[None]]) -> None:
    """The story with the address of a Prometheus that scrapes a master of two nodes."""

    async def run_story() -> None:
        shell = Shell(JobSpec("j", {"worker": RoleSpec(2, 1)}, hosts=""), TroubledStore())
        await shell.open()
        seats = await asyncio.gather(shell.join("worker-0-0"), shell.join("worker-1-0"))
        for node, seat in zip(("worker-0-0", "worker-1-0"), seats, strict=True):
            await shell.ask("heartbeat", beat_of(node, seat))
        listener, port = listen("127.0.0.1", 0), free_port(random.Random())
        (folder / "token").write_text(TOKEN)
        settings = (METRICS / "prometheus.yaml").read_text().replace("TOKEN_FILE", str(folder / "token"))
        settings = settings.replace("MASTER", f"127.0.0.1:{listener.getsockname()[1]}")
        settings = settings.replace("alerts.yaml", str(METRICS / "alerts.yaml"))
        (folder / "prometheus.yaml").write_text(f"global: {{scrape_interval: 1s, scrape_timeout: 1s}}\n{settings}")
        async with serving(shell.endpoints, listener, nodes=2):
            process = await asyncio.create_subprocess_exec(
                programs / "prometheus", f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                await story(f"http://127.0.0.1:{port}")
            finally:
                process.kill()
                await process.wait()
        await shell.close()

    asyncio.run(run_story())


def beat_of(node: str, seat: Seat) -> Heartbeat:
    line = {"v": 1, "n": 1, "iteration": 7, "round": seat.round, "rank": seat.first_rank, "loss": 2.5, "seconds": 0.5,
            "tokens": 100, "stall_s": 0.1}  # fmt: skip
    paces = (Pace(seat.first_rank, 20, 50, 0.25, 0.5),)
    host = {"v": 1, "n": 2, "kind": "host", "cores": 1.5, "memory_bytes": 1 << 30}
    return Heartbeat(node, seat.round, iteration=7, telemetry=(line, host), pace_s=0.5, number=1, join=1, paces=paces)


async def query(session: aiohttp.ClientSession, address: str, expression: str) -> list[dict[str, Any]]:
    async with session.get(f"{address}/api/v1/query", params={"query": expression}) as answer:
        data = await answer.json()
        assert data["status"] == "success", (expression, data)
        return data["data"]["result"]


async def until_scraped(session: aiohttp.ClientSession, address: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                if await query(session, address, 'up{job="everstep"} == 1'):
                    return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.2)


def test_a_real_prometheus_reads_every_metric_of_a_real_master(programs: Path, tmp_path: Path) -> None:
    async def story(address: str) -> None:
        async with aiohttp.ClientSession() as session:
            await until_scraped(session, address)
            names = {
                sample["metric"]["__name__"] for sample in await query(session, address, '{__name__=~"everstep_.*"}')
            }
            assert names == NAMES
            nodes = await query(session, address, "everstep_node_iteration")
            assert {(sample["metric"]["node"], sample["value"][1]) for sample in nodes} == {
                ("worker-0-0", "7"), ("worker-1-0", "7")
            }  # fmt: skip
            assert (await query(session, address, "everstep_tokens_total"))[0]["value"][1] == "100"

    with_prometheus(programs, tmp_path, story)


def test_every_panel_of_the_dashboard_asks_for_metrics_that_there_are(programs: Path, tmp_path: Path) -> None:
    board = json.loads((METRICS / "grafana.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]

    async def story(address: str) -> None:
        async with aiohttp.ClientSession() as session:
            await until_scraped(session, address)
            for expression in expressions:
                names = set(re.findall(r"everstep_\w+", expression))
                assert names <= NAMES, expression
                await query(session, address, expression.replace("$instance", ".*").replace("$__rate_interval", "1m"))

    with_prometheus(programs, tmp_path, story)
