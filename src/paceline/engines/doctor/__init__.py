"""`paceline doctor`: why a drafter accepts less at an engine than it should."""

from paceline.engines.doctor.examine import examine_served
from paceline.engines.doctor.report import DoctorFinding, PositionResult, ServedReport

__all__ = ["DoctorFinding", "PositionResult", "ServedReport", "examine_served"]
