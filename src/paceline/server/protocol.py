"""Request bodies of /v1/chat/completions and /v1/completions.

Every field of OpenAI's API is accepted here or refused by name. A field that this server cannot
honour takes only the value that asks for nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, PrivateAttr

from paceline.core import InvalidRequest, SamplingParams, SpeculativeParams
from paceline.core.documents import Document
from paceline.core.errors import Amount, OwnWords
from paceline.core.field_types import AtMost, Whole
from paceline.core.params import (
    Choices,
    MaxTokens,
    MinP,
    MinTokens,
    OutputBound,
    Penalty,
    RepetitionPenalty,
    Seed,
    Speculative,
    Temperature,
    TopK,
    TopLogprobs,
    TopP,
)
from paceline.server.fields import (
    MAX_PROMPTS,
    Absent,
    Biases,
    JsonObject,
    ModelName,
    NoList,
    Prompt,
    StopIds,
    Stops,
    Unsupported,
    joined_text,
)
from paceline.server.structured import (
    MAX_TOOLS,
    NamedTool,
    ResponseFormat,
    StructuredOutputs,
    Tool,
    ToolCall,
    ToolChoice,
)

MAX_SCORED = 2**17  # log-probabilities of prompt tokens in one answer
COMPLETION_MAX_TOKENS = 16  # OpenAI's default for /v1/completions; chat has none
TOKEN_ID = re.compile(r"[0-9]{1,10}")
MAX_MESSAGES = 32768
REASONING_FIELDS = ("reasoning_content", "reasoning")
# fields that mean the same here and in SamplingParams
SAME_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "min_tokens", "ignore_eos", "skip_special_tokens", "n", "seed",
)  # fmt: skip


class RequestObject(Document):
    """Base of objects in a request whose fields are described by the text below them."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class StreamOptions(RequestObject):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """With include_usage: every event has the usage of its choice so far."""
    include_rounds: bool | None = None
    """With explain: every event has the round that produced it."""
    include_obfuscation: bool | None = None
    """Pad every event to the same size, with a field `obfuscation`."""


class RequestBody(RequestObject):
    """Base of all bodies."""

    model: ModelName = ""
    """A name from /v1/models (default: the first of them)."""

    idle_values: ClassVar[Mapping[str, object]] = {}
    """Values of unknown fields that ask for nothing at this endpoint, where those of
    `idle_values.IDLE_VALUES` would be wrong."""
    _size: int = PrivateAttr(0)

    @property
    def size(self) -> int:
        """Bytes of the body; 0 for a request that was not read from one."""
        return self._size

    def note_size(self, size: int) -> None:
        self._size = size

    def check(self) -> None:
        """Raise InvalidRequest for fields that contradict each other: here there are none."""


class GenerationRequest(RequestBody):
    """The fields of both endpoints: sampling, speculation, streaming, metadata."""

    temperature: Temperature | None = None
    """Temperature of the sampling (default: 1); 0 is argmax."""
    top_p: TopP | None = None
    """Sample from the likeliest tokens whose probabilities add up to this."""
    top_k: TopK | None = None
    """Sample from this many of the likeliest tokens; 0 or -1: from all."""
    min_p: MinP | None = None
    """Leave out tokens that are less likely than this share of the likeliest one."""
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: Biases | None = None
    """Bias of each token id, from -100 to 100."""
    max_tokens: MaxTokens | None = None
    min_tokens: MinTokens | None = None
    stop: str | Stops | None = None
    """Texts that end the answer, up to 16."""
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    """Leave special tokens out of the text (default: true)."""
    structured_outputs: StructuredOutputs | None = None
    """The JSON schema, regex or grammar that the output must match."""
    n: Choices | None = None
    """Number of choices for each prompt."""
    seed: Seed | None = None
    """Seed of the noise; null draws one."""
    speculative: Literal["off"] | Speculative | None = None
    """Drafting of this request; `off` decodes without drafts."""
    explain: bool | None = None
    """Keep the rounds of this request for GET /v1/requests/{id}/rounds."""
    cache_salt: str | None = None
    """Requests share cached prefixes and answers only with others of the same salt."""
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    """Label log-probabilities with `token_id:` and the token's id in place of its text."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    """The end user; works like cache_salt."""
    metadata: Annotated[dict[str, str], AtMost(64, "entries")] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    """Accepted without effect: this server has one tier."""
    priority: Whole | None = None
    """Accepted without effect: requests are served in the order in which they came."""
    store: bool | None = None
    """Accepted without effect: answers are not kept."""
    safety_identifier: str | None = None
    """Another name of `user`, which OpenAI introduced later."""
    prompt_cache_key: str | None = None
    """Accepted without effect: prefixes are cached by content."""
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    """Accepted without effect: prefixes stay cached as long as there is room."""

    def check(self) -> None:
        _ = self.params

    @cached_property
    def params(self) -> SamplingParams:
        """The sampling parameters. Raises InvalidRequest for fields that contradict each other."""
        raise NotImplementedError

    @property
    def scope_names(self) -> tuple[str | None, ...]:
        """The names of the request's cache scope. Empty texts count as none."""
        return (self.cache_salt or None, self.user or None, self.safety_identifier or None)

    @property
    def streaming(self) -> StreamOptions:
        """The options of the stream; all are off where the request states none."""
        return self.stream_options or StreamOptions()

    def check_stream_options(self) -> None:
        options = self.streaming
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options", "an object", "null, unless stream is true")
        if options.continuous_usage_stats and not options.include_usage:
            field = "stream_options.continuous_usage_stats"
            raise InvalidRequest(field, True, "include_usage to be true as well")
        if options.include_rounds and not self.explain:
            field = "stream_options.include_rounds"
            raise InvalidRequest(field, True, "explain to be true as well")

    def speculative_params(self) -> SpeculativeParams:
        """Return how to draft. Raises InvalidRequest, naming the field."""
        if isinstance(self.speculative, Speculative):
            return self.speculative.params()
        return SpeculativeParams.parse(self.speculative)

    def check_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raise InvalidRequest for prompts whose token ids ask for more than an answer may hold."""

    def sampling_params(
        self, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None = None
    ) -> SamplingParams:
        self.check_stream_options()
        values = {name: getattr(self, name) for name in SAME_FIELDS}
        values |= {"max_tokens": max_tokens, "logprobs": logprobs}
        values |= {"prompt_logprobs": prompt_logprobs}
        return SamplingParams(
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            logit_bias=_token_biases(self.logit_bias or {}),
            **{name: value for name, value in values.items() if value is not None},
        )


class TextPart(Document):
    type: Literal["text"]
    text: str


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
Parts = Annotated[list[TextPart], AtMost(1024, "parts of type text")]


class PredictedOutput(Document):
    """A guess of the answer, which OpenAI's servers use to answer sooner."""

    type: Literal["content"]
    content: str | Parts


