"""`paceline evaluate` of an engine that serves elsewhere: the same report, asked over HTTP."""

from paceline.engines.evaluation.run import EngineEvaluation, EvaluationBroke
from paceline.engines.evaluation.servers import Replicas, RunningServers, Servers

__all__ = ["EngineEvaluation", "EvaluationBroke", "Replicas", "RunningServers", "Servers"]
