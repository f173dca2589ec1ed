"""Paceline's own server, `paceline serve`."""

from __future__ import annotations

import re
from dataclasses import replace

from paceline.engines.answers import AnsweredRound, EngineAnswer, EngineAsk, Json
from paceline.engines.client import EngineClient
from paceline.engines.kind import (
    Capabilities,
    EngineDescription,
    EngineLaunch,
    EngineTraits,
    LaunchPlan,
)
from paceline.engines.lines import engine_words, optional, refuse_extra, refuse_table, told
from paceline.engines.metrics import VLLM_NAMES, EngineMetrics, read_prometheus
from paceline.engines.openai_stream import openai_request, take_openai
from paceline.engines.pairing import pairing_of
from paceline.engines.replacing import new_replica

NAMES = replace(VLLM_NAMES, own="paceline:failed_steps_total")  # the rest are vLLM's
OURS = ("--host", "--port", "--max-model-len", "--max-num-seqs", "--drafter")
PRINTS = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"measuring|cost table", r"measuring the costs of steps"),
        (r"^drafter\s+(\S.*)", r"drafter: \1"),
        (r"listening|running on", r"listening"),
    )
)


class PacelineServer:
    """Launches, asks and reads our own server; see EngineKind."""

    name = "paceline"
    traits = EngineTraits(
        takes_corpora=True, promises_text=True, scores_texts=True, reads_training=True
    )

    def launch(self, plan: LaunchPlan) -> EngineLaunch:
        refuse_extra(plan, OURS)
        refuse_table(plan)
        pairing = pairing_of(plan)
        words = engine_words(self.name, plan, pairing, ("paceline", "serve"))
        words += ["--host", plan.host, "--port", str(plan.port), "--spec-metrics", "detailed"]
        words += optional("--max-model-len", plan.max_model_len)
        words += optional("--max-num-seqs", plan.max_num_seqs)
        if not plan.prefix_cache:
            words.append("--no-prefix-cache")
        return EngineLaunch((*words, *plan.extra))

    def progress(self, line: str) -> str | None:
        return told(line, PRINTS)

    def replacement(self, plan: LaunchPlan) -> tuple[str, ...]:
        return new_replica(self.launch(plan))

    def describe(self, client: EngineClient) -> EngineDescription | None:
        listed = (client.get_json("/v1/models") or {}).get("data") or [{}]
        if listed[0].get("owned_by") != "paceline":
            return None
        version = (client.get_json("/version") or {}).get("version")
        serving = client.get_json("/ui/serving") or {}
        name = serving.get("default_drafter")
        lengths = {each["name"]: each["max_draft_len"] for each in serving.get("drafters", ())}
        return EngineDescription(
            kind=self.name,
            version=version,
            model=listed[0]["id"],
            max_model_len=listed[0].get("max_model_len"),
            capabilities=Capabilities(
                token_ids=True, rounds=True, acceptance=True, speculation_off=True, logprobs=True
            ),
            drafter=name,
            draft_len=lengths.get(name, 0),
        )

    def request(self, ask: EngineAsk, model: str) -> tuple[str, Json]:
        path, body = openai_request(ask, model)
        if ask.speculative is False:
            body["speculative"] = "off"
        elif ask.draft_len is not None:
            body["speculative"] = {"policy": f"fixed:{ask.draft_len}"}
        # each event then tells its round, whatever the server's --spec-metrics say
        body = {"explain": True, **body}
        body["stream_options"] = {**body["stream_options"], "include_rounds": True}
        return path, body

    def take(self, answer: EngineAnswer, event: Json) -> None:
        rounds = answer.rounds
        take_openai(answer, event)
        answer.rounds = rounds
        for choice in event.get("choices", ()):
            told_round = choice.get("round")
            if told_round is None:
                continue
            rounds = answer.rounds = answer.rounds or []
            if told_round["position"]:  # the first token comes with the prompt
                rounds.append(_round(told_round))
        if rounds is not None:
            answer.drafts = sum(round.drafted > 0 for round in rounds)
            answer.drafted = sum(round.drafted for round in rounds)
            answer.accepted = sum(round.accepted for round in rounds)

    def read_metrics(self, text: str) -> EngineMetrics:
        return read_prometheus(text, NAMES)


def _round(shown: Json) -> AnsweredRound:
    """Return a round; a grammar's forced tokens have rows, and are not drafted."""
    drafted = shown["verified"] - len(shown["forced_places"])
    return AnsweredRound(shown["position"], drafted, shown["accepted"])
