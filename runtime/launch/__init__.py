"""`everstep launch`: torchrun's command line on an elastic job. One process a node is the agent; one of the nodes also
starts the master.

`torchrun` are the flags of torch's own launcher, `flags` the parser with ours beside them, `options` what they mean
together. The story begins in `run`: `meeting` finds or hosts the master, `host` is the master's process, the node
itself is `runtime.agent`. torch is imported only where a flag asks for it (`auto`, `gpu`).
"""
