"""The `everstep` command. `main` reads the verb; each verb is a module here: `configure(parser)` adds its flags,
`run(arguments)` does it. `find_job` finds the job that a verb is about, `run_views` prints runs.
"""