class Message(Document):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Parts | None = None
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = Field(None, description="The same as reasoning_content, as in vLLM.")
    refusal: Unsupported = None
    tool_calls: Annotated[list[ToolCall], AtMost(1024, "calls")] | None = None
    function_call: Unsupported = None
    audio: Unsupported = None
    annotations: NoList = None

    @property
    def text(self) -> str:
        return joined_text(self.content)

    @property
    def reasoning_field(self) -> str | None:
        """The name of the field with the reasoning; None where the message has none."""
        return next((name for name in REASONING_FIELDS if getattr(self, name)), None)


class ChatRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1), AtMost(MAX_MESSAGES, "messages")]
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    add_generation_prompt: bool | None = None
    """End the prompt where the answer begins (default: true, without continue_final_message)."""
    continue_final_message: bool | None = None
    """Leave the last message open, so that the answer goes on with it."""
    chat_template_kwargs: Annotated[JsonObject, AtMost(64, "variables")] | None = None
    """Variables for the model's chat template, which must read them."""
    enable_thinking: bool | None = None
    """Whether the model thinks first, where its chat template lets a request choose."""
    reasoning_effort: ReasoningEffort | None = None
    """How long the model thinks, where its chat template reads it; `none` switches thinking off."""
    response_format: ResponseFormat | None = None
    modalities: Annotated[list[Literal["text"]], AtMost(16, "modalities")] | None = None
    tools: Annotated[list[Tool], AtMost(MAX_TOOLS, "tools")] | None = None
    tool_choice: ToolChoice | None = None
    """Default auto, where there are tools."""
    parallel_tool_calls: bool | None = None
    """Default: true where the format of the model's calls allows several in one answer."""
    functions: NoList = None
    function_call: Literal["none"] | None = None
    audio: Unsupported = None
    prediction: PredictedOutput | None = None
    """Accepted without effect: drafters do not read it. It would change no text."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """Accepted without effect: no chat template reads it."""
    web_search_options: Absent = None

    prompt_field: ClassVar[str] = "messages"
    num_prompts: ClassVar[int] = 1

    def several_calls(self, unasked: bool) -> bool:
        """Return whether one answer may call tools more than once; `unasked` where nothing says."""
        if isinstance(self.tool_choice, NamedTool):
            return False
        return unasked if self.parallel_tool_calls is None else self.parallel_tool_calls

    @property
    def max_tokens_field(self) -> str:
        """The field that states the most tokens."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @cached_property
    def params(self) -> SamplingParams:
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            expected = f"the same as max_completion_tokens ({both[1]}), or left out"
            raise InvalidRequest("max_tokens", both[0], expected)
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs", self.top_logprobs, "logprobs to be true as well")
        if self.add_generation_prompt and self.continue_final_message:
            expected = "false, or left out, beside continue_final_message"
            raise InvalidRequest("add_generation_prompt", True, expected)
        self.check_tools()
        top = (self.top_logprobs or 0) if self.logprobs else None
        return self.sampling_params(getattr(self, self.max_tokens_field), top)

    def check_tools(self) -> None:
        if self.tool_choice not in (None, "none") and not self.tools:
            choice = self.tool_choice if isinstance(self.tool_choice, str) else "an object"
            expected = OwnWords("null, unless there are tools")
            raise InvalidRequest("tool_choice", choice, expected)
        for index, message in enumerate(self.messages):
            field = f"messages[{index}]"
            expected = OwnWords("null, unless the role is assistant")
            if message.tool_calls and message.role != "assistant":
                raise InvalidRequest(f"{field}.tool_calls", "calls", expected)
            reasoning = message.reasoning_field
            if reasoning and message.role != "assistant":
                raise InvalidRequest(f"{field}.{reasoning}", "text", expected)
            if message.reasoning and message.reasoning_content not in (None, message.reasoning):
                expected = OwnWords("the same as reasoning_content, or null")
                raise InvalidRequest(f"{field}.reasoning", "text", expected)
            said = message.tool_calls or reasoning  # max_tokens may cut thinking
            if message.content is None and not said:
                raise InvalidRequest(f"{field}.content", None, OwnWords("text"))


