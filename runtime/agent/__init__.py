"""One agent a node: it asks the master for a seat, runs the workers, keeps what they stage, and tells what happens.

The story begins in `agent`: `client` speaks with the master, `workers` and `forkserver` run the script, `socket_server`
hears the workers. `link` is what workers import: standard library and msgspec only.
"""
