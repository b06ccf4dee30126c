"""Figures: ratios to a limit or a peer, measured in one run; never asserted in tests."""
