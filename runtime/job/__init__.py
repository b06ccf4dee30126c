"""The brain of an elastic job: decides its membership, what follows from a fault, and what a round restores. No IO, no
clock.

An event enters `brain.Brain.handle`. `on_event`, `on_stored` or `on_evidence` records what it means, `settle` what
follows from the new state; each decision becomes a record (`records`) through `transaction`. The state is the fold of
the records: `state`, made by `fold`, `fold_rounds` and `fold_stored`, with `phases` (the job's transition table),
`nodes` (the nodes' table), `roster` (many nodes at little cost), `conditions` (the status for people), `checkpoints`,
and `snapshot` (the state as bytes).
Pure functions of the state decide the rest: the next round (`rounds`, `topology`), what it restores (`restore`), what
follows from a fault (`fault_policy`: one table, rendered as docs/faults.md), when the job is over (`termination`),
which nodes are slow (`slow_nodes`) or desired (`replicas`), and seats and directives (`assignments`). Signs of life
(`liveness`) and who accuses whom of silence (`suspicion`) are not journaled.
`everstep.runtime.master` journals the records before it acts on them.
`spec` describes a job; `spec_reader`, the only module here that needs PyYAML, reads it from YAML.
Imports the standard library and msgspec only.
"""
