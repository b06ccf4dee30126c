"""Checkpoints in a store: their names, the manifest that commits one, verification and retention."""
