"""The script of a line of `benchmarks.accept_gpu`: compiled, in bf16, two passes an iteration, a save after each.

    everstep launch --standalone --max-restarts 1 benchmarks/gpu_training.py compiled|eager FILE [KILLED]

FILE gets the weights' sums, exact to the bit. With KILLED the process kills itself once, and creates that file before.
`eager`: not compiled, for a machine that cannot.
"""

import faulthandler
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

import everstep

MODE, FILE, *KILLED = sys.argv[1], *map(Path, sys.argv[2:])
ITERATIONS, KILLED_AT = 30, 15
WIDTH = 512 if torch.cuda.is_available() else 32
"""Without a device only the script itself is tried. With one, three copies of the state fit 64 MB of shared memory, as
containers have."""
LAYERS = 4
SAMPLES = 256
STACKS_S = 150.0
"""A process that has not ended by then says where it is."""


def build() -> nn.Module:
    """A million parameters on a device."""
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)) for _ in range(LAYERS))
    return nn.Sequential(*layers)


@everstep.main
def main(job: everstep.Context) -> None:
    faulthandler.dump_traceback_later(STACKS_S, file=sys.__stderr__ or 2)
    model = job.keep(build).to(job.device)
    network = job.keep(torch.compile, model) if MODE == "compiled" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = {"model": model, "optimizer": optimizer}
    checkpointer = everstep.Checkpointer(state)
    for iteration in range(checkpointer.load(state) + 1, ITERATIONS + 1):
        generator = torch.Generator().manual_seed(iteration)
        for _ in range(2):
            values = torch.randn(SAMPLES, WIDTH, generator=generator).to(job.device)
            with torch.autocast(job.device.type, torch.bfloat16):
                loss = (network(values).float() - values).square().mean() / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        checkpointer.save(iteration, state)
        everstep.report(loss=loss.item())
        if iteration == KILLED_AT and KILLED and not KILLED[0].exists():
            KILLED[0].touch()
            os.kill(os.getpid(), signal.SIGKILL)
    checkpointer.finish(state)
    sums = [float(parameter.detach().double().sum()).hex() for parameter in model.parameters()]
    FILE.write_text("\n".join(sums))


os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
torch.use_deterministic_algorithms(True)
main()
