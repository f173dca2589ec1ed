"""From a row of logits to a token: the one row pipeline.

Every row, drafted or not, goes through the same steps with its own history (the committed tokens
and the draft before it): min_tokens, logit_bias, penalties, the grammar's mask, then temperature
with min_p, top_k, top_p, then argmax with the target's noise. So every sampling option works under
speculation, and a row's token does not depend on how the row came to be computed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch

from paceline.core import PacelineError, Request, TokenLogprobs
from paceline.core.spans import OFF, Spans
from paceline.engine.masks import RowMasks
from paceline.engine.row_edits import RowEdits, edits_of
from paceline.kernels import ops

TOGETHER = 4  # requests whose first tokens are worth drawing at once


class NotFinite(PacelineError):
    """The model's logits hold NaN or infinity, so no token can be chosen from them."""

    def __init__(self, position: int, of: str = "output") -> None:
        super().__init__(
            f"the model's logits for {of} token {position} hold NaN or infinity: its weights are "
            "damaged, or its numbers leave the range of the data type"
        )


@dataclass(slots=True)
class Noise:
    """The random numbers of one stream's round, keyed by counters: nothing is drawn in sequence.

    The target's noise is keyed by position alone. Whatever the rules `token` and `block` draw is
    keyed by the round's `start` too, so that no number that a round has looked at is used again: a
    position that comes back in a later round gets fresh noise.
    """

    seed: int
    choice: int
    start: int  # position of row 0

    def target(
        self,
        logits: torch.Tensor,
        row: int,
        inv_temperature: float,
        keep: tuple[float, int] | None,
    ) -> int:
        """argmax(logits / T + Gumbel(position, id)) over the kept ids."""
        threshold, tie_id = keep if keep is not None else (-float("inf"), 2**31 - 1)
        return ops.gumbel_argmax(
            logits,
            inv_temperature=inv_temperature,
            seed=self.seed,
            choice=self.choice,
            position=self.start + row,
            threshold=threshold,
            tie_id=tie_id,
        )

    def below(self, probability: float, row: int) -> bool:
        """True with `probability`: u < probability for a u strictly between 0 and 1."""
        u = ops.uniform(
            self.seed,
            choice=self.choice,
            position=self.start + row,
            round_start=self.start,
            role=ops.ROLE_ACCEPT,
        )
        return u < probability

    def draw(self, weights: torch.Tensor, row: int) -> int:
        """A token id with probability proportional to `weights` (float64 [V], not all zero)."""
        return ops.gumbel_argmax(
            weights.log().float(),
            inv_temperature=1.0,
            seed=self.seed,
            choice=self.choice,
            position=self.start + row,
            round_start=self.start,
            role=ops.ROLE_RESIDUAL,
        )


