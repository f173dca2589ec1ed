"""DFlash drafters (arXiv 2602.06036): config, checkpoint, and the network in its three forms.

`module` is the training form, one pass over a whole sequence; `torch_network` and `native_network`
are the serving form over paged KV. All three are equal by test.
"""
