"""Traffic: the shape of a workload, from a log or a running server, and what speculation is worth
to it."""

from __future__ import annotations

from paceline.roofline.traffic.log import read_log
from paceline.roofline.traffic.metrics import watch
from paceline.roofline.traffic.worth import TrafficProfile, Worth, judge

__all__ = ["TrafficProfile", "Worth", "judge", "read_log", "watch"]
