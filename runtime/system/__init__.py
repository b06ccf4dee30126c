"""This machine: files that are complete or absent, processes, rotated logs, a user's own temporary folder."""