class TargetRows:
    """The rows that one request's round was verified with, processed one at a time and only if
    asked. Row i holds the target's logits after the committed tokens and draft[:i]."""

    def __init__(
        self,
        request: Request,
        logits: torch.Tensor,
        argmax: Sequence[int],
        finite: Sequence[bool],
        draft: Sequence[int],
        *,
        at: int = 0,
        places: Sequence[int] | None = None,
        edits: RowEdits | None = None,
        masks: RowMasks | None = None,
        forced: Collection[int] = (),
        first: int | None = None,
        spans: Spans = OFF,
    ) -> None:
        """Row i is row `at` + i of logits [rows, V], or row places[i] where `places` are given:
        they and the draft may grow while rows are asked for. `argmax` is that of each row of
        logits, and `finite` says whether all its logits are; a row that is not raises NotFinite
        when it is asked for. `edits` are the
        request's own, made here if they are not kept from round to round. `first` is what
        draw_first() has drawn at row 0."""
        self._spans = spans
        self.request, self.draft, self._first = request, draft, first
        self._masks, self._forced = masks, forced
        self.noise = Noise(request.seed, request.choice, request.position)
        self._logits, self._argmax, self._finite = logits, argmax, finite
        self._places = range(at, at + len(draft) + 1) if places is None else places
        self._edits = edits or edits_of(request, logits.device)
        self._edited: tuple[int, torch.Tensor] | None = None  # the row that was edited last

    def token(self, row: int) -> int:
        """The target's own token at row `row`: a function of seed, position and history alone."""
        with self._spans("sample"):
            if row in self._forced:
                return self.draft[row]
            # The best of all tokens, where the grammar allows it, is the best of those it allows:
            # most rows never need their mask laid over the whole vocabulary. Not so where top_k,
            # top_p or min_p leave some out: which ones depends on the mask.
            if self._masks is None or not self.request.params.filtered:
                token = self._best(row)
                if self._masks is None or self._masks.allows(row, token):
                    return token
            return self._choose(self._masked(row), row)

    def only(self, row: int) -> bool:
        """Return whether the grammar leaves a single token at row `row`."""
        return self._masks is not None and self._masks.only(row)

    def prob(self, row: int, token: int) -> float:
        """Probability of one token at row `row`: probs(row)[token], for less."""
        if row in self._forced or self.request.params.greedy:
            return float(token == self.token(row))
        if self.request.params.filtered or self._masks is not None:
            return float(self.probs(row)[token])
        logits = self._processed(row) * (1.0 / self.request.params.temperature)
        return math.exp(float(logits[token]) - ops.logsumexp(logits))

    def possible(self, row: int, token: int) -> bool:
        """Return whether no ban, filter or grammar rules `token` out at row `row`."""
        if row in self._forced:
            return token == self.draft[row]
        if self._masks is not None and not self._masks.allows(row, token):
            return False
        if self.request.params.filtered:
            return self.prob(row, token) > 0
        return float(self._processed(row)[token]) > -math.inf

    def probs(self, row: int) -> torch.Tensor:
        """The processed distribution at row `row`, float64 [V]; one-hot at temperature 0."""
        params = self.request.params
        with self._spans("sample"):
            if row in self._forced or params.greedy:
                return one_hot(self.token(row), self._logits.shape[-1])
            logits = self._masked(row)
            inv_temperature = 1.0 / params.temperature
            keep = self._keep(logits, inv_temperature)
            if keep is not None:
                threshold, tie_id = keep
                ids = torch.arange(len(logits), device=logits.device)
                kept = (logits > threshold) | ((logits == threshold) & (ids <= tie_id))
                logits = logits.masked_fill(~kept, -float("inf"))
            return torch.softmax(logits.double() * inv_temperature, dim=-1).cpu()

    def logprobs(self, row: int, token: int) -> TokenLogprobs:
        """Log-probabilities of `token` and of the asked-for top tokens, from the raw logits."""
        return token_logprobs(self._raw(row), token, self.request.params.logprobs or 0)

    def _best(self, row: int) -> int:
        """The row's token, were there no grammar."""
        self._check(row)
        if self.request.params.plain_argmax:
            return self._argmax[self._places[row]]
        if row == 0 and self._first is not None:
            return self._first
        return self._choose(self._processed(row), row)

    def _choose(self, logits: torch.Tensor, row: int) -> int:
        params = self.request.params
        if params.greedy:
            return ops.argmax(logits)
        inv_temperature = 1.0 / params.temperature
        keep = self._keep(logits, inv_temperature)
        return self.noise.target(logits, row, inv_temperature, keep)

    def _masked(self, row: int) -> torch.Tensor:
        logits = self._processed(row)
        return logits if self._masks is None else self._masks.apply(row, logits)

    def _keep(self, logits: torch.Tensor, inv_temperature: float) -> tuple[float, int] | None:
        params = self.request.params
        if not params.filtered:
            return None
        return ops.top_threshold(logits, inv_temperature, params.top_k, params.top_p, params.min_p)

    def _processed(self, row: int) -> torch.Tensor:
        """The row with bias, bans and penalties applied, with its own history; raw if none is."""
        if self._edits is None:
            return self._raw(row)
        if self._edited is None or self._edited[0] != row:
            self._edited = row, self._edits.apply(self._raw(row), self.draft[:row])
        return self._edited[1]

    def _raw(self, row: int) -> torch.Tensor:
        """The row as the model gave it. Raises NotFinite."""
        self._check(row)
        return self._logits[self._places[row]]

    def _check(self, row: int) -> None:
        if not self._finite[self._places[row]]:
            raise NotFinite(self.noise.start + row)


