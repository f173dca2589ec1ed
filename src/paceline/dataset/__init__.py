"""Training sets on disk: what synth writes, and training and evaluation read."""
