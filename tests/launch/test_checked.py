"""With --network-check a node is checked before it joins: at the start with all, later with one that trains."""

import random
import re

import pytest

from everstep.runtime.agent.ports import free_port
from tests.launch.launchers import EVERSTEP, Launcher, until
from tests.launch.nodes import QUICK, SCRIPT, Nodes

pytest.importorskip("torch")

KILLED = ";".join(f"check.matmul,round={number}=kill" for number in (1, 2, 3))
"""A machine whose processes die."""


@pytest.fixture
def nodes(launcher: Launcher) -> Nodes:
    """A job of its own."""
    (launcher.folder / "train.py").write_text(SCRIPT)
    return Nodes(launcher, free_port(random.Random()))


def fired_faults(nodes: Nodes) -> list[str]:
    """Faults that did."""
    return sorted(path.name for path in (nodes.launcher.folder / "fired").iterdir())


def faulty(nodes: Nodes) -> dict[str, str]:
    """The environment of a faulty node."""
    (nodes.launcher.folder / "fired").mkdir()
    return {"EVERSTEP_FAULT": KILLED, "EVERSTEP_FAULT_DIR": str(nodes.launcher.folder / "fired")}


def test_a_node_alone_is_checked_before_it_trains(launcher: Launcher) -> None:
    (launcher.folder / "train.py").write_text("print('trains')")
    outcome = launcher.wait_for_end(launcher.start(EVERSTEP, "--standalone", "--network-check", "train.py"))
    assert (outcome.code, outcome.out) == (0, "trains\n"), outcome.err
    assert re.search(r"everstep: Round 1: \{worker-\w+-\w+: [\d.]+\} s", outcome.err)
    assert launcher.leftovers() == []


def test_all_nodes_are_checked_together_and_a_faulty_one_is_left_out(nodes: Nodes) -> None:
    flags = ("--network-check",)
    nodes.start("a", *flags, nodes="2:3")
    nodes.start("b", *flags, nodes="2:3")
    nodes.start("c", *flags, nodes="2:3", **faulty(nodes))
    assert nodes.wait_for_end("c").code == 3, nodes.stderr_text()
    assert fired_faults(nodes), "the fault fired"
    assert "this node is done: it is left out, as it is faulty" in nodes.launcher.text("c", "err")
    nodes.trains(world=2)
    assert re.search(r"faulty: worker-\w+-\w+  stragglers: ", nodes.stderr_text())
    assert [outcome.code for outcome in nodes.finish("a", "b")] == [0, 0], nodes.stderr_text()
    nodes.wait_until_gone()


@pytest.mark.parametrize("fit", [pytest.param(True, marks=pytest.mark.long), False], ids=["fit", "faulty"])
def test_a_node_that_comes_later_is_checked_with_one_that_trains_meanwhile(nodes: Nodes, fit: bool) -> None:
    flags = ("--network-check",)
    nodes.start("a", *flags)
    first = nodes.trains(world=1)
    count_before = len(nodes.progress())
    nodes.start("b", *flags, **({} if fit else faulty(nodes)))
    if fit:
        nodes.trains(world=2, after=first)
    else:
        assert nodes.wait_for_end("b").code == 3, nodes.stderr_text()
        assert fired_faults(nodes), "the fault fired"
        until(lambda: len(nodes.progress()) > count_before + 20, nodes.stderr_text)
        assert {count for count, _, _ in nodes.progress()} == {first}, "the other one trained on"
    rounds = [line for line in nodes.stderr_text().splitlines() if "Round" in line]
    assert any(line.count("worker-") == 2 for line in rounds), rounds
    assert [outcome.code for outcome in nodes.finish("a", *"b" * fit)] == [0, 0][: 1 + fit], nodes.stderr_text()
    nodes.wait_until_gone()


@pytest.mark.long
def test_a_straggler_is_left_out_where_that_is_asked_for(nodes: Nodes) -> None:
    slow = {"EVERSTEP_FAULT": ";".join(f"check.matmul,round={number}=sleep:30" for number in (1, 2, 3))}
    (nodes.launcher.folder / "fired").mkdir()
    slow["EVERSTEP_FAULT_DIR"] = str(nodes.launcher.folder / "fired")
    together = "--rdzv-conf=" + QUICK.replace("last_call_timeout=2", "last_call_timeout=15")
    for name, more in (("a", {}), ("b", {}), ("c", slow)):
        nodes.start(name, "--network-check", "--exclude-straggler", together, nodes="2:3", **more)
    assert nodes.wait_for_end("c").code == 3, nodes.stderr_text()
    assert fired_faults(nodes), "the fault fired"
    assert "it is left out, as it is straggler" in nodes.launcher.text("c", "err")
    nodes.trains(world=2)
    assert [outcome.code for outcome in nodes.finish("a", "b")] == [0, 0], nodes.stderr_text()
    nodes.wait_until_gone()


def test_too_few_nodes_to_check_are_no_quorum(nodes: Nodes) -> None:
    patience = "--rdzv-conf=join_timeout=20"
    nodes.start("a", "--network-check", patience, nodes="2")
    outcome = nodes.wait_for_end("a")
    assert outcome.code == 3, outcome.err
    assert re.search(r"\b[01] of 2 nodes joined the check within 20 s", outcome.err)
    nodes.wait_until_gone()
