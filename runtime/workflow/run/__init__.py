"""One run on this machine: `executor` carries out what the engine decides and logs every event first.

`run_folder` is the run's folder, `status` its `workflow.json`, `control_requests` stop, resume
and set it from outside, `run_locks` is what runs share, `view` what a terminal shows.
"""
