"""Checkpoints: staged in shared memory by workers, kept, persisted and fetched by the node's agent.

The agent's side (`keeper` and what it imports) does without torch. The story begins in `checkpointer` (worker) and in
`keeper` (agent); `slots` has the rules by which no state is ever torn or lost, `layout` the bytes of a shard.
"""
