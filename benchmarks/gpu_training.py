"""The script of a line of `benchmarks.accept_gpu`: compiled, in bf16, two passes an iteration, a save after each.

    everstep launch --standalone --max-restarts 1 benchmarks/gpu_training.py FILE [KILLED]

FILE gets the weights' sums, exact to the bit. With KILLED the process kills itself once, and creates that file before.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

import everstep

ITERATIONS, KILLED_AT = 30, 15
WIDTH = 1024 if torch.cuda.is_available() else 32
"""Without a device only the script itself is tried."""
SAMPLES = 256


def build() -> nn.Module:
    """8 million parameters on a device."""
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)) for _ in range(8))
    return nn.Sequential(*layers)


@everstep.main
def main(job: everstep.Context) -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    model = job.keep(build).to(job.device)
    network = job.keep(torch.compile, model)
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
        if iteration == KILLED_AT and len(sys.argv) > 2 and not (killed := Path(sys.argv[2])).exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    checkpointer.finish(state)
    sums = [float(parameter.double().sum()).hex() for parameter in model.parameters()]
    Path(sys.argv[1]).write_text("\n".join(sums))


main()
