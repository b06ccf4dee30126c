"""What a training process does, seen from outside: its board, its stacks, and who hangs.

Any script is watched; it need not import everstep. `in_worker` fills a worker's board from hooks; `board` is its file.
`find_workers`, `process_state` and `read_stacks` look at live processes. `board_fields`, `stacks`, `merge`, `pictures`,
`dumps`, `slow_ranks` and `hang_culprit` are pure. The worker's story begins in `in_worker`, the reader's in `looks`.
"""
