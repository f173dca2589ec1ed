"""Jobs: commands with a budget, such as a training run, that outlive the process that started them.

`JobTemplate` is what a user writes, `JobRunner` starts, finds again and stops jobs, and their state
is in the store of drafters.
"""

from __future__ import annotations

from paceline.autospec.jobs.records import JobRecord, JobState
from paceline.autospec.jobs.runner import JobRunner
from paceline.autospec.jobs.template import SHIPPED, JobPlan, JobTemplate

__all__ = ["SHIPPED", "JobPlan", "JobRecord", "JobRunner", "JobState", "JobTemplate"]
