"""Response bodies: TypedDicts, from which OpenAPI's schema and the page's types are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import get_annotations
from typing import Any, Literal, NotRequired, TypeVar

from pydantic_core import to_json
from typing_extensions import TypedDict

from paceline.core import CutReason, TokenKind
from paceline.server.errors import ErrorResponse

Body = TypeVar("Body")


def write_json(body: object) -> bytes:
    """Encode a body as JSON in ASCII: some clients split a stream at the line ends of Unicode."""
    return to_json(body, ensure_ascii=True, inf_nan_mode="null")


def picked(body: Callable[..., Body], source: object) -> Body:
    """Return a TypedDict with the attributes of `source` that are called like its members."""
    return body(**{name: getattr(source, name) for name in get_annotations(body)})


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class Usage(TypedDict):
    """Token counts. `prompt_tokens_details` is null unless the request names a cache scope
    (`cache_salt` or `user`) or the server runs with --share-answers always."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None


class PartDecoding(TypedDict):
    """The rounds in which one part of a composed drafter made the draft."""

    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int


class SpeculativeDecoding(TypedDict):
    """Counts of the rounds with a draft, over all choices, under the names that vLLM uses.

    `mean_acceptance_length` includes the bonus token; the other counts do not. `parts` has the
    parts of a composed drafter by name."""

    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    per_step_accepted: NotRequired[list[int]]
    per_step_drafted: NotRequired[list[int]]
    parts: NotRequired[dict[str, PartDecoding]]


class Lossy(TypedDict):
    """Use of a lossy budget. `total_variation` is summed over all tokens, each at
    most `epsilon`. `replaced_tokens` counts the draft tokens that replace another token of the
    target."""

    epsilon: float
    total_variation: float
    replaced_tokens: int


class Metrics(TypedDict):
    """Measurements of the request. Times are in seconds from arrival and are given for a single
    choice only. `seed` is a list with one entry per prompt where the seeds differ. `speedup_vs_ar`
    is the estimated time without speculation divided by the measured time, for a single choice;
    null where nothing was timed. `route` says why the request got its drafter: `named`, `default`,
    or `route N` of the server's routes; null where it got none.
    `forced_tokens` counts the tokens that the grammar forced; they count in the usage too."""

    seed: int | list[int]
    queue_time: NotRequired[float]
    ttft: NotRequired[float]
    tpot: NotRequired[float | None]
    e2e_latency: NotRequired[float]
    drafter: str | None
    drafter_version: str | None
    route: str | None
    speedup_vs_ar: NotRequired[float | None]
    forced_tokens: NotRequired[int]
    lossy: NotRequired[Lossy]
    speculative_decoding: SpeculativeDecoding | None


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[ChatLogprob]
    refusal: None


class CompletionLogprobs(TypedDict):
    """Log-probabilities of a choice's tokens. `text_offset` counts the characters before each. The
    first token of an echoed prompt has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class FunctionMade(TypedDict):
    name: str
    arguments: str


class CallMade(TypedDict):
    """A call of a tool by the model."""

    id: str
    type: Literal["function"]
    function: FunctionMade


class AssistantMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallMade]]


class RoundToken(TypedDict):
    id: int
    text: str


class CommittedToken(RoundToken):
    kind: TokenKind


class StreamFacts(TypedDict):
    request: str
    cohort: str
    drafter: str | None
    version: str | None
    rule: str
    temperature: float
    grammar: bool


class RoundFacts(TypedDict):
    part: str | None
    position: int
    proposed: int
    verified: int
    accepted: int
    forced: int
    beside: int
    cut_by: CutReason | None


class ShownRound(StreamFacts, RoundFacts):
    """One round of one stream. Counts are in tokens, `draft_ms` and `step_ms` in milliseconds, and
    `time` in seconds since the epoch.

    `part` names the part of a composed drafter that made the draft. `position` is the index of the
    first output token that the round committed. The drafter proposed `proposed` tokens; `verified`
    of them, and of the tokens that the grammar forced among them, got a row in the target's
    forward, and with alternatives `beside` more; `accepted` of them were committed, without the
    forced ones. `cut_by` says why fewer were verified than the request allows. `confidence` is the
    drafter's own, for each proposed token. `step_requests` and `step_rows` count all requests and
    rows of the step.

    Each of `verified_tokens` had a row; at `forced_places` the grammar allowed one token only.
    `hidden_tokens` counts drafted tokens that are not listed because they come from the text of
    other requests.
    """

    time: float
    confidence: Sequence[float] | None
    step_requests: int
    step_rows: int
    draft_ms: float
    step_ms: float
    drafted_tokens: list[RoundToken]
    hidden_tokens: int
    verified_tokens: list[RoundToken]
    forced_places: Sequence[int]
    committed_tokens: list[CommittedToken]


class ExplainedChoice(TypedDict):
    index: int
    finish_reason: str | None
    rounds: list[ShownRound]
    rounds_left_out: int


class RequestRounds(TypedDict):
    """The rounds of every choice of one request."""

    id: str
    object: Literal["request.rounds"]
    created: int
    model: str
    choices: list[ExplainedChoice]


Finish = Literal["stop", "length", "tool_calls"]


class AnsweredChoice(TypedDict):
    index: int
    finish_reason: Finish
    stop_reason: str | int | None
    token_ids: NotRequired[list[int]]


class ChatChoice(AnsweredChoice):
    message: AssistantMessage
    logprobs: ChatLogprobs | None


class CompletionChoice(AnsweredChoice):
    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: NotRequired[list[int]]


class AnswerHead(TypedDict):
    """Fields that an answer and all its chunks begin with."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class AnswerBody(AnswerHead):
    usage: Usage
    metrics: Metrics


