"""One run on this machine: `executor` lets the engine decide, starts pods and writes everything down first.

`run_folder` is the run's folder, `status` its `workflow.json`, `control_requests` what people ask of it, `run_locks`
what it shares with other runs, `view` what a terminal shows.
"""
