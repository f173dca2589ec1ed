"""The performance model: what speculation buys, for a model, a device, a batch and a context.

Python and numpy only. It imports nobody but `core`.
"""

from __future__ import annotations
