"""Commits tokens to one stream: why it ends, what its text is, where it stands in its grammar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.core import FinishReason, Request, TokenKind, TokenLogprobs
from paceline.core.spans import OFF, Spans
from paceline.engine.grammar import GrammarFailed, GrammarState
from paceline.engine.row_edits import tables_of
from paceline.engine.text import TextStream

GRAMMAR_FAILED = "grammar_failed"  # stop reason of a stream whose grammar gave up


@dataclass(slots=True)
class Commit:
    """The tokens that one step adds to one stream, while they are being added."""

    token_ids: list[int] = field(default_factory=list)
    kinds: list[TokenKind] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] | None = None
    error: str | None = None


class Output:
    """The output of one request. commit() is for the tokens of a round, force() adds those that its
    grammar leaves no choice about; both stop where the stream ends."""

    def __init__(
        self, request: Request, text: TextStream, grammar: GrammarState | None, spans: Spans = OFF
    ) -> None:
        self.request, self.grammar = request, grammar
        self._stop_ids = tables_of(request).stop_ids
        self._text, self._spans = text, spans
        params = request.params
        self._eos_ids = frozenset() if params.ignore_eos else request.eos_ids
        # By tokens, prompt included: no stop up to the first number, the end at the second.
        self._exempt = request.prompt_len + params.min_tokens if params.min_tokens else 0
        self._full = request.prompt_len + request.max_tokens
        # Its tokens are the argmax of their rows, and nothing else is wanted.
        self.plain = grammar is None and params.plain_argmax and params.logprobs is None
        self._push = spans.around("detokenise", text.push)

    def commit(
        self,
        commit: Commit,
        tokens: Sequence[int],
        kinds: Sequence[TokenKind],
        logprobs: Callable[[int, int], TokenLogprobs],
    ) -> None:
        """Appends a round's `tokens`, token i chosen in row i, to the stream and to `commit`.

        `logprobs` is asked for row and token where the request wants them: of a token that was
        forced there is nothing to ask.
        """
        try:
            for row, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
                if self.grammar is not None:
                    self.grammar.check_row(row)
                self._extend(commit, row, token, kind, logprobs)
                if self.request.finish_reason is not None:
                    return
        except GrammarFailed as error:
            self._fail(commit, error)

    def commit_own(self, tokens: Sequence[int]) -> Commit:
        """Return the commit of drafted tokens that stand and the target's own after them, of a
        `plain` stream: what commit() does then, for less."""
        commit = Commit([], [])
        for token in tokens[:-1]:
            self._append(commit, token, TokenKind.ACCEPTED)
            if self.request.finish_reason is not None:
                return commit
        self._append(commit, tokens[-1], TokenKind.BONUS)
        return commit

    def _extend(
        self,
        commit: Commit,
        row: int,
        token: int,
        kind: TokenKind,
        logprobs: Callable[[int, int], TokenLogprobs],
    ) -> None:
        params = self.request.params
        if params.logprobs is not None:
            commit.logprobs = commit.logprobs or []
            certain = TokenLogprobs(token, 0.0, ((token, 0.0),) if params.logprobs else ())
            forced = kind is TokenKind.FORCED
            commit.logprobs.append(certain if forced else logprobs(row, token))
        self._append(commit, token, kind)

    def _append(self, commit: Commit, token: int, kind: TokenKind) -> None:
        commit.token_ids.append(token)
        commit.kinds.append(kind)
        tokens = self.request.tokens
        tokens.append(token)
        if token in self._eos_ids:
            self._end(commit, FinishReason.STOP)
            return
        if token in self._stop_ids:
            self._end(commit, FinishReason.STOP, token)
            return
        length = len(tokens)
        commit.text += self._push(token, length > self._exempt)
        if self._text.stopped_by is not None:
            self._end(commit, FinishReason.STOP, self._text.stopped_by)
        elif length >= self._full:
            self._end(commit, FinishReason.LENGTH)
        elif self.grammar is not None:
            self.grammar.advance(token)

    def force(self, commit: Commit, logprobs: Callable[[int, int], TokenLogprobs]) -> int:
        """Commits what the grammar forces next; returns how many tokens that were."""
        request, before = self.request, self.request.output_len
        if self.grammar is None:
            return 0
        try:
            while request.finish_reason is None:
                tokens = self.grammar.forced()
                if not tokens:
                    break
                for token in tokens:
                    self._extend(commit, 0, token, TokenKind.FORCED, logprobs)
                    if request.finish_reason is not None:
                        break
        except GrammarFailed as error:
            self._fail(commit, error)
        return request.output_len - before

    def _end(self, commit: Commit, reason: FinishReason, stop: str | int | None = None) -> None:
        """Ends the stream for `reason`, or at a stop string in the text that only now is final:
        the stop string came before whatever else ended the stream."""
        with self._spans("detokenise"):
            commit.text += self._text.flush()
        if self._text.stopped_by is not None:
            reason, stop = FinishReason.STOP, self._text.stopped_by
        self.request.finish_reason, self.request.stop_reason = reason, stop

    def _fail(self, commit: Commit, error: GrammarFailed) -> None:
        self._end(commit, FinishReason.ERROR, GRAMMAR_FAILED)
        if self.request.finish_reason is FinishReason.ERROR:
            commit.error = str(error)
