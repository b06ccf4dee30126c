"""The steps of a pipeline, one folder each: `config.py` (the parameters), `template.py` (the Hera template made from
them), `__main__.py` (`python -m everstep.steps.<name>`: the same entry on a laptop and in a pod).

What all steps share stands in `entry` (flags, exit codes, outputs) and `template`.
"""
