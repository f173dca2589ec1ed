"""Request bodies of /v1/chat/completions and /v1/completions.

Every field that OpenAI knows is here, or refused by name. Those that this server cannot honour take
only the value that asks for nothing; those that ask for nothing anyway are accepted as they are.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
)
from pydantic_core import PydanticCustomError

from paceline.core import (
    MAX_DRAFT_LEN,
    MAX_LOGPROBS,
    InvalidRequest,
    SamplingParams,
    SpeculativeParams,
)
from paceline.core.documents import UNSUPPORTED, AtMost, Document, Whole
from paceline.server.fields import MAX_PROMPTS, Biases, Prompt, StopIds, Stops
from paceline.server.structured import ResponseFormat, StructuredOutputs
from paceline.server.tools import MAX_TOOLS, Tool, ToolCall, ToolChoice

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions; chat has none
LONGEST_TOKEN_ID = len(str(2**31))  # digits
MAX_MESSAGES = 32768


def _refuse(value: object) -> object:
    if value is None or value == []:
        return value
    raise PydanticCustomError(UNSUPPORTED, "this server does not support it; leave it out")


Unsupported = Annotated[None, BeforeValidator(_refuse)]
NoList = Annotated[
    list[Any] | None,
    Field(max_length=0, description="Not supported."),
    BeforeValidator(_refuse),
]


class StreamOptions(Document):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(
        None, description="With include_usage: every event tells its choice's usage so far."
    )
    include_rounds: bool | None = Field(
        None, description="With explain: every event tells the round that it came from."
    )
    include_obfuscation: bool | None = Field(
        None, description="Fill every event up to the same size, in a field `obfuscation`."
    )


class Speculative(Document):
    drafter: str | None = Field(None, description="Name of a registered drafter.")
    max_draft_len: Whole | None = Field(None, ge=0, le=MAX_DRAFT_LEN)
    policy: str | None = Field(
        None, description="What chooses the draft lengths: throughput, fixed, fixed:k or off."
    )
    lossy: float | None = Field(
        None, ge=0, le=1, description="Total variation that each token's law may differ by."
    )


class GenerationRequest(Document):
    """What both endpoints take: sampling, speculation, streaming, metadata."""

    model: str
    temperature: float | None = Field(None, ge=0, le=100, description="Default 1; 0 is argmax.")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: Whole | None = Field(None, ge=-1, lt=2**31, description="0 or -1 switches it off.")
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=1e-3, le=100)
    logit_bias: Biases | None = Field(None, description="Token id to bias, ±100.")
    max_tokens: Whole | None = Field(None, ge=1, lt=2**31)
    min_tokens: Whole | None = Field(None, ge=0, lt=2**31)
    stop: str | Stops | None = Field(None, description="Up to 16 strings.")
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = Field(None, description="Default true.")
    structured_outputs: StructuredOutputs | None = Field(
        None, description="What the output must conform to: a JSON schema, a regex, a grammar."
    )
    n: Whole | None = Field(None, ge=1, le=128)
    seed: Whole | None = Field(None, ge=-(2**63), lt=2**64)
    speculative: Literal["off"] | Speculative | None = Field(
        None, description="Drafter and longest draft, or `off` to decode without drafts."
    )
    explain: bool | None = Field(
        None, description="Keep what each round did for GET /v1/requests/{id}/rounds."
    )
    cache_salt: str | None = Field(
        None, description="Scope of cached prefixes and shared answers, beside key and user."
    )
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="Scope like cache_salt: an end user's own caches.")
    metadata: Annotated[dict[str, str], AtMost(64, "entries")] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None
    safety_identifier: str | None = Field(None, description="OpenAI's newer name for user.")
    prompt_cache_key: str | None = Field(None, description="Prefixes are cached by content.")

    _size: int = PrivateAttr(0)
    _params: SamplingParams | None = PrivateAttr(None)

    @property
    def size(self) -> int:
        """Bytes of the body; 0 for a request that was not read from one."""
        return self._size

    def note_size(self, size: int) -> None:
        self._size = size

    def params(self) -> SamplingParams:
        """How tokens are chosen, made once. Raises InvalidRequest for values that only make sense
        or nonsense together."""
        if self._params is None:
            self._params = self._make_params()
        return self._params

    def _make_params(self) -> SamplingParams:
        raise NotImplementedError

    @property
    def scope_names(self) -> tuple[str | None, ...]:
        """What the request says about whom it shares caches with. Empty texts name nobody."""
        given = (self.cache_salt, self.user, self.safety_identifier)
        return tuple(name or None for name in given)

    @property
    def include_obfuscation(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_obfuscation)

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def include_rounds(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_rounds)

    def check_stream_options(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options", "an object", "null, unless stream is true")
        if self.continuous_usage and not self.include_usage:
            field = "stream_options.continuous_usage_stats"
            raise InvalidRequest(field, True, "include_usage to be true as well")
        if self.include_rounds and not self.explain:
            field = "stream_options.include_rounds"
            raise InvalidRequest(field, True, "explain to be true as well")

    def speculative_params(self) -> SpeculativeParams:
        wish = self.speculative
        return SpeculativeParams.parse(wish.model_dump() if isinstance(wish, Speculative) else wish)

    def sampling_params(self, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        given: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                "temperature",
                "top_p",
                "top_k",
                "min_p",
                "presence_penalty",
                "frequency_penalty",
                "repetition_penalty",
                "min_tokens",
                "ignore_eos",
                "skip_special_tokens",
                "n",
                "seed",
            )
        }
        given |= {"max_tokens": max_tokens, "logprobs": logprobs}
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        return SamplingParams(
            stop=tuple(stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            logit_bias=_token_biases(self.logit_bias or {}),
            **{name: value for name, value in given.items() if value is not None},
        )


class TextPart(Document):
    type: Literal["text"]
    text: str


Parts = Annotated[list[TextPart], AtMost(1024, "parts of type text")]


class Message(Document):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Parts | None = None
    name: str | None = None
    tool_call_id: str | None = None
    refusal: Unsupported = None
    tool_calls: Annotated[list[ToolCall], AtMost(1024, "calls")] | None = None
    function_call: Unsupported = None
    audio: Unsupported = None
    annotations: NoList = None

    @property
    def text(self) -> str:
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)


class ChatRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1), AtMost(MAX_MESSAGES, "messages")]
    max_completion_tokens: Whole | None = Field(None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_generation_prompt: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], AtMost(64, "variables")] | None = Field(
        None, description="Variables for the model's chat template, which must read them."
    )
    response_format: ResponseFormat | None = None
    modalities: Annotated[list[Literal["text"]], AtMost(16, "modalities")] | None = None
    tools: Annotated[list[Tool], AtMost(MAX_TOOLS, "tools")] | None = None
    tool_choice: ToolChoice | None = Field(None, description="Default auto, where there are tools.")
    parallel_tool_calls: bool | None = Field(None, description="Default true.")
    functions: NoList = None
    function_call: Literal["none"] | None = None
    audio: Unsupported = None
    prediction: Unsupported = None
    reasoning_effort: Unsupported = None
    verbosity: Unsupported = None
    web_search_options: Unsupported = None

    prompt_field: ClassVar[str] = "messages"
    num_prompts: ClassVar[int] = 1

    @property
    def max_tokens_field(self) -> str:
        """The name under which the bound was given."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    def _make_params(self) -> SamplingParams:
        self.check_stream_options()
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            expected = f"the same as max_completion_tokens ({both[1]}), or left out"
            raise InvalidRequest("max_tokens", both[0], expected)
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs", self.top_logprobs, "logprobs to be true as well")
        self.check_tools()
        top = (self.top_logprobs or 0) if self.logprobs else None
        return self.sampling_params(getattr(self, self.max_tokens_field), top)

    def check_tools(self) -> None:
        if self.tool_choice not in (None, "none") and not self.tools:
            choice = self.tool_choice if isinstance(self.tool_choice, str) else "an object"
            raise InvalidRequest("tool_choice", choice, "null, unless there are tools")
        for index, message in enumerate(self.messages):
            field = f"messages[{index}]"
            if message.tool_calls and message.role != "assistant":
                expected = "null, unless the role is assistant"
                raise InvalidRequest(f"{field}.tool_calls", "calls", expected)
            if message.content is None and not message.tool_calls:
                raise InvalidRequest(f"{field}.content", None, "text")


