"""What launches keep on their machine, and when it goes."""

import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from everstep.runtime.launch.local_state import LocalState, remove_store
from everstep.runtime.net.token import shared_token
from everstep.runtime.platform import debris
from everstep.runtime.platform.registry import Registration, Registry
from everstep.runtime.system import own_folder, processes
from tests.launch.launchers import DEADLINE_S, EVERSTEP, Launcher


def test_a_secret_goes_when_no_node_of_its_job_is_left(tmp_path: Path) -> None:
    scratch = LocalState(tmp_path)
    for job in ("runs", "ended", "begins"):
        shared_token(tmp_path / f"{job}.token")
        if job != "begins":
            long_ago = time.time() - 86_400
            os.utime(tmp_path / f"{job}.token", (long_ago, long_ago))
    entry = scratch.register("runs", "worker-0", "worker")
    scratch.sweep()
    assert sorted(path.stem for path in tmp_path.glob("*.token")) == ["begins", "runs"]
    scratch.unregister(entry)
    scratch.sweep()
    assert [path.stem for path in tmp_path.glob("*.token")] == ["begins"]


@pytest.mark.parametrize("elsewhere", ["_BOOT_ID", "_PID_NAMESPACE"])
def test_another_machine_or_container_that_shares_the_temporary_folder_leaves_what_runs_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: str
) -> None:
    (tmp_path / "other").write_text("other")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    here = own_folder.hold_process_folder()
    store, entry = LocalState(here).make_store_folder(), LocalState(here).register("job", "worker-0", "worker")
    with monkeypatch.context() as there:
        there.setattr(own_folder, elsewhere, tmp_path / "other")
        there.setattr(processes, "start_time", lambda pid: None)  # There, the pid is another process's or nobody's.
        there.setattr("everstep.runtime.platform.registry.start_time", lambda pid: None)
        LocalState(own_folder.hold_process_folder()).sweep()
        own_folder.remove_abandoned_folders()
    assert store.is_dir()
    assert Registry(here / "nodes" / "job").get("worker-0") == entry


def test_a_launch_removes_what_others_left_in_containers_that_have_ended(launcher: Launcher) -> None:
    (launcher.folder / "train.py").write_text("")
    left = launcher.tmp / f"everstep-{os.getuid()}" / "boot-1"
    (left / "stores").mkdir(parents=True)
    left.parent.chmod(0o700)
    left.with_name("boot-1.lock").touch()
    flags = ["--nnodes=2", "--master-addr=192.0.2.1", "--node-rank=1", "train.py"]
    assert launcher.wait_for_end(launcher.start(EVERSTEP, *flags)).code == 2
    assert not left.exists()


def test_nodes_begin_and_end_while_others_sweep(tmp_path: Path) -> None:
    def comes_and_goes(node: str) -> int:
        scratch = LocalState(tmp_path)
        for _ in range(200):
            scratch.sweep()
            store = scratch.make_store_folder()
            assert store.is_dir()
            scratch.unregister(scratch.register("job", node, "worker"))
            remove_store(store)
        return 200

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(comes_and_goes, ("n0", "n1", "n2", "n3"))) == [200] * 4


def test_a_node_begins_only_when_what_its_forerunner_left_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, cleaning, cleaned = LocalState(tmp_path), threading.Event(), threading.Event()
    Registry(tmp_path / "nodes" / "job").put(Registration("n0", "job", "worker", "here", 1, 0, 0.0))

    def clean(job: str, node: str) -> None:
        cleaning.set()
        assert cleaned.wait(DEADLINE_S)

    monkeypatch.setattr(debris, "remove_debris", clean)
    with ThreadPoolExecutor(2) as threads:
        sweep = threads.submit(scratch.sweep)
        assert cleaning.wait(DEADLINE_S)
        entry = threads.submit(scratch.register, "job", "n0", "worker")
        with pytest.raises(TimeoutError):
            entry.result(0.2)
        cleaned.set()
        sweep.result(DEADLINE_S)
        began = entry.result(DEADLINE_S)
    assert Registry(tmp_path / "nodes" / "job").get("n0") == began
