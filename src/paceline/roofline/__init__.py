"""The performance model: what speculation buys, for a model, a device, a batch and a context.

It imports no torch, and no other room but `core`. Each subpackage imports only those before it:

    device        devices by their datasheets, and calibrations: how far real engines stay from them
    architecture  networks read off configs, as components that ask work of a device
    acceptance    how well a drafter drafts
    cost          a Deployment: the time and the memory of forwards and drafts, the speedup
    fit           calibrations learned from measured steps
    traffic       the shape of a workload, and what speculation is worth to it
    scenario      what users state, and every view of the prediction

Beside them, `timing` gives the event lists that the page's timing pane plays.
"""

from __future__ import annotations
