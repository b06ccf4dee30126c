"""The bytes of a shard: the place of each tensor, digests, shared memory, and copies to and from live state.

`layout` is the format (byte for byte safetensors). `segment` is the shared memory that holds shards. `copy_to_slot`
and `restore` copy between it and the state. `fetch` brings a shard from a peer or the store. `reshard` loads shards
into ranks that divide the state differently.
"""
