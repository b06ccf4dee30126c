"""The agent's side of checkpoints, without torch: what this node holds, sends to peers, persists and gives back.

`core` decides and does no IO: its story begins in `core.keeper_core`, and `core.slots` has the rules by which no state
is ever torn or lost. `keeper` is the shell of one lock around it, and `keeper_io` does what takes long, in threads.
"""
