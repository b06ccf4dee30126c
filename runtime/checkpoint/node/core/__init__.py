"""What the keeper decides, without IO, clock, lock or thread: events come in, actions go out.

The story begins in `keeper_core`: the table of events, then `handle`. `events` has all that comes in and goes out.
`slots` says which slot may be written, `segments` who reads which and what goes. Each other module decides one matter:
`staging` who writes, `persist` what goes to the store, `peer_copies` and `peer_reads` what other nodes get, and
`round_restore` what a round starts from.
"""
