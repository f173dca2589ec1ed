"""What a grammar allows next: compiled once, walked along with each stream (llguidance).

The mask of a row depends on the committed tokens and the draft before it, so it is the same with
speculation on and off. Where it leaves a single token, that token is forced: it is committed at
once, without being drafted or chosen, and only costs its row in the next forward.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import llguidance.hf
import numpy as np
from llguidance import LLMatcher, LLTokenizer

from paceline.core import Grammar, InvalidRequest, PacelineError
from paceline.engine.grammar_errors import refusal

KEPT = 256  # compiled grammars
# The spelling of json.dumps: a free choice of white space would spend tokens and rounds on it, and
# small models lose themselves in it. A schema's own "x-guidance" may say otherwise.
SPELLING: Any = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
}
# A keyword is enforced or refused.
STRICT: Any = {"lenient": False, "coerce_one_of": False}


class GrammarFailed(PacelineError):
    """A grammar became too complex while it was being walked along."""


class Compiler:
    """Grammars to matchers. compile() may be called from any thread."""

    def __init__(self, tokenizer: Any, vocab_size: int, eos_ids: Iterable[int]) -> None:
        self._hf_tokenizer, self.vocab_size = tokenizer, vocab_size
        first = getattr(tokenizer, "eos_token_id", None)
        # The tokenizer's own first: that is what ends a text which is complete.
        self.eos_ids = sorted(eos_ids, key=lambda token: (token != first, token))
        self._tokenizer: LLTokenizer | None = None
        self._known: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock, self._reading = threading.Lock(), threading.Lock()

    def compile(self, grammar: Grammar) -> LLMatcher:
        """A matcher at its start, to be copied, not walked. Takes milliseconds; the first call of
        all reads the vocabulary, which takes a second.

        Raises InvalidRequest that quotes the place in the grammar.
        """
        if not self.eos_ids:
            expected = "a model that has an end-of-text token: without one no grammar ends"
            raise InvalidRequest(grammar.field, grammar.source, expected)
        with self._lock:
            known = self._known.get(grammar)
        if known is None:  # outside the lock: who asks for a known one does not wait for this
            known = LLMatcher(self._vocabulary(), to_llguidance(grammar))
            if known.is_error():
                raise refusal(grammar, known.get_error())
        with self._lock:
            self._known[grammar] = known
            self._known.move_to_end(grammar)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return known

    def warm_up(self) -> None:
        """Reads the vocabulary."""
        self._vocabulary()

    def _vocabulary(self) -> LLTokenizer:
        with self._reading:
            if self._tokenizer is None:
                self._tokenizer = llguidance.hf.from_tokenizer(
                    self._hf_tokenizer, n_vocab=self.vocab_size, eos_token=self.eos_ids
                )
            return self._tokenizer


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


def embedded(schema: Any) -> str:
    """A schema as JSON with this engine's spelling: what `%json` takes in a Lark grammar."""
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise ValueError("a schema is an object, true or false")
    own = schema.get("x-guidance")
    own = own if isinstance(own, dict) else {}
    return json.dumps({**schema, "x-guidance": {**SPELLING, **own, **STRICT}})


class GrammarState:
    """Where one stream stands in its grammar: behind its last committed token.

    Drafts are walked along on copies. Taking their tokens back afterwards would be the obvious way,
    but in llguidance 1.9 a mask that was computed on the way can come back in later masks.
    """

    def __init__(self, start: LLMatcher, eos_id: int) -> None:
        self._matcher, self._eos_id = start.deep_copy(), eos_id

    def advance(self, token: int) -> None:
        """A token was committed. Raises GrammarFailed when the grammar gives up on it."""
        if not self._matcher.consume_token(token):
            raise GrammarFailed(self._matcher.get_error())

    def forced(self) -> list[int]:
        """What must come next, as far as there is no choice. At the end of the grammar that is the
        end of the text, whichever of the model's tokens for it."""
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

    def valid(self, draft: Sequence[int]) -> int:
        """How many tokens of the draft the grammar allows."""
        return self._matcher.deep_copy().validate_tokens(list(draft))

    def fill(self, masks: np.ndarray, draft: Sequence[int], skip: Iterable[int] = ()) -> None:
        """Masks of the rows after draft[:i], into masks[i] (uint32 bits, ceil(vocabulary / 32)
        words), up to the first token that is not allowed. Rows in `skip` are left out: nobody
        chooses there."""
        left_out = set(skip)
        ahead = self._matcher.deep_copy() if draft else self._matcher
        for row in range(len(draft) + 1):
            if row not in left_out:
                ahead.unsafe_compute_mask_ptr(masks[row].ctypes.data, masks[row].nbytes)
            if row == len(draft) or not ahead.try_consume_tokens([draft[row]]):
                break
