"""What `make accept-first-hour` measures, by subject: each part runs the commands that a new user would type."""
