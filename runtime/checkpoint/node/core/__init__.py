"""The keeper's decisions, without IO, clock, lock or thread: events come in, actions go out.

The story begins in `keeper_core`: the table of events, then `handle`. `events` and `actions` are all that comes in and
goes out. `slots` says which slot may be written, `segments` who reads which slot and which files go. Each other part
decides one matter: `staging` who writes, `persist` what goes to the store, `peer_copies` and `peer_reads` what other
nodes get, `round_restore` what a round starts from, `digest_queue` which digests are computed.
"""
