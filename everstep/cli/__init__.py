"""The `everstep` command. `main` reads the verb; each verb is a module here.

A verb's module has `configure(parser)`, which adds its flags, and `run(arguments)`. `find_job` finds the job that a
verb names, `run_views` prints runs.
"""
