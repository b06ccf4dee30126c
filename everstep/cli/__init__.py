"""The `everstep` command. `main` reads the verb; each verb is a module here.

A verb's module has `configure(parser)`, which adds its flags, a dataclass, and what is done with them. `find_job` finds
the job that a verb names, `run_views` prints runs.
"""
