"""What a workflow does next: pure. `engine` is the fold of `events`; each kind of node has its module.

`scheduler` is what those modules may ask of the engine. Nothing here reads a clock, starts a process or opens a file.
"""