class ChatCompletion(AnswerBody):
    """The answer to a conversation."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_token_ids: NotRequired[list[int]]


class Completion(AnswerBody):
    """The continuations of the prompts."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class FunctionPiece(TypedDict):
    name: NotRequired[str]
    arguments: str


class CallPiece(TypedDict):
    """A piece of call `index`; the first piece has the id, the type and the name."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionPiece


class MessageDelta(TypedDict, total=False):
    """Text or calls that a chunk adds to the message."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    refusal: None
    tool_calls: list[CallPiece]


class ChunkChoice(TypedDict):
    """One choice in a chunk: chat has `delta`, completions have `text`."""

    index: int
    delta: NotRequired[MessageDelta]
    text: NotRequired[str]
    logprobs: ChatLogprobs | CompletionLogprobs | None
    finish_reason: Finish | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    round: NotRequired[ShownRound]


class ChunkBody(TypedDict):
    """Fields of a chunk behind its head. The last chunk has no choices but the metrics."""

    choices: list[ChunkChoice]
    prompt_token_ids: NotRequired[list[int]]
    usage: NotRequired[Usage | None]
    metrics: NotRequired[Metrics]
    obfuscation: NotRequired[str]


class AnswerChunk(AnswerHead, ChunkBody):
    """One event of a streamed answer."""

    object: Literal["chat.completion.chunk", "text_completion"]


class ServedModel(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ServedModel]


class ServerInfo(TypedDict):
    served_model_name: str
    version: str


class Health(TypedDict):
    status: Literal["ok", "draining", "dead"]


class Version(TypedDict):
    version: str


Statuses = dict[int | str, dict[str, Any]]  # as FastAPI takes them


def refusals(*statuses: int, model: type = ErrorResponse) -> Statuses:
    """Return the OpenAPI entries of error statuses, whose bodies are a `model`.

    They name its schema, which whoever writes the document adds: FastAPI would make it at the start
    for each status of each path.
    """
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    content = {"application/json": {"schema": schema}}
    return {status: {"description": MEANINGS[status], "content": content} for status in statuses}


MEANINGS = {
    400: "A field is wrong or cannot be honoured; `param` names it.",
    401: "The API key is missing or wrong.",
    403: "The server has no admin key, without which nobody may do this.",
    404: "The server has no such model, request or drafter.",
    409: "What is used at the moment, or its memory, does not allow this.",
    413: "The body is too long.",
    429: "The queue is full; the header Retry-After says when to come back.",
    500: "The engine failed.",
    503: "The server is shutting down, or its engine has stopped, or its store of drafters fails.",
}
EVENT = {
    "type": "string",
    "description": "A chunk as JSON (schema `AnswerChunk`), or `[DONE]`.",
    "contentMediaType": "application/json",
    "contentSchema": {"$ref": "#/components/schemas/AnswerChunk"},
}
EVENTS = {"type": "object", "required": ["data"], "properties": {"data": EVENT}}
EVENT_STREAM = {
    "description": "The answer; with `stream`, server-sent events that end with `[DONE]`.",
    "content": {"text/event-stream": {"itemSchema": EVENTS}},
}
GENERATION_STATUSES = (400, 401, 404, 413, 429, 500, 503)
GENERATION: Statuses = {200: EVENT_STREAM, **refusals(*GENERATION_STATUSES)}


def named_events(numbered: bool = False) -> Statuses:
    """Return the OpenAPI entry of a stream whose events have a `type`, and perhaps a number."""
    required = ["type", "sequence_number"] if numbered else ["type"]
    body = {
        "type": "object",
        "required": required,
        "properties": {"type": {"type": "string"}, "sequence_number": {"type": "integer"}},
    }
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": body}
    fields = {"event": {"type": "string"}, "data": data}
    events = {"type": "object", "required": ["event", "data"], "properties": fields}
    description = "The answer; with `stream`, server-sent events named by their `type`."
    content = {"text/event-stream": {"itemSchema": events}}
    return {200: {"description": description, "content": content}}
