"""LLM: the offline Python API."""

from __future__ import annotations

import itertools
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard, cast, overload

from jinja2 import TemplateError

from paceline.core import (
    FinishReason,
    InvalidRequest,
    OutputDelta,
    RequestMetrics,
    Round,
    SamplingParams,
    SpeculationStats,
    SpeculativeParams,
    TokenKind,
    TokenLogprobs,
)
from paceline.core.errors import OwnWords
from paceline.drafters import DEFAULT_SPEC
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.driver import Driver
from paceline.engine.engine import Engine
from paceline.engine.tool_formats import GENERIC, format_of
from paceline.engine.tool_prompt import instructions, plain_turns, with_instructions
from paceline.models.tokenizer import template_for

if TYPE_CHECKING:
    from paceline.models.tokenizer import Tokenizer

Prompt = str | list[int]
Prompts = list[str] | list[list[int]] | list[Prompt] | tuple[Prompt, ...]
Params = SamplingParams | Sequence[SamplingParams] | None
Message = Mapping[str, object]
Conversation = Sequence[Message]
NEAR = 512  # characters that are searched for a message first
Speculative = SpeculativeParams | Mapping[str, object] | str | None


@dataclass(slots=True)
class Choice:
    """One finished stream. `kinds[i]` says whether token i was drafted and accepted. `error` says
    what went wrong where `finish_reason` is "error"."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    kinds: list[TokenKind] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprobs] | None = None
    seed: int = 0
    rounds: list[Round] = field(default_factory=list)
    metrics: RequestMetrics | None = None
    error: str | None = None

    def extend(self, delta: OutputDelta) -> None:
        """Add what one step brought."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.kinds += delta.kinds
        if delta.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *delta.logprobs]
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        self.seed, self.metrics, self.error = delta.seed, delta.metrics, delta.error
        if delta.round is not None:
            self.rounds.append(delta.round)

    @property
    def stats(self) -> SpeculationStats:
        """The fold of the rounds: acceptance length, acceptance rate and the counts behind them."""
        return SpeculationStats.of(self.rounds)


@dataclass(slots=True)
class Result:
    """All choices of one prompt. `text`, `token_ids` and the like are the first choice's.

    `prompt_logprobs` are those of all prompt tokens but the first, where they were asked for."""

    prompt_ids: list[int]
    choices: list[Choice]
    cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> list[TokenLogprobs] | None:
        return self.choices[0].logprobs

    @property
    def stats(self) -> SpeculationStats:
        return self.choices[0].stats

    @property
    def metrics(self) -> RequestMetrics | None:
        return self.choices[0].metrics


class LLM:
    """A model in this process.

    Keyword arguments are EngineConfig's. `drafter` is a spec such as "auto", "ngram", "suffix",
    "small=draft_model:FOLDER", a list of them (the first is the default), or None for AR.

    Raises ModelError when the model cannot be served and InvalidRequest for a bad option.

    >>> llm = LLM("smollm2-135m")
    >>> llm.chat([{"role": "user", "content": "Hi!"}], SamplingParams(max_tokens=8)).text
    """

    def __init__(
        self,
        model: str = "smollm2-135m",
        drafter: str | Sequence[str] | None = DEFAULT_SPEC,
        *,
        config: EngineConfig | None = None,
        **options: Any,
    ) -> None:
        if config is None:
            specs = drafter if drafter is None or isinstance(drafter, str) else tuple(drafter)
            config = EngineConfig(model=model, drafter=specs, **options)
        self.engine: Engine = build_engine(config)
        self.tokenizer = self.engine.tokenizer
        self.driver = Driver(self.engine)
        self._ids = itertools.count()

    @overload
    def generate(
        self, prompts: Prompt, params: SamplingParams | None = None, speculative: Speculative = None
    ) -> Result: ...

    @overload
    def generate(
        self, prompts: Prompts, params: Params = None, speculative: Speculative = None
    ) -> list[Result]: ...

    def generate(
        self, prompts: Prompt | Prompts, params: Params = None, speculative: Speculative = None
    ) -> Result | list[Result]:
        """Complete one prompt (text or token ids) or a list of them, batched.

        Return a Result, or a list of Results in the order of the prompts. Raises InvalidRequest
        before anything runs when any prompt or option is bad.
        """
        if isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], int)):
            return self._run([self._encode(prompts)], params, speculative)[0]
        return self._run([self._encode(prompt) for prompt in prompts], params, speculative)

    @overload
    def chat(
        self,
        messages: Conversation,
        params: SamplingParams | None = None,
        speculative: Speculative = None,
    ) -> Result: ...

    @overload
    def chat(
        self,
        messages: Sequence[Conversation],
        params: Params = None,
        speculative: Speculative = None,
    ) -> list[Result]: ...

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        params: Params = None,
        speculative: Speculative = None,
    ) -> Result | list[Result]:
        """Answer one conversation (a list of messages) or a list of them, batched."""
        if not messages:
            raise InvalidRequest("messages", messages, "at least one message")
        if _is_conversation(messages):
            return self._run([self.encode_chat(messages)], params, speculative)[0]
        conversations = cast(Sequence[Conversation], messages)
        prompts = [self.encode_chat(conversation) for conversation in conversations]
        return self._run(prompts, params, speculative)

    def stream(
        self,
        prompt: Prompt | Conversation,
        params: SamplingParams | None = None,
        speculative: Speculative = None,
    ) -> Generator[OutputDelta, None, None]:
        """Yield what each round adds to one prompt or conversation. Closing it frees it.

        A bad prompt or option raises InvalidRequest here, not at the first step.
        """
        ids = self.encode_chat(prompt) if _is_conversation(prompt) else self._encode(prompt)
        requests = self.engine.make_requests(
            ids,
            params or SamplingParams(),
            _speculative(speculative),
            request_id=f"stream-{next(self._ids)}",
        )
        return self.driver.run(requests)

    def encode_chat(self, messages: Conversation) -> list[int]:
        """Token ids of a conversation under the model's own chat template.

        Raises InvalidRequest for what the template does not take, or would drop.
        """
        return encode_chat(self.tokenizer, messages)

    # -- inside -----------------------------------------------------------------------------------

    def _encode(self, prompt: object) -> list[int]:
        if isinstance(prompt, str):
            return list(self.tokenizer(prompt)["input_ids"])
        if not isinstance(prompt, list) or not all(isinstance(i, int) for i in prompt):
            raise InvalidRequest("prompts", prompt, "text, token ids, or a list of either")
        return prompt

    def _run(
        self, prompts: list[list[int]], params: Params, speculative: Speculative
    ) -> list[Result]:
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if len(params) != len(prompts):
            raise InvalidRequest("params", len(params), f"one for each of {len(prompts)} prompts")
        speculation = _speculative(speculative)
        groups = [
            self.engine.make_requests(p, s, speculation, request_id=f"generate-{next(self._ids)}")
            for p, s in zip(prompts, params, strict=True)
        ]
        results = [Result(g[0].prompt_ids, [Choice(r.choice) for r in g]) for g in groups]
        try:
            for group in groups:
                self.driver.queue(group)
            for result, group in zip(results, groups, strict=True):
                for delta in self.driver.deltas(group):
                    result.choices[delta.choice].extend(delta)
                    result.cached_tokens = max(result.cached_tokens, delta.cached_tokens)
                    if delta.prompt_logprobs is not None:
                        result.prompt_logprobs = delta.prompt_logprobs
        finally:
            for group in groups:
                self.driver.drop(group)
        if not self.engine.has_work:
            self.engine.check_integrity()
        return results


