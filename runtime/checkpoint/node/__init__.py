"""The agent's side of checkpoints, without torch: what this node holds, sends to peers, persists and gives back.

The story begins in `keeper`; `slots` has the rules by which no state is ever torn or lost.
"""
