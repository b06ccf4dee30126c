"""Pipelines to copy: one file each, one screen each."""
