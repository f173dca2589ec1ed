"""The draft of one request in one step: a value that travels through named stages.

taken() makes it from what a drafter gave, fitted() makes it fit the request's grammar, and
shortened() leaves what is worth verifying. Each stage returns a new value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from operator import eq

import torch

from paceline.core import CutReason, DraftBatch, DraftTree, SparseRow
from paceline.engine.branches import Branch, allowed_part, split
from paceline.engine.grammar import GrammarState

# What a drafted token was drawn from: probabilities [vocabulary], or those of a few candidates.
DraftRow = torch.Tensor | SparseRow
DraftRows = list[DraftRow]


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft tokens, and how they came to be what they are.

    proposed      tokens as the drafter gave them
    tokens        the same as they fit the grammar, and what it forces among them, at the places
                  `forced`
    length        how many of `tokens` are verified
    confidence    the drafter's own, for each of `tokens` that is not forced; None: unknown
    q             what each token was drawn from, for a draft that was sampled; else None
    part          of a drafter that has several: the one that made the draft
    from_others   whether the draft was looked up in the text of other requests
    looked_up     whether it took no time: then it is not one that the drafter was asked for
    passed_over   what the drafter proposed, where what was looked up stayed
    cut_by        why no more is verified than that; None where nothing cut the draft
    tree          alternatives to `tokens`, as far as they are in it; None: there are none
    branches      paths of the tree that are verified beside `tokens[:length]`, its trunk
    """

    proposed: Sequence[int] = ()
    tokens: Sequence[int] = ()
    forced: frozenset[int] = frozenset()
    length: int = 0
    confidence: Sequence[float] | None = None
    q: DraftRows | None = None
    part: str | None = None
    from_others: bool = False
    looked_up: bool = False
    passed_over: Sequence[int] = ()
    cut_by: CutReason | None = None
    tree: DraftTree | None = None
    branches: tuple[Branch, ...] = ()

    def __len__(self) -> int:
        """The draft length: how many tokens are verified."""
        return self.length

    @property
    def most(self) -> int:
        """The most tokens that can be verified, those of the tree included."""
        return self.length if self.tree is None else len(self.tree.tokens)

    @property
    def depth(self) -> int:
        """The most tokens of the draft that can stand: the length of its longest path."""
        if not self.branches:
            return self.length
        return max(self.length, *(len(branch.tokens) for branch in self.branches))

    @property
    def branch_rows(self) -> int:
        """Return the number of tokens that are verified beside those of the trunk."""
        # asked several times of every request in every step
        return sum([branch.count for branch in self.branches]) if self.branches else 0

    @property
    def verified(self) -> Sequence[int]:
        """The tokens that get a row."""
        return self.tokens[: self.length]

    def path_to(self, committed: Sequence[int]) -> Sequence[int]:
        """The verified path that goes furthest with the committed tokens; of several, the first."""

        def shared(path: Sequence[int]) -> int:
            return len(list(takewhile(bool, map(eq, path, committed))))

        paths = [self.verified, *(branch.tokens for branch in self.branches)]
        return max(paths, key=shared) if self.branches else self.verified

    @property
    def forced_verified(self) -> frozenset[int]:
        """The places of verified tokens that the grammar forced. The row behind the last verified
        token is none of them: its token is chosen, be it from one."""
        return frozenset(place for place in self.forced if place < self.length)

    def because(self, reason: CutReason | None) -> Draft:
        """The same draft, cut for `reason`; None leaves the reason that it has."""
        if reason is None:
            return self
        if self is no_draft() or self is no_draft(self.cut_by):
            return no_draft(reason)
        return replace(self, cut_by=reason)


@cache
def no_draft(reason: CutReason | None = None) -> Draft:
    """Return an empty draft with the reason why there is none."""
    return Draft(cut_by=reason)


def taken(
    batch: DraftBatch, index: int, limit: int, cut_by: CutReason | None, *, looked_up: bool
) -> Draft:
    """The draft of the request at `index` of a drafter's batch, up to `limit` tokens."""
    tokens = batch.tokens[index][:limit]
    if not tokens:
        return no_draft(cut_by)
    confidence = None if batch.confidence is None else batch.confidence[index][:limit]
    return Draft(
        proposed=tokens,
        tokens=tokens,
        length=len(tokens),
        confidence=confidence,
        q=batch.q_rows(index),
        part=batch.part(index),
        from_others=batch.is_from_others(index),
        looked_up=looked_up,
        cut_by=cut_by,
        tree=batch.tree(index),
    )


def fitted(draft: Draft, grammar: GrammarState | None, limit: int, *, judged_by_q: bool) -> Draft:
    """The draft as the grammar allows it, with what the grammar forces, up to `limit` tokens.

    A draft that was sampled and is judged by its q keeps the first token that the grammar does not
    allow: to drop it would be a cut that has looked at the drawn token. The rule rejects it, and
    what comes after it is never looked at.
    """
    if grammar is None:
        return draft
    if draft.q is not None and judged_by_q:
        tokens = draft.tokens[: grammar.valid(draft.tokens) + 1]
        return replace(draft, tokens=tokens, length=len(tokens))
    tokens, origin = grammar.fit(list(draft.tokens), limit)
    kept = [place for place in origin if place is not None]
    left_out = len(kept) < len(draft.proposed) and len(origin) < limit
    tree = None
    if draft.tree is not None and len(kept) == len(tokens):
        tree = allowed_part(draft.tree, grammar)
    return replace(
        draft,
        tokens=tokens,
        length=len(tokens),
        forced=frozenset(place for place, source in enumerate(origin) if source is None),
        confidence=draft.confidence and [draft.confidence[place] for place in kept],
        cut_by=CutReason.GRAMMAR if left_out else draft.cut_by,
        tree=tree,
    )


def shortened(draft: Draft, length: int) -> Draft:
    """The draft with `length` tokens verified, the first ones or the best of its tree: more would
    cost more than they bring."""
    if draft.tree is not None:
        trunk, branches = split(draft.tree, length, draft.tokens)
        cut = replace(draft, length=trunk, branches=branches)
        return cut if branches or trunk == draft.length else cut.because(CutReason.COST)
    if length >= draft.length:
        return draft
    return replace(draft, length=length, cut_by=CutReason.COST)
