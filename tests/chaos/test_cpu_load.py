"""Cores that are kept busy: the ones that a node may use, seen where a quota holds, too."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from everstep.runtime.chaos import Fault, Kind, NotFiredError, victims
from everstep.runtime.system.cpus import cpu_quota, usable_cpus, used_cpu_s


def test_the_cores_of_a_machine_are_seen_to_be_busy() -> None:
    assert " cores " in asyncio.run(victims.load_cores(Fault(Kind.CPU, seconds=0.5, share=0.5)))


def test_of_a_large_machine_a_container_with_a_quota_is_busy_if_it_uses_all_of_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used_s = iter((10.0, 11.5))
    moments = iter((100.0, 101.0))
    monkeypatch.setattr(victims, "cpu_quota", lambda: 1.5)
    monkeypatch.setattr(victims, "usable_cpus", lambda: 2)
    monkeypatch.setattr(victims, "used_cpu_s", lambda: next(used_s))
    monkeypatch.setattr(victims, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    fired = asyncio.run(victims.load_cores(Fault(Kind.CPU, seconds=0.05)))
    assert fired == "2 cores 100% busy for 0.05 s"


def test_a_load_that_could_not_start_has_not_fired_however_busy_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(1)")

    monkeypatch.setattr(victims, "start_load", fail)
    with pytest.raises(NotFiredError, match=r"programs that use up a core, [1-9][0-9]* failed"):
        asyncio.run(victims.load_cores(Fault(Kind.CPU, seconds=0.1)))


def test_a_quota_is_that_of_the_control_group(tmp_path: Path) -> None:
    limit, usage = tmp_path / "cpu.max", tmp_path / "cpu.stat"
    limit.write_text("150000 100000\n")
    usage.write_text("usage_usec 2500000\nuser_usec 1\nsystem_usec 2\n")
    assert (cpu_quota(limit), used_cpu_s(usage)) == (1.5, 2.5)
    assert usable_cpus(limit) in (1, 2)
    limit.write_text("max 100000\n")
    assert cpu_quota(limit) is None
    assert cpu_quota(tmp_path / "none") is None
