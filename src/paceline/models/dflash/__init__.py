"""DFlash drafters (arXiv 2602.06036): config, checkpoint, and the network in three forms that are
equal by test: for training, and in torch and on fused kernels for serving over paged KV."""
