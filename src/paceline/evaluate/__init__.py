"""The worth of a drafter: the numbers of `paceline evaluate`, from the engine that serves it."""

from paceline.evaluate.comparison import compare, regressions
from paceline.evaluate.evaluation import evaluate
from paceline.evaluate.report import evaluation_table, page
from paceline.evaluate.result import Evaluation, EvaluationSettings

__all__ = [
    "Evaluation",
    "EvaluationSettings",
    "compare",
    "evaluate",
    "evaluation_table",
    "page",
    "regressions",
]
