"""Everstep's runtime: the elastic job, checkpoints, data, diagnosis, the executor and the report.

The story begins in `runtime.job` (what is decided) and `runtime.master` (what carries it out).
"""
