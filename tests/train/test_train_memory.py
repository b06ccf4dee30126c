"""A node that runs out of the memory its role gives it comes back with twice as much, and the training ends well."""

from pathlib import Path

from tests.harness import TrainStep
from tests.memory_groups import memory_group

SCRIPT = """
import mmap
from pathlib import Path

import torch

import everstep

job = everstep.init()
state = {"w": torch.zeros(3)}
checkpointer = everstep.Checkpointer(state)
begun = checkpointer.load(state)
if begun == 0:
    checkpointer.save(1, state)
group = next(line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines() if KIND in line)
limit = int((Path(ROOT + group) / FILE).read_text())
(Path(TOLD) / f"{job.round}").write_text(str(limit))
held = mmap.mmap(-1, 1200 << 20)  # Fits in 2 GiB with torch, not in 1 GiB.
for page in range(0, len(held), mmap.PAGESIZE):
    held[page] = 1
checkpointer.finish(state)
"""


def test_after_running_out_of_memory_a_node_gets_twice_as_much(tmp_path: Path, dataset: Path) -> None:
    with memory_group(4 << 30) as group:
        v1 = group.parent.name == "memory"
        names = {"KIND": ":memory:" if v1 else "0::", "ROOT": str(group.parent), "TOLD": str(tmp_path)}
        names["FILE"] = "memory.limit_in_bytes" if v1 else "memory.max"
        head = "".join(f"{name} = {value!r}\n" for name, value in names.items())
        script, spec = tmp_path / "mine.py", tmp_path / "roles.yaml"
        script.write_text(head + SCRIPT)
        spec.write_text("replicaSpecs:\n  worker: {replicas: 1, resources: {memory: 1Gi}}\n")
        flags = {"dataset": str(dataset), "script": str(script), "job-spec": str(spec)}
        step = TrainStep(tmp_path / "run", tmp_path / "store", flags=flags, group=group)
        try:
            step.start()
            assert step.finish() == 0, step.last_words()
        finally:
            step.kill_all()
        assert [(tmp_path / str(number)).read_text() for number in (1, 2)] == [str(1 << 30), str(2 << 30)]
        judged = next(record for record in step.records() if record["kind"] == "FaultJudged")
        assert (judged["reason"], judged["detail"]) == ("out of memory", "with 2 GiB of memory instead of 1 GiB")
        assert step.leftovers() == []
