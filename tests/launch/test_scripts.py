"""Scripts written for torchrun run unchanged, with the same results: DDP, FSDP, RPC, with processes of their own."""

import pytest

from tests.launch.launchers import EVERSTEP, Launcher, Pair

pytest.importorskip("torch")

DDP = """
import argparse, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
epochs = parser.parse_args().epochs
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 2))
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
sampler = DistributedSampler(data, seed=1)
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(data, batch_size=4, sampler=sampler, num_workers=1):
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
sys.stdout.write(f"{dist.get_rank()} {model.module.weight.sum().item():.6f}\\n")
dist.destroy_process_group()
"""
FSDP = """
import os, sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
for layer in model:
    if isinstance(layer, torch.nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
torch.manual_seed(dist.get_rank())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
total = model[0].weight.full_tensor().sum().item()
sys.stdout.write(f"{dist.get_rank()} {model[0].weight.to_local().shape} {total:.6f}\\n")
dist.destroy_process_group()
"""
RPC = """
import os, sys
import torch
import torch.distributed.rpc as rpc

def double(tensor):
    return 2 * tensor, int(os.environ["RANK"])

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world)
if rank == 0:
    told, there = rpc.rpc_sync("worker1", double, args=(torch.ones(2),))
    remote = rpc.remote("worker1", torch.add, args=(torch.ones(2), 3))
    sys.stdout.write(f"{told.tolist()} {there} {remote.to_here().tolist()}\\n")
rpc.shutdown()
"""
OWN_PROCESSES = """
import multiprocessing, os, subprocess, sys

def work(number):
    return number * int(os.environ["WORLD_SIZE"])

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        told = pool.map(work, range(3))
    echo = [sys.executable, "-c", "import os; print(os.environ['RANK'])"]
    echoed = subprocess.run(echo, capture_output=True, text=True).stdout.strip()
    sys.stdout.write(f"{os.environ['RANK']} {told} {echoed}\\n")
"""
FIRST_ENDS = """
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
if rank:
    time.sleep(0.5)
sys.stdout.write(f"{rank} done\\n")
"""


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        (DDP, ["--epochs", "2"]),
        pytest.param(FSDP, [], marks=pytest.mark.long),
        pytest.param(RPC, [], marks=pytest.mark.long),
        (OWN_PROCESSES, ["fork"]),
        (OWN_PROCESSES, ["spawn"]),
        (OWN_PROCESSES, ["forkserver"]),
        (FIRST_ENDS, []),
    ],
    ids=["DDP", "FSDP", "RPC", "forks", "spawns", "fork server", "rank 0 ends first, and no group is destroyed"],
)
def test_a_script_for_torchrun_runs_unchanged_with_the_same_result(
    pair: Pair, script: str, arguments: list[str]
) -> None:
    theirs, mine = pair.run(script, "--standalone", "--nproc-per-node=2", "train.py", *arguments)
    assert theirs.code == 0, theirs.err
    assert mine.code == 0, mine.err
    assert mine.lines() == theirs.lines() != []


def test_eight_local_ranks_import_once(launcher: Launcher) -> None:
    (launcher.folder / "costly.py").write_text("import os\nwith open('imports', 'a') as file: file.write('once\\n')\n")
    (launcher.folder / "train.py").write_text("import costly, os, sys\nsys.stdout.write(os.environ['RANK'] + '\\n')\n")
    outcome = launcher.wait_for_end(launcher.start(EVERSTEP, "--standalone", "--nproc-per-node=8", "train.py"))
    assert outcome.lines() == [str(rank) for rank in range(8)], outcome.err
    assert (launcher.folder / "imports").read_text() == "once\n"
