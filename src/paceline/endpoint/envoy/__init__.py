"""Envoy, the data plane: Paceline writes its files, starts it, and reads its admin interface."""
