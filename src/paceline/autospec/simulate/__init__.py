"""Simulated traffic, to see what the policy decides before it decides anything live."""
