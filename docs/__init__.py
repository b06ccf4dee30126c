"""The pages, and what renders some of them from the code."""
