"""vLLM's OpenAI server, `vllm serve`, as of 0.32."""

from __future__ import annotations

import json
import re

from paceline.core import InvalidRequest
from paceline.engines.answers import EngineAnswer, EngineAsk, Json
from paceline.engines.client import EngineClient, EngineRefused
from paceline.engines.kind import (
    Capabilities,
    EngineDescription,
    EngineLaunch,
    EngineTraits,
    LaunchPlan,
)
from paceline.engines.known_faults import check_faults
from paceline.engines.lines import engine_words, optional, refuse_extra, told
from paceline.engines.metrics import VLLM_NAMES, EngineMetrics, read_prometheus
from paceline.engines.openai_stream import openai_request, take_openai
from paceline.engines.pairing import pairing_of
from paceline.engines.replacing import new_replica

DRAIN_SECONDS = 30  # that running requests get after SIGTERM
OURS = (
    "--host", "--port", "--max-model-len", "--max-num-seqs", "--speculative-config",
    "--speculative_config", "-sc", "--model",
)  # fmt: skip
BEGIN = ("vllm", "serve")
V1_ONLY = ("suffix",)  # kinds that vLLM's second model runner lacks
PRINTS = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"Resolved architecture: (\S+)", r"reading the config of \1"),
        (r"Initializing a V1 LLM engine", r"starting the engine's process"),
        (r"Starting to load model", r"loading the target"),
        (r"Loading drafter model", r"loading the drafter"),
        (r"checkpoint shards:\s+(\d+)% Completed", r"weights: \1%"),
        (r"Loading weights took ([\d.]+) seconds", r"weights loaded in \1 s"),
        (r"(?:Warming up model|Start compiling|Dynamo bytecode)", r"compiling"),
        (r"Capturing CUDA graphs.*?(\d+)%", r"capturing CUDA graphs: \1%"),
        (r"KV cache size: ([\d,]+) tokens", r"KV cache of \1 tokens"),
        (r"init engine .* took ([\d.]+) s", r"engine ready after \1 s"),
        (r"Application startup complete", r"listening"),
    )
)


class Vllm:
    """Launches, asks and reads vLLM; see EngineKind."""

    name = "vllm"
    traits = EngineTraits(scores_texts=True)

    def launch(self, plan: LaunchPlan) -> EngineLaunch:
        refuse_extra(plan, OURS)
        pairing = pairing_of(plan)
        notes = check_faults(self.name, plan, pairing)
        words = with_table(engine_words(self.name, plan, pairing, BEGIN), plan)
        if plan.program is not None and "-m" in plan.program.command:
            words.insert(len(plan.program.command), "--model")  # a module takes no bare name
        words += ["--host", plan.host, "--port", str(plan.port)]
        words += optional("--max-model-len", plan.max_model_len)
        words += optional("--max-num-seqs", plan.max_num_seqs)
        words += ["--shutdown-timeout", str(DRAIN_SECONDS), "--enable-prompt-tokens-details"]
        if pairing.kind is not None:
            words += ["--per-request-spec-decode-metrics", "detailed"]
        if not plan.prefix_cache:
            words.append("--no-enable-prefix-caching")
        if pairing.kind in V1_ONLY:
            notes += (f"vLLM runs {pairing.kind} with its first model runner, which it will drop.",)
        return EngineLaunch((*words, *plan.extra), notes=notes)

    def progress(self, line: str) -> str | None:
        return told(line, PRINTS)

    def replacement(self, plan: LaunchPlan) -> tuple[str, ...]:
        """vLLM can take new weights of a drafter only in its development mode, from a process that
        sends them over NCCL or IPC and never from disk. So a new replica it is."""
        return new_replica(self.launch(plan))

    def describe(self, client: EngineClient) -> EngineDescription | None:
        listed = (client.get_json("/v1/models") or {}).get("data") or [{}]
        if listed[0].get("owned_by") != "vllm":
            return None
        model = listed[0]["id"]
        metrics = self._metrics(client)
        counts = None if metrics is not None and metrics.drafts is None else _probe(client, model)
        told_draft_len = None if metrics is None else len(metrics.accepted_by_position)
        version = (client.get_json("/version") or {}).get("version")
        return EngineDescription(
            kind=self.name,
            version=version,
            model=model,
            max_model_len=listed[0].get("max_model_len"),
            capabilities=Capabilities(
                token_ids=True,
                rounds=counts is not None and "per_step_accepted" in counts,
                acceptance=counts is not None,
                speculation_off=False,
                logprobs=True,
            ),
            drafter=_drafter(client),
            draft_len=counts["num_spec_tokens"] if counts else told_draft_len,
        )

    def request(self, ask: EngineAsk, model: str) -> tuple[str, Json]:
        return openai_request(ask, model)

    def take(self, answer: EngineAnswer, event: Json) -> None:
        take_openai(answer, event)

    def read_metrics(self, text: str) -> EngineMetrics:
        return read_prometheus(text, VLLM_NAMES)

    def _metrics(self, client: EngineClient) -> EngineMetrics | None:
        """Return the metrics; None with --disable-log-stats, which leaves them out."""
        try:
            return self.read_metrics(client.get_text("/metrics"))
        except (ValueError, EngineRefused):
            return None


def with_table(words: list[str], plan: LaunchPlan) -> list[str]:
    """Add the plan's draft lengths by batch size to the words of a line with speculation."""
    if not plan.draft_lens:
        return words
    flag = "--speculative-config"
    if flag not in words:
        raise InvalidRequest("draft_lens", plan.draft_lens, "a drafter beside it")
    place = words.index(flag) + 1
    table = {"num_speculative_tokens_per_batch_size": [list(each) for each in plan.draft_lens]}
    return [*words[:place], json.dumps(json.loads(words[place]) | table), *words[place + 1 :]]


def _probe(client: EngineClient, model: str) -> Json | None:
    """Ask for a few tokens, and return the counts of their drafts; None where the server was
    started without --per-request-spec-decode-metrics, which it tells in no other way."""
    body = {"model": model, "prompt": [1], "max_tokens": 4, "ignore_eos": True, "temperature": 0}
    try:
        answer = client.post_json("/v1/completions", body)
    except EngineRefused:
        return None
    counts: Json | None = (answer.get("metrics") or {}).get("speculative_decoding")
    return counts


def _drafter(client: EngineClient) -> str | None:
    """Return the drafter's path, which only vLLM's development mode tells."""
    told = client.get_json("/server_info?config_format=json") or {}
    config = (told.get("vllm_config") or {}).get("speculative_config") or {}
    return config.get("model") or config.get("method")
