"""What a workflow does next. `engine` is the fold of `events`; each kind of node has a module of its own.

`scheduler` is the Protocol through which those modules use the engine. Nothing here reads a clock, starts a process or
opens a file.
"""
