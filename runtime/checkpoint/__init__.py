"""Checkpoints: staged in shared memory by workers, kept, persisted and fetched by the node's agent.

May import `runtime.job`, `runtime.agent.link`, `runtime.store`, `runtime.faults` and torch; the agent's side (`keeper`
and what it imports) does without torch. The story begins in `checkpointer` (worker) and `keeper` (agent); `slots` has
the rules by which no state is ever torn or lost, `layout` the bytes of a shard.
"""
