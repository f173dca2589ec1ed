"""OpenAI's streams with vLLM's fields, which Paceline's server has as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.engines.answers import EngineAnswer, EngineAsk, Json, LogprobsById

TOKEN = "token_id:"  # how `return_tokens_as_token_ids` writes a token


def openai_request(ask: EngineAsk, model: str) -> tuple[str, Json]:
    """Return the path and body of a streamed request that tells token ids and counts."""
    body: Json = {
        "model": model,
        "temperature": ask.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    if ask.seed is not None:
        body["seed"] = ask.seed
    if ask.ignore_eos:
        body["ignore_eos"] = True
    if ask.top_logprobs is not None:
        body["return_tokens_as_token_ids"] = True
    if ask.is_chat:
        body |= {"messages": ask.prompt, "max_completion_tokens": ask.max_tokens}
        if ask.top_logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": ask.top_logprobs}
        return "/v1/chat/completions", body | dict(ask.fields)
    prompt = ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt)
    body |= {"prompt": prompt, "max_tokens": ask.max_tokens}
    if ask.top_logprobs is not None:
        body["logprobs"] = ask.top_logprobs
    return "/v1/completions", body | dict(ask.fields)


def take_openai(answer: EngineAnswer, event: Json) -> None:
    """Add one event of a stream, chat or completion, to the answer."""
    if event.get("prompt_token_ids"):
        answer.prompt_token_ids = event["prompt_token_ids"]
    for choice in event.get("choices", ()):
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or ""
        answer.extend(choice.get("token_ids") or (), text)
        if choice.get("prompt_token_ids"):
            answer.prompt_token_ids = choice["prompt_token_ids"]
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        answer.tool_calls += delta.get("tool_calls") or ()
        _take_logprobs(answer, choice.get("logprobs") or {})
    usage = event.get("usage")
    if usage:
        answer.prompt_tokens = usage.get("prompt_tokens", answer.prompt_tokens)
        details = usage.get("prompt_tokens_details") or {}
        answer.cached_tokens = details.get("cached_tokens", answer.cached_tokens)
    counts = (event.get("metrics") or {}).get("speculative_decoding")
    if counts:
        answer.drafts = counts["num_spec_steps"]
        answer.drafted = counts["num_draft_tokens"]
        answer.accepted = counts["num_accepted_draft_tokens"]
        if counts.get("per_step_accepted") is not None:
            answer.add_rounds(counts["per_step_drafted"], counts["per_step_accepted"])
        elif not answer.drafts:
            answer.rounds = []  # vLLM leaves the lists out where they are empty


def _take_logprobs(answer: EngineAnswer, given: Mapping[str, Any]) -> None:
    for token in given.get("content") or ():  # of a chat
        top = {_token_id(each["token"]): each["logprob"] for each in token["top_logprobs"]}
        answer.logprobs.append(LogprobsById(token["logprob"], top))
    chosen, tops = given.get("token_logprobs") or (), given.get("top_logprobs") or ()
    for logprob, likeliest in zip(chosen, tops, strict=False):  # of a completion
        top = {_token_id(name): value for name, value in (likeliest or {}).items()}
        answer.logprobs.append(LogprobsById(logprob, top))


def _token_id(written: str) -> int:
    """Read `token_id:17`. Raises ValueError for a token that is written as text."""
    return int(written.removeprefix(TOKEN))
