"""Paceline's own server, `paceline serve`."""

from __future__ import annotations

from dataclasses import replace

from paceline.engines.answers import Ask, EngineAnswer, Json
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
        return path, body

    def take(self, answer: EngineAnswer, event: Json) -> None:
        take_openai(answer, event)

    def read_metrics(self, text: str) -> EngineMetrics:
        return read_prometheus(text, NAMES)
