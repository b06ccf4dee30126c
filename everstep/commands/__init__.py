"""One module a verb of the `everstep` command: `configure(parser)` adds its flags, `run(arguments)` does it."""
