"""The bytes of a shard: where each tensor lies, digests, shared memory, and copies to and from live state.

`layout` is the format (byte for byte safetensors), `segment` the shared memory that holds it, `stage` and `restore` the
copies between it and the state, `fetch` brings one from a peer or the store, `reshard` cuts it otherwise.
"""
