"""The performance model: what speculation buys, for a model, a device, a batch and a context.

Python and numpy only; it imports nobody but `core`. In the order in which a prediction walks
through it: `hardware` and `architecture` (with `families`, `mixers`, `feed_forward`, `formats`)
say what there is, `components` what each part asks of a device, `cost` how long a forward takes,
`calibration` how much longer on a real engine, `drafting` what a draft adds, `speedup` what comes
out. `fit` learns a calibration from measured steps; `capacity` says what fits into memory.
"""

from __future__ import annotations
