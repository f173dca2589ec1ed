"""Scores without traffic: what every drafter would have accepted of texts that the target wrote."""
