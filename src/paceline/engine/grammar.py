"""Grammars (llguidance): compiled once, walked along with each stream.

The mask of a row depends on the committed tokens and the draft before it, so it is the same with
speculation on and off. Where it leaves a single token, that token is forced: it is committed at
once, without being drafted or chosen, and only costs its row in the next forward.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from paceline.core import DraftTree, Grammar, InvalidRequest, PacelineError
from paceline.engine.grammar_bounds import check_grammar
from paceline.engine.grammar_cache import GrammarCache, digest
from paceline.engine.grammar_child import STACK, parser_limits
from paceline.engine.grammar_errors import refusal, too_heavy
from paceline.engine.grammar_trial import Failed, Trial, TrialUnavailable, Verdict
from paceline.engine.smallest_first import SmallestFirst
from paceline.models.tokenizer import Tokenizer

COMPILE_STACK = 4 * STACK  # what compiles on a trial's stack compiles here
# The spelling of json.dumps: a free choice of white space would spend tokens and rounds on it, and
# small models lose themselves in it. A schema's own "x-guidance" may say otherwise.
SPELLING: Final = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
STRICT: Final = {"lenient": False, "coerce_one_of": False}  # a keyword is enforced or refused


class GrammarFailed(PacelineError):
    """A grammar became too complex while it was being walked along."""


@dataclass(frozen=True, slots=True)
class CompiledGrammar(Grammar):
    """A grammar with its matcher at the start, to be copied, not walked."""

    matcher: LLMatcher = field(kw_only=True, compare=False, repr=False)


class Compiler:
    """Grammars to matchers: checked at the door, tried out in a child process, then compiled here.

    Its methods may be called from any thread. What was compiled or refused is kept for a while.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Iterable[int]) -> None:
        self._hf_tokenizer, self.vocab_size = tokenizer, vocab_size
        first = getattr(tokenizer, "eos_token_id", None)
        # The tokenizer's own first: that is what ends a text which is complete.
        self.eos_ids = sorted(eos_ids, key=lambda token: (token != first, token))
        self._cache = GrammarCache()
        self._reading = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._trial: Trial | None = None
        self._thread = SmallestFirst("paceline-grammars", COMPILE_STACK)

    def compile(self, grammar: Grammar) -> LLMatcher:
        """A matcher at its start, to be copied, not walked. Takes milliseconds; the first call of
        all reads the vocabulary and starts the child process, which takes a second.

        Raises InvalidRequest that quotes the place in the grammar, and TrialUnavailable.
        """
        return self.compiled(grammar).matcher

    def compiled(self, grammar: Grammar) -> CompiledGrammar:
        """The same, as a grammar that holds its matcher and is never compiled again."""
        return grammar if isinstance(grammar, CompiledGrammar) else self.start(grammar).result()

    def start(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """Begins to compile; the future raises what compile() raises.

        Raises InvalidRequest at once for what is refused at the door. That takes up to 0.1 s for a
        grammar of a megabyte: call it where nothing else waits.
        """
        if not self.eos_ids:
            expected = "a model that has an end-of-text token: without one no grammar ends"
            raise InvalidRequest(grammar.field, grammar.source, expected)
        key = digest(grammar)
        shared = self._cache.get(key)
        if shared is None:
            check_grammar(grammar)
            text = to_llguidance(grammar)
            shared, first = self._cache.put(key)
            if first:
                self._try_out(key, text, shared)
        answer: Future[CompiledGrammar] = Future()
        shared.add_done_callback(lambda done: self._answer(grammar, done, answer))
        return answer

    def warm_up(self) -> None:
        """Begins to read the vocabulary, here and in the child process."""

        def read() -> None:
            with contextlib.suppress(TrialUnavailable):  # the first grammar says so
                self._tester().start()
            self._vocabulary()

        if self.eos_ids:
            self._thread.submit(0.0, read)

    def close(self) -> None:
        """Ends the child process; the next grammar starts another one."""
        if self._trial is not None:
            self._trial.close()

    @property
    def child_pid(self) -> int | None:
        """The process id of the child, None while none runs."""
        return None if self._trial is None else self._trial.pid

    def _try_out(self, key: bytes, text: str, shared: Future[LLMatcher]) -> None:
        def done(verdict: Future[Verdict]) -> None:
            error = verdict.exception()
            if error is not None:
                self._cache.drop(key)
                shared.set_exception(error)
                return
            result = verdict.result()
            if isinstance(result, Failed):
                shared.set_exception(_Refused(result))
                return
            self._cache.weigh(key, result.bytes)
            self._thread.submit(result.seconds, lambda: self._compile(text, shared))

        self._tester().submit(text).add_done_callback(done)

    def _compile(self, text: str, shared: Future[LLMatcher]) -> None:
        try:
            matcher = LLMatcher(self._vocabulary(), text, limits=parser_limits())
            if matcher.is_error():
                raise _Refused(Failed(reason=matcher.get_error()))
        except BaseException as error:  # llguidance's panics are none of Exception
            shared.set_exception(error)
        else:
            shared.set_result(matcher)

    def _answer(
        self, grammar: Grammar, shared: Future[LLMatcher], answer: Future[CompiledGrammar]
    ) -> None:
        """Words a refusal for the one field that this grammar came in."""
        if not answer.set_running_or_notify_cancel():
            return  # the client hung up
        error = shared.exception()
        if error is None:
            kind, source, name = grammar.kind, grammar.source, grammar.field
            answer.set_result(CompiledGrammar(kind, source, name, matcher=shared.result()))
        elif not isinstance(error, _Refused):
            answer.set_exception(error)
        else:
            # To look for the place in a large schema takes a while.
            word = partial(_word_refusal, grammar, error.failed, answer)
            self._thread.submit(len(grammar.source) / 1e7, word)

    def _tester(self) -> Trial:
        with self._reading:
            if self._trial is None:
                self._trial = Trial.of(self._words(), self.vocab_size, self.eos_ids)
            return self._trial

    def _vocabulary(self) -> LLTokenizer:
        with self._reading:
            if self._tokenizer is None:
                self._tokenizer = LLTokenizer(
                    self._words(), n_vocab=self.vocab_size, eos_token=self.eos_ids
                )
            return self._tokenizer

    def _words(self) -> str:
        """The JSON of the tokenizer, with the tokens that were added to it."""
        backend = copy(self._hf_tokenizer.backend_tokenizer)
        backend.no_padding()
        backend.no_truncation()
        return str(backend.to_str())


class _Refused(Exception):
    """A grammar that cannot be served, before it is said which field it came in."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed)
        self.failed = failed


def _word_refusal(grammar: Grammar, failed: Failed, answer: Future[CompiledGrammar]) -> None:
    try:
        heavy = too_heavy(grammar, failed.weight)
        answer.set_exception(refusal(grammar, failed.reason) if failed.reason else heavy)
    except Exception as error:  # nobody else would hear of it
        answer.set_exception(error)


def to_llguidance(grammar: Grammar) -> str:
    """The grammar in llguidance's own notation."""
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.source)
    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.source)
    try:
        schema = json.loads(grammar.source)
        return LLMatcher.grammar_from_json_schema(embedded(schema))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(grammar.field, grammar.source, f"a JSON schema: {error}") from None


