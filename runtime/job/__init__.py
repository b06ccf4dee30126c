"""The brain of an elastic job: who is in, what a fault means, what a round starts from. No IO, no clock.

The story: an event enters `brain.Brain.handle`; `reports` says what it means, `consequences` what follows; each
decision becomes a record (`records`) through `case`. The state is the fold of the records: `state`, with `phases` (the
table of the job's transitions), `nodes` (that of its nodes), `roster` (10,000 nodes at little cost), `conditions` (the
status for people), `checkpoints`, `snapshot` (the state as bytes).
What follows from a state are pure functions: the next round (`rounds`, `topology`), what it restores (`restore`),
what a fault means (`policy`: the one table, rendered as docs/faults.md), when the job is over (`endings`), which
nodes shall exist (`sizes`), what an agent is told (`seats`). Signs of life (`liveness`) need no journal.
`runtime.master` journals the records before anything is done about them.
`messages` is the wire, `spec` what a job is asked to be, `reader` (which alone needs PyYAML) makes it from YAML.
Imports the standard library and msgspec only.
"""
