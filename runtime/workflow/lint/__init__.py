"""Mistakes in a workflow before it runs. `lint` runs the checks of the other modules."""
