"""Drafters: one file each. `base` is what the engine knows of them, `spec` what users write."""

DEFAULT_SPEC = "auto"  # of an engine whose user names no drafter
