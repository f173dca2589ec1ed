"""Response bodies: TypedDicts, from which OpenAPI's schema and the page's types are made."""

from __future__ import annotations

from collections.abc import Callable
from inspect import get_annotations
from typing import Literal, NotRequired, TypeVar

from pydantic_core import to_json
from typing_extensions import TypedDict

from paceline.server.round_bodies import ShownRound

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
    choice only; `ttft` is null where there is no token. `seed` is a list with one entry per prompt
    where the seeds differ. `speedup_vs_ar` is the estimated time without speculation divided by the
    measured time, for a single choice; null where nothing was timed. `route` says why the request
    got its drafter: `named`, `default`, or `route N` of the server's routes; null where it got
    none. `forced_tokens` counts the tokens that the grammar forced; they count in the usage too."""

    seed: int | list[int]
    queue_time: NotRequired[float]
    ttft: NotRequired[float | None]
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
