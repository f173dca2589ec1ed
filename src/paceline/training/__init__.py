"""Drafters trained on what the target says: anchors, losses, trainer, evaluation, checkpoints."""
