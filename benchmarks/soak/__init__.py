"""`make soak`: one training under a fault every few seconds, and what is left of it."""
