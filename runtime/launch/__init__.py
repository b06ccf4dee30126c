"""`everstep launch`: torchrun's command line on an elastic job.

There is one agent process per node; one of the nodes also starts the master. `torchrun` holds the flags of torch's own
launcher, `flags` the parser with Everstep's flags added, `options` what they mean together. The story begins in `run`:
`node_identity` and `endpoint` find the master or decide to host it, `master_main` is the master's process, the node
itself is `runtime.agent`. torch is imported only where a flag asks for it (`auto`, `gpu`).
"""
