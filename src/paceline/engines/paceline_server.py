"""Paceline's own server, `paceline serve`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paceline.engines.answers import AnsweredRound, Ask, EngineAnswer, Json
from paceline.engines.client import EngineClient
from paceline.engines.kind import Capabilities, EngineDescription, LaunchLine, LaunchPlan
from paceline.engines.metrics import VLLM_NAMES, EngineMetrics, read_prometheus
from paceline.engines.openai_stream import openai_request, take_openai

NAMES = replace(VLLM_NAMES, own="paceline:failed_steps_total")  # the rest are vLLM's


class PacelineServer:
    """Asks and reads our own server; see EngineKind."""

    name = "paceline"

    def launch(self, plan: LaunchPlan) -> LaunchLine:
        raise NotImplementedError

    def describe(self, client: EngineClient) -> EngineDescription | None:
        listed = (client.get_json("/v1/models") or {}).get("data") or [{}]
        if listed[0].get("owned_by") != "paceline":
            return None
        version = (client.get_json("/version") or {}).get("version")
        return EngineDescription(
            kind=self.name,
            version=version,
            model=listed[0]["id"],
            max_model_len=listed[0].get("max_model_len"),
            capabilities=Capabilities(
                token_ids=True, rounds=True, acceptance=True, speculation_off=True, logprobs=True
            ),
        )

    def request(self, ask: Ask, model: str) -> tuple[str, Json]:
        path, body = openai_request(ask, model)
        if ask.speculative is False:
            body["speculative"] = "off"
        if body.get("explain"):
            body["stream_options"] = {**body["stream_options"], "include_rounds": True}
        return path, body

    def take(self, answer: EngineAnswer, event: Json) -> None:
        explained = answer.rounds
        take_openai(answer, event)
        if explained is not None:
            answer.rounds = explained  # all rounds: the metrics list those that had a draft
        for choice in event.get("choices", ()):
            if choice.get("round"):
                answer.rounds = [*(answer.rounds or ()), *_rounds(choice["round"])]

    def read_metrics(self, text: str) -> EngineMetrics:
        return read_prometheus(text, NAMES)


def _rounds(shown: Json) -> Iterator[AnsweredRound]:
    """Yield the round of an event; the first token of an answer comes with the prompt."""
    if shown["position"]:
        drafted = shown["verified"] - len(shown["forced_places"])
        yield AnsweredRound(shown["position"], drafted, shown["accepted"])
