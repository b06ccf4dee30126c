"""Checkpoints: staged in shared memory by workers; kept, persisted and fetched by the agent of the node.

`state` flattens a user's state. `shard` defines the bytes of a shard and copies them. `stored` names and checks the
checkpoints in a store. `worker` is what a training script calls; start with `worker.checkpointer`. `node` is the
agent's side, and works without torch; start with `node.core.keeper_core`, which decides, and `node.keeper`, which acts.
"""
