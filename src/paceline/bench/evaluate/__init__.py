"""How good a drafter is: the numbers of `paceline evaluate`, from the engine that serves it."""

from paceline.bench.evaluate.evaluation import Settings, evaluate
from paceline.bench.evaluate.markdown import compare, evaluation_table, regressions
from paceline.bench.evaluate.page import page

__all__ = ["Settings", "compare", "evaluate", "evaluation_table", "page", "regressions"]
