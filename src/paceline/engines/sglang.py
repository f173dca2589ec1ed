"""SGLang's server, `sglang.launch_server`, as of 0.5.23. It was read, not run: it needs a GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.engines.answers import EngineAnswer, EngineAsk, Json, LogprobsById
from paceline.engines.client import EngineClient
from paceline.engines.kind import (
    Capabilities,
    EngineDescription,
    EngineLaunch,
    EngineTraits,
    LaunchPlan,
)
from paceline.engines.known_faults import check_faults
from paceline.engines.lines import engine_words, optional, refuse_extra, refuse_table, told
from paceline.engines.metrics import EngineMetrics, MetricNames, read_prometheus
from paceline.engines.openai_stream import take_openai
from paceline.engines.pairing import pairing_of
from paceline.engines.replacing import new_replica
from paceline.roofline.traffic.metrics import parse_metrics

BEGIN = ("python", "-m", "sglang.launch_server")
OURS = (
    "--host", "--port", "--context-length", "--max-running-requests", "--model-path", "--model",
    "--speculative-algorithm", "--speculative-draft-model-path", "--speculative-draft-model",
    "--speculative-num-draft-tokens",
)  # fmt: skip
NAMES = MetricNames(
    own="sglang:num_running_reqs",
    running="sglang:num_running_reqs",
    waiting="sglang:num_queue_reqs",
    kv_usage="sglang:token_usage",
    ttft="sglang:time_to_first_token_seconds",
    tpot="sglang:request_time_per_output_token_seconds",
    prompt_tokens="sglang:prompt_tokens_total",
    generated_tokens="sglang:generation_tokens_total",
    finished="sglang:num_requests_total",
    prefix_queries="sglang:prompt_tokens_total",
    prefix_hits="sglang:cached_tokens_total",
    drafts="sglang:spec_verify_calls_total",
    replicas="dp_rank",
)
WINDOW = "sglang:spec_num_draft_tokens"  # rows of a verifying forward, the anchor's counted
PRINTS = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"Load weight begin", r"loading weights"),
        (r"checkpoint shards:\s+(\d+)% Completed", r"weights: \1%"),
        (r"Load weight end", r"weights loaded"),
        (r"max_total_num_tokens=(\d+)", r"KV cache of \1 tokens"),
        (r"Capturing.*?(\d+)%", r"capturing CUDA graphs: \1%"),
        (r"Application startup complete", r"listening"),
        (r"The server is fired up", r"ready"),
    )
)


class Sglang:
    """Launches, asks and reads SGLang; see EngineKind.

    Texts and token ids go to /generate, which tells token ids and what drafts did. A conversation
    goes to the chat endpoint, which tells them only for an answer that is not streamed: its tokens
    all arrive at once.
    """

    name = "sglang"
    traits = EngineTraits()

    def launch(self, plan: LaunchPlan) -> EngineLaunch:
        refuse_extra(plan, OURS)
        refuse_table(plan)
        pairing = pairing_of(plan)
        notes = check_faults(self.name, plan, pairing)
        words = engine_words(self.name, plan, pairing, BEGIN)
        words += ["--host", plan.host, "--port", str(plan.port), "--enable-metrics"]
        words += ["--enable-cache-report"]
        words += optional("--context-length", plan.max_model_len)
        words += optional("--max-running-requests", plan.max_num_seqs)
        if not plan.prefix_cache:
            words.append("--disable-radix-cache")
        return EngineLaunch((*words, *plan.extra), notes=notes)

    def progress(self, line: str) -> str | None:
        return told(line, PRINTS)

    def replacement(self, plan: LaunchPlan) -> tuple[str, ...]:
        """SGLang's /update_weights_from_disk loads one path into target and drafter alike, and must
        never be called for a drafter. So a new replica it is."""
        return new_replica(self.launch(plan))

    def describe(self, client: EngineClient) -> EngineDescription | None:
        listed = (client.get_json("/v1/models") or {}).get("data") or [{}]
        if listed[0].get("owned_by") != "sglang":
            return None
        info = client.get_json("/server_info") or {}
        drafts = bool(info.get("speculative_algorithm"))
        window = info.get("speculative_num_draft_tokens") or 1
        return EngineDescription(
            kind=self.name,
            version=info.get("version"),
            model=listed[0]["id"],
            max_model_len=listed[0].get("max_model_len") or info.get("context_length"),
            capabilities=Capabilities(
                token_ids=True,
                rounds=False,
                acceptance=drafts,
                speculation_off=False,
                logprobs=True,
            ),
            drafter=info.get("speculative_draft_model_path") or info.get("speculative_algorithm"),
            draft_len=window - 1 if drafts else 0,
        )

    def request(self, ask: EngineAsk, model: str) -> tuple[str, Json]:
        if ask.is_chat:
            return "/v1/chat/completions", _chat_body(ask, model)
        sampling: Json = {"temperature": ask.temperature, "max_new_tokens": ask.max_tokens}
        if ask.seed is not None:
            sampling["sampling_seed"] = ask.seed
        if ask.ignore_eos:
            sampling["ignore_eos"] = True
        body: Json = {"sampling_params": sampling, "stream": True, "return_prompt_token_ids": True}
        text = isinstance(ask.prompt, str)
        body["text" if text else "input_ids"] = ask.prompt if text else list(ask.prompt)
        if ask.top_logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": ask.top_logprobs}
        return "/generate", body | dict(ask.fields)

    def take(self, answer: EngineAnswer, event: Json) -> None:
        if "choices" in event:
            _take_chat(answer, event)
            return
        meta = event["meta_info"]
        have, ids = len(answer.token_ids), event.get("output_ids") or []
        whole = len(ids) == meta["completion_tokens"]  # an event tells the answer so far, or
        new = ids[have:] if whole else ids  # with --incremental-streaming-output what is new
        text = event.get("text") or ""
        answer.extend(new, text[len(answer.text) :] if whole else text)
        _take_logprobs(answer, meta, len(new))
        if event.get("prompt_token_ids"):
            answer.prompt_token_ids = event["prompt_token_ids"]
        _take_meta(answer, meta)

    def read_metrics(self, text: str) -> EngineMetrics:
        """Read /metrics. SGLang counts no accepted tokens: they are the generated tokens without
        each request's first and each draft's bonus token, over finished requests."""
        seen = read_prometheus(text, NAMES)
        if seen.drafts is None:
            return seen
        window = parse_metrics(text).values.get(WINDOW)
        accepted = seen.generated_tokens - seen.drafts - seen.requests_finished
        drafted = None if window is None else seen.drafts * (int(window) - 1)
        return replace(seen, drafted=drafted, accepted=max(0, accepted))


def _chat_body(ask: EngineAsk, model: str) -> Json:
    body: Json = {
        "model": model,
        "messages": ask.prompt,
        "max_completion_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        "return_token_ids": True,
        "return_meta_info": True,
    }
    if ask.seed is not None:
        body["seed"] = ask.seed
    if ask.ignore_eos:
        body["ignore_eos"] = True
    if ask.top_logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": ask.top_logprobs}
    return body | dict(ask.fields)


def _take_chat(answer: EngineAnswer, event: Json) -> None:
    for choice in event["choices"]:
        message, meta = choice.get("message") or {}, choice.get("meta_info") or {}
        ids = choice.get("token_ids") or ()
        answer.extend(ids, message.get("content") or "")
        answer.tool_calls += message.get("tool_calls") or ()
        answer.prompt_token_ids = choice.get("prompt_token_ids") or answer.prompt_token_ids
        _take_logprobs(answer, meta, len(ids))
        _take_meta(answer, meta)
        answer.finish_reason = choice.get("finish_reason")
    take_openai(answer, {"usage": event.get("usage")})


def _take_logprobs(answer: EngineAnswer, meta: Json, new: int) -> None:
    """Add the log-probabilities of the last `new` tokens, which SGLang names by their ids."""
    chosen: Sequence[Sequence[Any]] = meta.get("output_token_logprobs") or ()
    tops: Sequence[Any] = meta.get("output_top_logprobs") or [()] * len(chosen)
    if not new or not chosen:
        return
    for (logprob, *_), top in zip(chosen[-new:], tops[-new:], strict=True):
        likeliest = {token: value for value, token, *_ in top or ()}
        answer.logprobs.append(LogprobsById(logprob, likeliest))


def _take_meta(answer: EngineAnswer, meta: Json) -> None:
    reason = meta.get("finish_reason")
    if reason:
        answer.finish_reason = reason["type"] if isinstance(reason, dict) else reason
    answer.prompt_tokens = meta.get("prompt_tokens", answer.prompt_tokens)
    answer.cached_tokens = meta.get("cached_tokens", answer.cached_tokens)
    if meta.get("spec_num_proposed_drafts") is not None:
        answer.drafts = meta["spec_verify_ct"]
        answer.drafted = meta["spec_num_proposed_drafts"]
        answer.accepted = meta["spec_num_correct_drafts"]
