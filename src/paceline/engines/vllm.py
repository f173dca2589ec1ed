"""vLLM's OpenAI server, `vllm serve`, as of 0.32."""

from __future__ import annotations

from paceline.engines.answers import Ask, EngineAnswer, Json
from paceline.engines.client import EngineClient
from paceline.engines.kind import Capabilities, EngineDescription, LaunchLine, LaunchPlan
from paceline.engines.metrics import VLLM_NAMES, EngineMetrics, read_prometheus
from paceline.engines.openai_stream import openai_request, take_openai


class Vllm:
    """Asks and reads vLLM; see EngineKind."""

    name = "vllm"

    def launch(self, plan: LaunchPlan) -> LaunchLine:
        raise NotImplementedError

    def describe(self, client: EngineClient) -> EngineDescription | None:
        listed = (client.get_json("/v1/models") or {}).get("data") or [{}]
        if listed[0].get("owned_by") != "vllm":
            return None
        version = (client.get_json("/version") or {}).get("version")
        return EngineDescription(
            kind=self.name,
            version=version,
            model=listed[0]["id"],
            max_model_len=listed[0].get("max_model_len"),
            # What an answer tells of its drafts depends on the server's options: see describe().
            capabilities=Capabilities(
                token_ids=True, rounds=True, acceptance=True, speculation_off=False, logprobs=True
            ),
        )

    def request(self, ask: Ask, model: str) -> tuple[str, Json]:
        return openai_request(ask, model)

    def take(self, answer: EngineAnswer, event: Json) -> None:
        take_openai(answer, event)

    def read_metrics(self, text: str) -> EngineMetrics:
        return read_prometheus(text, VLLM_NAMES)