def token_logprobs(logits: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    """Log-probabilities of `token` and the `count` likeliest tokens, from a row of logits [V]."""
    top = _top(*torch.topk(logits, _candidates(logits, count)), count) if count else []
    return _told(token, float(logits[token]), top, ops.logsumexp(logits))


def token_logprobs_rows(
    logits: torch.Tensor, tokens: Sequence[int], count: int
) -> list[TokenLogprobs]:
    """Return token_logprobs() of each row of logits [R, V], in a few calls for all rows."""
    places = torch.tensor(tokens, device=logits.device)[:, None]
    chosen = logits.gather(1, places)[:, 0].tolist()
    tops: list[list[tuple[int, float]]] = [[]] * len(tokens)
    if count:
        values, ids = (part.cpu() for part in torch.topk(logits, _candidates(logits, count)))
        tops = [_top(*row, count) for row in zip(values, ids, strict=True)]
    rows = zip(tokens, chosen, tops, ops.logsumexp_rows(logits), strict=True)
    return [_told(*row) for row in rows]


def _candidates(logits: torch.Tensor, count: int) -> int:
    """Return how many of the largest logits of a row to look at for the `count` likeliest."""
    return min(2 * count, logits.shape[-1])


def _top(values: torch.Tensor, ids: torch.Tensor, count: int) -> list[tuple[int, float]]:
    """Return ids and logits of the `count` largest, the largest first."""
    # Stable: of equal logits the lowest id comes first, whatever topk prefers.
    best = sorted(zip((-values).tolist(), ids.tolist(), strict=True))[:count]
    return [(i, -value) for value, i in best]


def _told(
    token: int, logit: float, top: list[tuple[int, float]], normaliser: float
) -> TokenLogprobs:
    shown = tuple((i, value - normaliser) for i, value in top)
    return TokenLogprobs(token, logit - normaliser, shown)


def score_prompt(
    request: Request, rows: range, logits: torch.Tensor, finite: Sequence[bool]
) -> None:
    """Add the log-probabilities of prompt tokens: row i of the prompt, of `rows`, gives that of
    token i + 1. logits are float32 [rows, V]. Raises NotFinite."""
    known = request.prompt_logprobs
    assert known is not None
    for row, is_finite in zip(rows, finite, strict=True):
        if not is_finite:
            raise NotFinite(row + 1, "prompt")
    tokens = request.prompt_ids[rows.start + 1 : rows.stop + 1]
    known += token_logprobs_rows(logits, tokens, request.params.prompt_logprobs or 0)
    request.scored = rows.stop


def draw_first(sampled: Iterable[tuple[Request, int]], logits: torch.Tensor) -> dict[int, int]:
    """Tokens of first rows, which a round asks for whatever it accepts, drawn by all threads at
    once; rows behind a draft are drawn one after the other, and only if asked for.

    `sampled` are requests with their first row in logits [rows, V]. Tokens by row; none where they
    are too few for it to pay.
    """
    plain = [(request, row) for request, row in sampled if request.params.plain_draw]
    if len(plain) < TOGETHER:
        return {}
    tokens = ops.gumbel_argmax_rows(
        logits,
        [row for _, row in plain],
        inv_temperatures=[1.0 / request.params.temperature for request, _ in plain],
        seeds=[request.seed for request, _ in plain],
        choices=[request.choice for request, _ in plain],
        positions=[request.position for request, _ in plain],
    )
    return {row: token for (_, row), token in zip(plain, tokens, strict=True)}


def one_hot(token: int, vocab_size: int) -> torch.Tensor:
    probs = torch.zeros(vocab_size, dtype=torch.float64)
    probs[token] = 1.0
    return probs
