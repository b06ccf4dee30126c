"""The journal of a job: what its master was told and decided, and snapshots that bound the replay.

The master writes it; agents that look for their master and the report read it. The story begins in `journal`;
`segments` says where its pieces lie, `snapshots` keeps the state after one of them.
"""
