"""A loop without `everstep.batches`: its iterations are told from its saves and reports, in either order."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import everstep
from everstep.runtime.protocol.worker_link import Report, Welcome
from everstep.runtime.store import DirectoryStore
from everstep.runtime.watch.board import VARIABLE
from everstep.session import Context, OwnLoop, Session
from tests.fake_agent import Node
from tests.forks import Forks

RESUMES = """
import json, os, time
from pathlib import Path
import torch, everstep
from everstep.runtime.watch.board import read_board
del os.environ["WORLD_SIZE"]  # Its board needs it; alone it has no process group.
everstep.init()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
state = {"model": model, "optimizer": optimizer}
checkpointer = everstep.Checkpointer(state)
time.sleep(1)  # Is no part of the first iteration.
before = checkpointer.load(state)
shown = lambda: read_board(Path(os.environ["EVERSTEP_BOARD"]))
beacon = lambda: checkpointer.segment.read_beacon()
assert beacon().changes == 1, "to have loaded is no progress yet"
began, seconds, doing, told = time.perf_counter(), [], [], []
for iteration in range(before + 1, before + 4):
    model(torch.ones(2, 4)).sum().backward()
    told.append(beacon().iteration)
    optimizer.step()
    everstep.phase("validation")
    doing.append(shown().doing)
    checkpointer.save(iteration, state)
    doing.append(shown().doing)
    seconds.append(time.perf_counter() - began)
checkpointer.finish(state)
print(json.dumps([shown().number, seconds[0], doing, [*told, beacon().iteration]]))
"""


class LinkStub:
    """A link that keeps what it is told."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.welcome = Welcome("job", "store")

    def tell(self, message: Report) -> None:
        self.reports.append(message)


@pytest.fixture
def session() -> Session:
    link: Any = LinkStub()
    new_session = Session(Context(0, 1, 0, torch.device("cpu"), 1, link))
    new_session.loop = OwnLoop(new_session)
    return new_session


def losses(session: Session) -> dict[int, Any]:
    link: Any = session.context.link
    assert all(report.values["seconds"] >= 0 for report in link.reports)
    return {report.iteration: report.values.get("loss") for report in link.reports}


@pytest.mark.parametrize("first", ["save", "report"])
@pytest.mark.parametrize("iterations", [range(1, 4), range(41, 44)])
def test_a_report_belongs_to_the_save_beside_it(first: str, iterations: range, session: Session) -> None:
    assert session.loop is not None
    for iteration in iterations:
        if first == "report":
            session.report({"loss": iteration / 10})
        session.loop.on_save(iteration)
        if first == "save":
            session.report({"loss": iteration / 10})
    session.loop.end()
    session.loop.end()
    assert losses(session) == {iteration: iteration / 10 for iteration in iterations}


def test_a_loop_that_never_reports_is_told_by_its_saves(session: Session) -> None:
    assert session.loop is not None
    for iteration in (1, 2, 3):
        session.loop.on_save(iteration)
    assert losses(session) == {1: None, 2: None}
    session.loop.end()
    assert losses(session) == {1: None, 2: None, 3: None}
    assert session.iteration == 3


def test_a_state_that_is_saved_twice_is_one_iteration(session: Session) -> None:
    assert session.loop is not None
    for iteration in (1, 1, 2):
        session.loop.on_save(iteration)
        session.report({"loss": float(iteration)})
    session.loop.end()
    assert losses(session) == {1: 1.0, 2: 2.0}


def test_losses_that_are_not_finite_do_not_pass_in_silence(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    assert session.loop is not None
    for iteration in range(1, 13):
        session.report({"loss": float("nan") if iteration > 1 else 1.0})
        session.loop.on_save(iteration)
    assert capsys.readouterr().err.splitlines() == [
        "everstep: the loss of iteration 2 is nan",
        "everstep: the loss of iteration 11 is nan, the 10th in a row",
    ]


def test_how_long_an_evaluation_and_a_restore_took_is_told_with_the_next_iteration_only(session: Session) -> None:
    link: Any = session.context.link
    session.note_restore(2.5)
    session.beacon("evaluation")
    session.beacon("step")
    for iteration in (1, 2):
        session.iteration = iteration
        session.send({"seconds": 1.0})
    first, second = (report.values for report in link.reports)
    assert first["restore_s"] == 2.5
    assert 0 <= float(first["evaluation_s"]) < 60
    assert second == {"seconds": 1.0, "stall_s": 0.0}


@pytest.mark.parametrize("kind", ["loader", "batches"])
def test_an_evaluation_at_the_end_of_the_loops_body_is_of_the_iteration_that_it_made_longer(
    kind: str, session: Session, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link: Any = session.context.link
    monkeypatch.setattr("everstep.session._session", session)
    some = list(range(20))
    batches: Any = (
        everstep.loader(some, global_batch=2, iterations=3)
        if kind == "loader"
        else everstep.batches(dataset, sequence_length=16, global_batch=2, iterations=3)
    )
    for batch in batches:
        if batch.iteration == 2:
            everstep.phase("evaluation")
    assert ["evaluation_s" in report.values for report in link.reports] == [False, True, False]


def test_a_resumed_loop_counts_on_and_its_first_iteration_begins_after_the_load(forks: Forks, tmp_path: Path) -> None:
    (tmp_path / "resumes.py").write_text(RESUMES)
    node = Node(tmp_path / "node", DirectoryStore(tmp_path / "store"), interval=1)
    shown = []
    try:
        for round_ in (1, 2):
            node.begin(round_, node.newest() if shown else None)
            place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "EVERSTEP_ROUND": str(round_)}
            environment = {**place, "EVERSTEP_AGENT": node.path, VARIABLE: str(tmp_path / f"board-{round_}")}
            code = forks.run([str(tmp_path / "resumes.py")], environment, tmp_path / "out")
            assert code == 0, (tmp_path / "out").read_text()
            shown.append(json.loads((tmp_path / "out").read_text().splitlines()[-1]))
    finally:
        node.close()
    assert [told for *_, told in shown] == [[1, 2, 3, 3], [4, 5, 6, 6]], "the iteration in progress, at last the newest"
    assert [number for number, *_ in shown] == [3, 6], "SGD does not count its steps, the checkpointer knows them"
    assert [doing for _, _, doing, _ in shown] == [["validation", ""] * 3] * 2
    told = [float(report.values["seconds"]) for report in node.reports if report.iteration in (1, 4)]
    assert all(seconds < most + 0.5 for seconds, (_, most, *_) in zip(told, shown, strict=True))
