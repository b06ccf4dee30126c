"""The steps of a pipeline, one folder each.

`config.py` has the parameters, `template.py` the Hera template made from them, and `__main__.py` is the entry, on a
laptop and in a pod (`python -m everstep.steps.<name>`). All steps share `entry` (flags, exit codes, outputs) and
`template`.
"""