class CompletionRequest(GenerationRequest):
    prompt: Prompt = Field(
        description=f"Text or token ids; a list of either asks for up to {MAX_PROMPTS} at once."
    )
    max_tokens: OutputBound | None = None
    """Most tokens of the answer (default: 16); 0 beside echo and logprobs."""
    logprobs: TopLogprobs | None = None
    best_of: Literal[1] | None = None
    echo: bool | None = None
    """Put the prompt before the answer, with its log-probabilities where `logprobs` is given."""
    suffix: Unsupported = None

    idle_values: ClassVar[Mapping[str, object]] = {
        "add_special_tokens": True,
        "separate_reasoning": False,  # the text is given as the model writes it
    }
    prompt_field: ClassVar[str] = "prompt"
    max_tokens_field: ClassVar[str] = "max_tokens"

    @cached_property
    def params(self) -> SamplingParams:
        limit = COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        scored = self.logprobs if self.echo else None
        if scored is not None and self.n not in (None, 1):
            raise InvalidRequest("n", self.n, "1 beside echo and logprobs")
        return self.sampling_params(limit, self.logprobs, scored)

    def check_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        if (top := self.params.prompt_logprobs) is None:
            return
        tokens = sum(map(len, prompts))
        if tokens * (1 + top) > MAX_SCORED:
            amount = Amount(f"{tokens} tokens with {1 + top} log-probabilities each")
            expected = f"at most {MAX_SCORED} log-probabilities in one answer"
            raise InvalidRequest("prompt", amount, expected)

    @property
    def prompts(self) -> list[str | list[int]]:
        prompt: Any = self.prompt
        return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt

    @property
    def num_prompts(self) -> int:
        return len(self.prompts)


def _token_biases(biases: dict[str, float]) -> dict[int, float]:
    # int() would also take signs and underscores, and gives up past thousands of digits
    wrong = itertools.filterfalse(TOKEN_ID.fullmatch, biases)
    if (key := next(wrong, None)) is not None:
        raise InvalidRequest("logit_bias", key, "token ids as keys")
    return dict(zip(map(int, biases), biases.values(), strict=True))
