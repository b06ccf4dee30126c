"""Is a machine fit to train? Node checks: each node works alone, then with its partner; a pure rule gives verdicts.

`pairs` groups the nodes and judges what they measured (standard library only); `check` is one node's part
(`python -m runtime.diagnosis.check`); `local` runs every node of a job as a process of this machine. Only `check` and
`local` import torch, and only when they run.
"""
