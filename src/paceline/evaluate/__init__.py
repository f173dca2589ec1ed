"""How good a drafter is: the numbers of `paceline evaluate`, from the engine that serves it."""

from paceline.evaluate.evaluation import Settings, evaluate
from paceline.evaluate.markdown import compare, evaluation_table, regressions
from paceline.evaluate.page import page

__all__ = ["Settings", "compare", "evaluate", "evaluation_table", "page", "regressions"]