def encode_chat(
    tokenizer: Tokenizer,
    messages: Conversation,
    tools: Sequence[Message] = (),
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Token ids of a conversation under a tokenizer's chat template, ready for the answer.

    `tools` are as OpenAI writes them, `variables` what the template reads beside the messages.
    Raises InvalidRequest for what the template does not take, or would drop.
    """
    text = render_chat(tokenizer, messages, tools, variables)
    conversation = RenderedChat(text)
    for index, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, str) and message.get("role") != "assistant":
            raise InvalidRequest(f"messages[{index}].content", content, "text")
        conversation.refuse_dropped(index, str(message.get("role")), str(content))
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def render_chat(
    tokenizer: Tokenizer,
    messages: Conversation,
    tools: Sequence[Message] = (),
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The text of a conversation under a tokenizer's chat template. Raises InvalidRequest."""
    if tools and format_of(template_for(tokenizer, with_tools=True)) is GENERIC:
        told = with_instructions(plain_turns(messages), instructions(tools), "system")
        return render_chat(tokenizer, told, variables=variables)
    try:
        return str(
            tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                add_generation_prompt=True,
                tokenize=False,
                **(variables or {}),
            )
        )
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        expected = f"a conversation that the model's chat template takes: {error}"
        raise InvalidRequest("messages", f"{len(messages)} messages", expected) from None


class RenderedChat:
    """The text that a chat template made of a conversation. Ask for its parts in their order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends: dict[str, int] = {}

    def shows(self, kind: str, *forms: str) -> bool:
        """Return whether the text holds a part, in any of the forms that it may be written in.

        The search begins where the last part of the same kind ended, so that all of them together
        take one pass over the text. A template may put the kinds in another order than the
        messages; what it shows earlier than the last part of its kind is looked for everywhere.
        """
        end = self._end_of_first(forms, self._ends.get(kind, 0))
        if end is None:
            return any(form in self._text for form in forms)
        self._ends[kind] = end
        return True

    def _end_of_first(self, forms: Sequence[str], start: int) -> int | None:
        """Return where the first of `forms` ends behind `start`, None if there is none.

        The search widens step by step: a form that the template never writes would take it to the
        end of the text for each part.
        """
        reach, whole = NEAR, len(self._text) - start
        while True:
            places = [(self._text.find(form, start, start + reach), form) for form in forms]
            ends = [place + len(form) for place, form in places if place >= 0]
            if ends or reach >= whole:
                return min(ends, default=None)
            reach *= 2

    def refuse_dropped(self, index: int, role: str, content: str) -> None:
        """Raises InvalidRequest when the text lacks the content of message `index`.

        Templates drop roles that they do not know; the model must see what the user wrote. Past
        reasoning in an assistant's answer is what templates drop on purpose.
        """
        if role == "assistant":
            return
        forms = {content.strip()}
        if role == "tool":  # some templates write as JSON what a tool said
            forms.add(json.dumps(content.strip(), ensure_ascii=False)[1:-1])
        if not self.shows(role, *forms):
            expected = OwnWords("a role that the model's chat template shows")
            raise InvalidRequest(f"messages[{index}].role", role, expected)


def _is_conversation(value: object) -> TypeGuard[Conversation]:
    return isinstance(value, Sequence) and bool(value) and isinstance(value[0], Mapping)


def _speculative(value: Speculative) -> SpeculativeParams:
    return value if isinstance(value, SpeculativeParams) else SpeculativeParams.parse(value)
