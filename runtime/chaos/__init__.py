"""Faults of a training under way: what can be done to it, who does it, and proof that it was done.

The story begins in `injector`: an Injector says whether it can do a kind of fault here, does it, and returns when it
fired, with what it saw of it. `on_machine` is for nodes that are processes of this machine, `on_cluster` for pods
(`job_pods` finds them, `in_pod` is what is executed in them; `beside_node` adds a container that runs `cut_off`, which
loses packets by `routes`), `chaosblade` for pods where its operator is installed.
`progress` reads how far the job is; `load` are the programs that use up CPU or memory, `packet_loss` cuts a network
off, `clock` sets a process's clock, `store_outage` takes a store away, `full_disk` fills its file system, `slow_disk`
slows it down. `groups` makes control groups, `victims` finds and kills processes.

The named points of `everstep.runtime.faults` are something else: they are in the code, and only tests arm them.
"""

from everstep.runtime.chaos.injector import Fault, FiredFault, Injector, Kind, NotFiredError, NotPossibleError

__all__ = ["Fault", "FiredFault", "Injector", "Kind", "NotFiredError", "NotPossibleError"]