def embedded(schema: object) -> str:
    """A schema as JSON with this engine's spelling: what `%json` takes in a Lark grammar."""
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise ValueError("a schema is an object, true or false")
    own = schema.get("x-guidance")
    own = own if isinstance(own, dict) else {}
    return json.dumps({**schema, "x-guidance": {**SPELLING, **own, **STRICT}})


class GrammarState:
    """The state of one stream in its grammar: behind its last committed token.

    Drafts are walked along on copies: in llguidance 1.9, where tokens are taken back, a mask that
    was computed on the way can come back in later masks.
    """

    def __init__(self, start: LLMatcher, eos_id: int) -> None:
        self._matcher, self._eos_id = start.deep_copy(), eos_id
        self._gave_up: tuple[int, str] | None = None

    def check_row(self, row: int) -> None:
        """Raises GrammarFailed for a row whose mask took more than llguidance may spend. All that
        such a mask allows is the end of the text, which need not be complete there."""
        if self._gave_up is not None and self._gave_up[0] <= row:
            raise GrammarFailed(self._gave_up[1])

    @property
    def gave_up_at(self) -> int | None:
        """The row of the last masks that took more than llguidance may spend; None if none did."""
        return None if self._gave_up is None else self._gave_up[0]

    def forgive(self) -> None:
        """Forget that: the row's token will not be chosen from its mask."""
        self._gave_up = None

    def advance(self, token: int) -> None:
        """Take a token that was committed. Raises GrammarFailed when the grammar gives up on it."""
        if not self._matcher.consume_token(token):
            raise GrammarFailed(self._matcher.get_error())

    def forced(self) -> list[int]:
        """Return the tokens that must come next, as far as there is no choice. At the end of the
        grammar that is the end of the text, whichever of the model's tokens for it."""
        tokens = self._matcher.compute_ff_tokens()
        if not tokens and self._matcher.is_stopped():
            if self._matcher.is_error():
                raise GrammarFailed(self._matcher.get_error())
            return [self._eos_id]
        return tokens

    def fit(self, draft: Sequence[int], room: int) -> tuple[list[int], list[int | None]]:
        """The draft as far as the grammar allows it, up to `room` tokens, with what is forced put
        in where the draft has something else or has ended. The second list says for each token
        which of the draft's it is, None for a forced one.
        """
        ahead = self._matcher.deep_copy()
        fitted: list[int] = []
        origin: list[int | None] = []
        at = 0
        while len(fitted) < room:
            forced = ahead.compute_ff_tokens()
            for token in forced[: room - len(fitted)]:
                ahead.consume_token(token)
                fitted.append(token)
                origin.append(None)
                # What was drafted behind another token than this one was not drafted for here.
                at = at + 1 if at < len(draft) and draft[at] == token else len(draft)
            if forced:
                continue
            if at == len(draft) or not ahead.try_consume_tokens([draft[at]]):
                break
            fitted.append(draft[at])
            origin.append(at)
            at += 1
        return fitted, origin

    def reachable(self, tree: DraftTree) -> list[bool]:
        """Return which nodes of a draft tree the grammar allows behind their ancestors. A token
        that leaves no choice behind it is left out: what follows is forced, and needs no row."""
        ahead = {-1: self._matcher}
        for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            if parent in ahead:
                matcher = ahead[parent].deep_copy()
                if not matcher.try_consume_tokens([token]) or matcher.is_stopped():
                    continue
                if not matcher.compute_ff_tokens():
                    ahead[node] = matcher
        return [node in ahead for node in range(len(tree.tokens))]

    def valid(self, draft: Sequence[int]) -> int:
        """Return how many tokens of the draft the grammar allows."""
        return self._matcher.deep_copy().validate_tokens(list(draft))

    def fill(self, masks: np.ndarray, draft: Sequence[int], skip: Iterable[int] = ()) -> None:
        """Masks of the rows after draft[:i], into masks[i] (uint32 bits, ceil(vocabulary / 32)
        words), up to the first token that is not allowed. Rows in `skip` are left out: nobody
        chooses there."""
        self._gave_up, left_out = None, set(skip)
        ahead = self._matcher.deep_copy() if draft else self._matcher
        for row in range(len(draft) + 1):
            if row not in left_out:
                ahead.unsafe_compute_mask_ptr(masks[row].ctypes.data, masks[row].nbytes)
                if ahead.is_error():
                    self._gave_up = row, ahead.get_error()
                    break
            if row == len(draft) or not ahead.try_consume_tokens([draft[row]]):
                break
