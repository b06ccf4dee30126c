"""Pods as processes of this machine.

`pod_starter` starts pending pods. `pod_launcher` makes a node's pod, `pod` starts it at most once and finds it again
after a crash, `pod_outputs` collects what it left. `spawner` and `podrun` run inside of pods and import nothing of
Everstep. `isolation` plans the pod's root, `sandbox` its walls.
"""