class CompletionRequest(GenerationRequest):
    prompt: Prompt = Field(
        description=f"Text or token ids; a list of either asks for up to {MAX_PROMPTS} at once."
    )
    logprobs: Whole | None = Field(None, ge=0, le=MAX_LOGPROBS)
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    suffix: Unsupported = None

    prompt_field: ClassVar[str] = "prompt"
    max_tokens_field: ClassVar[str] = "max_tokens"

    def _make_params(self) -> SamplingParams:
        self.check_stream_options()
        limit = COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        return self.sampling_params(limit, self.logprobs)

    @property
    def prompts(self) -> list[str | list[int]]:
        prompt: Any = self.prompt
        one = isinstance(prompt, str) or isinstance(prompt[0], int)
        return [prompt] if one else list(prompt)

    @property
    def num_prompts(self) -> int:
        return len(self.prompts)


def _token_biases(biases: dict[str, float]) -> dict[int, float]:
    # int() would also take signs and underscores, and gives up past thousands of digits
    digits = all(map(str.isdecimal, biases)) and all(map(str.isascii, biases))
    if biases and not (digits and max(map(len, biases)) <= LONGEST_TOKEN_ID):
        wrong = next(token for token in biases if not _is_token(token))
        raise InvalidRequest("logit_bias", wrong, "token ids as keys")
    return dict(zip(map(int, biases), biases.values(), strict=True))


def _is_token(key: str) -> bool:
    return key.isascii() and key.isdecimal() and len(key) <= LONGEST_TOKEN_ID
