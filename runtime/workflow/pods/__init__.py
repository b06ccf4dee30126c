"""Pods as processes of this machine.

`pod_launcher` says what a node's pod is, `processes` starts it once and finds it again after a crash, `spawner` and
`podrun` run inside of it and import nothing of Everstep. `isolation` and `sandbox` are its walls.
"""
