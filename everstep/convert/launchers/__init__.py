"""Launchers whose place the train step's agent takes: one module each, with a `Dialect` that turns its flags into
torchrun's. The story begins in `everstep.convert.launcher`."""

from everstep.convert.launchers import accelerate, deepspeed, torchrun

DIALECTS = (torchrun.TORCHRUN, torchrun.TORCH_LAUNCH, accelerate.DIALECT, deepspeed.DIALECT)
