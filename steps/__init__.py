"""The steps of a pipeline, one folder each: `config.py` (the parameters), `template.py` (the Hera template made from
them), `__main__.py` (`python -m steps.<name>`: the same entry on a laptop and in a pod).

Never imports `pipelines`. What all steps share stands in `entry` (flags, exit codes, outputs) and `template`.
"""
