"""How good a drafter is: the numbers of `paceline evaluate`, from the engine that serves it."""

from paceline.evaluate.evaluation import EvaluationSettings, evaluate
from paceline.evaluate.markdown import compare, evaluation_table, regressions
from paceline.evaluate.page import page

__all__ = ["EvaluationSettings", "compare", "evaluate", "evaluation_table", "page", "regressions"]
