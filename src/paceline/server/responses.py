"""Response bodies, as the OpenAPI schema tells them. The writing is done in shapes.py."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from paceline.core import CutReason
from paceline.server.errors import ErrorResponse


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    """`prompt_tokens_details` is null where the request does not say whom it shares cached prompts
    with, unless the server runs with --share-answers always."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None


class PartDecoding(BaseModel):
    """The rounds that one part of a drafter drafted."""

    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int


class SpeculativeDecoding(BaseModel):
    """Rounds with a draft, of all choices together, under vLLM's names; lengths include the bonus
    token where they say `acceptance_length`, and do not elsewhere. `parts` are those of a drafter
    that is made of several, by name."""

    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    per_step_accepted: list[int] | None = None
    per_step_drafted: list[int] | None = None
    parts: dict[str, PartDecoding] | None = None


class Lossy(BaseModel):
    """What a budget was used for: the sum, over all tokens, of the total variation distance between
    the law a token came from and the target's, at most epsilon each; and the draft tokens that
    stand where the target would have said another one."""

    epsilon: float
    total_variation: float
    replaced_tokens: int


class Metrics(BaseModel):
    """Times in seconds, from arrival; only the answer of a single choice has them. `seed` is a
    list, one for each prompt, where those differ. `forced_tokens` are those that a grammar left no
    choice about; they count in the usage and nowhere else."""

    seed: int | list[int]
    queue_time: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    e2e_latency: float | None = None
    drafter: str | None = None
    forced_tokens: int | None = None
    lossy: Lossy | None = None
    speculative_decoding: SpeculativeDecoding | None


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChatLogprob]
    refusal: None


class CalledFunction(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] | None = None


class ChoiceEnd(BaseModel):
    index: int
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | None
    token_ids: list[int] | None = None


class ChatChoice(ChoiceEnd):
    message: AssistantMessage
    logprobs: ChatLogprobs | None


class Answer(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    metrics: Metrics


class ChatCompletion(Answer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_token_ids: list[int] | None = None


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(ChoiceEnd):
    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: list[int] | None = None


class Completion(Answer):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class RoundToken(BaseModel):
    id: int
    text: str


class CommittedToken(RoundToken):
    kind: Literal["accepted", "bonus", "forced"]


class ShownRound(BaseModel):
    """What one round did for one stream. Counts are tokens, times milliseconds unless said.

    `time` is in seconds since the epoch. `part` names the part of the drafter that made the draft.
    `position` is the index of the first output token that the round committed. `proposed` tokens
    came from the drafter; `verified` of these, and of what the grammar forced among them, got a
    row; `accepted` of these stand, forced ones not counted. `cut_by` says why fewer were verified
    than the request asked for. `confidence` is the drafter's own. `step_requests` and `step_rows`
    are those of the whole step.

    `verified_tokens` have a row each; at `forced_places` of them a grammar left no choice.
    `hidden_tokens` counts drafted tokens that are not listed, because the draft was looked up in
    other requests' text and they are not part of this answer.
    """

    request: str
    time: float
    cohort: str
    drafter: str | None
    version: str | None
    part: str | None
    position: int
    proposed: int
    verified: int
    accepted: int
    forced: int
    cut_by: CutReason | None
    confidence: list[float] | None
    rule: str
    temperature: float
    grammar: bool
    step_requests: int
    step_rows: int
    draft_ms: float
    step_ms: float
    drafted_tokens: list[RoundToken]
    hidden_tokens: int
    verified_tokens: list[RoundToken]
    forced_places: list[int]
    committed_tokens: list[CommittedToken]


class ChoiceRounds(BaseModel):
    index: int
    finish_reason: str | None
    rounds: list[ShownRound]
    rounds_left_out: int


class RequestRounds(BaseModel):
    id: str
    object: Literal["request.rounds"]
    created: int
    model: str
    choices: list[ChoiceRounds]


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Health(BaseModel):
    status: Literal["ok", "draining", "dead"]


class Version(BaseModel):
    version: str


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for error statuses."""
    return {
        status: {"model": ErrorResponse, "description": MEANINGS[status]} for status in statuses
    }


MEANINGS = {
    400: "A field cannot be honoured; `param` names it.",
    401: "The API key is missing or wrong.",
    404: "No such model.",
    413: "The body is too long.",
    429: "The queue is full; see Retry-After.",
    500: "The engine failed.",
    503: "The server is shutting down, or its engine has stopped.",
}
EVENT: dict[str, Any] = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string", "description": "A chunk as JSON, or `[DONE]`."}},
}
EVENT_STREAM: dict[str, Any] = {
    "description": "The answer; with `stream`, server-sent events that end with `[DONE]`.",
    "content": {"text/event-stream": {"itemSchema": EVENT}},
}
GENERATION = {200: EVENT_STREAM, **refusals(400, 401, 404, 413, 429, 500, 503)}
