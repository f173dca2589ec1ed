"""Autospec keeps drafters good while traffic changes: it watches, decides, trains, tries and swaps.

The statistics in `drift`, `canary` and `hedge` are pure: they read numbers and return decisions
with their reasons. They do no I/O and need no torch.
"""
