"""Mistakes in a workflow before it runs. `findings` runs the checks of the other modules."""
