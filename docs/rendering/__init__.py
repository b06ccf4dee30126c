"""The pages of docs/reference that are made from the code: `python -m docs.rendering` (make reference) writes them.

Each module has a function `render() -> str`. Sources are parsed rather than imported where an import would cost torch.
A test compares each page with what its module renders.
"""

from docs.rendering import environment, exit_codes, fault_points, flags, job_spec, metrics, python_api

PAGES = {
    "python-api": python_api.render,
    "flags": flags.render,
    "job-spec": job_spec.render,
    "exit-codes": exit_codes.render,
    "environment": environment.render,
    "fault-points": fault_points.render,
    "metrics": metrics.render,
}
"""By the name of the page in docs/reference."""
