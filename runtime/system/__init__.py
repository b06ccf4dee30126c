"""This machine: files that are whole or not there, processes, logs that rotate, a user's own temporary folder."""
