"""Verifies the rounds of a step, and commits what stands."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from paceline.core import FinishReason, OutputDelta, TokenKind, Verdict
from paceline.core.spans import OFF, Spans
from paceline.drafters.base import ObservedRows
from paceline.engine.drafting import Drafting
from paceline.engine.masks import RowMasks
from paceline.engine.output import Commit, Output
from paceline.engine.roster import Roster
from paceline.engine.runner import Runner
from paceline.engine.sampler import NotFinite, TargetRows, draw_first, score_prompt
from paceline.engine.scheduler import Plan, Scheduled
from paceline.engine.tree_path import TreePath
from paceline.engine.verify import Verifier, matches, verifier_for
from paceline.models.batch import ForwardOutput


class JudgedRound(NamedTuple):
    """A round whose tokens are committed."""

    entry: Scheduled
    commit: Commit
    verdict: Verdict


class Judge:
    """Judges drafts by the rule of `verifier`."""

    def __init__(
        self, verifier: Verifier, drafting: Drafting, roster: Roster, runner: Runner
    ) -> None:
        self.verifier, self._drafting, self._roster = verifier, drafting, roster
        self._runner = runner
        self.record(OFF)

    def record(self, spans: Spans) -> None:
        """Tell `spans` where the time goes from now on."""
        self._spans = spans
        self._judge_plain = spans.around("commit", self._plain_round)
        self._judge_plain_tree = spans.around("commit", self._plain_tree_round)

    def reads_logits(self, plan: Plan) -> bool:
        """Return whether some round of the step needs more than the argmax of its rows."""
        outputs = self._roster.outputs
        for entry in plan.scheduled:
            if entry.scored:
                return True
            if entry.samples and not self._is_plain(entry, outputs[entry.request.id]):
                return True
        return False

    def __call__(
        self,
        plan: Plan,
        output: ForwardOutput,
        masks: Mapping[str, RowMasks | Exception],
        ended: list[OutputDelta],
    ) -> tuple[list[JudgedRound], list[ObservedRows]]:
        """Verify and commit every round. Return the rounds, and the rows that drafters see. An
        error in one request ends that request, in `ended`."""
        with self._spans("sample"):
            argmax, finite = output.chosen()
            # The rules that judge by q do not ask for the target's own token.
            drawn = not self.verifier.needs_q and plan.samples_above_zero
            first = draw_first(plan.first_rows(), output.logits) if drawn else {}
        judged, observed, row, out, outputs = [], [], 0, 0, self._roster.outputs
        branch_row, branch_out = plan.first_branch_rows
        for entry in plan.scheduled:
            request, before = entry.request, entry.request.computed
            scored, out = out, out + len(entry.scored)
            end, path = out + entry.outputs, None
            try:
                if entry.scored:
                    places = range(
                        entry.start + entry.scored.start, entry.start + entry.scored.stop
                    )
                    score_prompt(request, places, output.logits[scored:out], finite[scored:out])
                if not entry.samples:
                    request.computed += entry.count
                    if request.prompt_only and not request.pending:
                        request.finish_reason = FinishReason.LENGTH
                elif self._is_plain(entry, stream := outputs[request.id]):
                    if entry.draft.branches:
                        path = TreePath(entry.draft, out, branch_out, None)
                        judged.append(self._judge_plain_tree(entry, stream, argmax, finite, path))
                    else:
                        judged.append(
                            self._judge_plain(entry, stream, argmax[out:end], finite[out:end])
                        )
                else:
                    mask = masks.get(request.id)
                    if isinstance(mask, Exception):
                        raise mask
                    if entry.draft.branches:
                        path = TreePath(entry.draft, out, branch_out, mask)
                    rows = TargetRows(
                        request,
                        output.logits,
                        argmax,
                        finite,
                        entry.draft.verified if path is None else path.tokens,
                        at=out,
                        places=None if path is None else path.places,
                        edits=self._roster.edits.get(request.id),
                        masks=mask if path is None else path.masks,
                        forced=entry.draft.forced_verified,
                        first=first.get(out),
                        spans=self._spans,
                    )
                    judged.append(self._round(entry, rows, path))
                count = request.computed - before
                if request.drafter is not None and self._drafting.wants(request, count):
                    seen = output.features if self._drafting.watches(request) else None
                    if seen is None:
                        features = None
                    elif path is None or path.on_trunk:
                        features = seen[row : row + count]
                    else:
                        features = seen[path.rows(row, entry.count, branch_row)[:count]]
                    observed.append(ObservedRows(request, before, count, features))
            except Exception as error:
                ended.append(self._roster.fail(request, error))
            row, out = row + entry.rows, end
            branch_row += entry.draft.branch_rows
            branch_out += entry.draft.branch_rows
        return judged, observed

    def _is_plain(self, entry: Scheduled, stream: Output) -> bool:
        """Return whether the argmax of each row says all that the round needs."""
        draft = entry.draft
        alone = not (draft.length or draft.branches) or matches(entry.request, self.verifier)
        return stream.plain and alone

    def _plain_round(
        self, entry: Scheduled, stream: Output, argmax: list[int], finite: list[bool]
    ) -> JudgedRound:
        """Do what _round() does, for less, where the target's own tokens are the rows' `argmax`
        and the rule is `match`."""
        request, accepted = entry.request, 0
        if entry.draft.length:
            for drafted, token in zip(entry.draft.verified, argmax, strict=False):
                if drafted != token:
                    break
                accepted += 1
        if not all(finite[: accepted + 1]):
            raise NotFinite(request.position + finite.index(False))
        return self._commit_plain(entry, stream, argmax[: accepted + 1])

    def _plain_tree_round(
        self,
        entry: Scheduled,
        stream: Output,
        argmax: list[int],
        finite: list[bool],
        path: TreePath,
    ) -> JudgedRound:
        """Do the same for a draft with branches, of the `argmax` of all rows of the step."""
        places = path.places
        verdict = path.verify(lambda row: argmax[places[row]])
        for row, place in enumerate(places):
            if not finite[place]:
                raise NotFinite(entry.request.position + row)
        if not path.on_trunk:
            self._runner.keep_branch(entry, path.branch, verdict.accepted)
        return self._commit_plain(entry, stream, [*path.tokens, verdict.next_token])

    def _commit_plain(self, entry: Scheduled, stream: Output, tokens: list[int]) -> JudgedRound:
        """Commit the drafted tokens that stand, and the target's own, which is the last."""
        request = entry.request
        if request.first_token is None:
            request.first_token = time.monotonic()
        commit = stream.commit_own(tokens)
        request.computed = entry.start + entry.count + len(commit.token_ids) - 1
        request.forced_tail = 0
        if request.drafter is not None:
            self._drafting.lengths.observe(entry, commit.token_ids)
        return JudgedRound(entry, commit, Verdict(len(tokens) - 1, tokens[-1]))

    def _round(self, entry: Scheduled, rows: TargetRows, path: TreePath | None) -> JudgedRound:
        """Verify one request's draft and commit what stands, up to where the stream ends, and what
        the grammar leaves no choice about after that. `path` is that of a draft with branches."""
        request, draft = entry.request, entry.draft
        with self._spans("verify"):
            if path is None:
                verifier = verifier_for(request, self.verifier)
                verdict = verifier.verify(rows, draft.verified, draft.q)
                stands = draft.tokens[: verdict.accepted]
            else:
                verdict, stands = path.verify(rows.token), path.tokens
                if not path.on_trunk:
                    self._runner.keep_branch(entry, path.branch, verdict.accepted)
        tokens = [*stands, verdict.next_token]
        if request.first_token is None:
            request.first_token = time.monotonic()
        kinds = [
            TokenKind.FORCED if place in draft.forced else TokenKind.ACCEPTED
            for place in range(verdict.accepted)
        ]
        kinds.append(TokenKind.FORCED if rows.only(verdict.accepted) else TokenKind.BONUS)
        output, commit = self._roster.outputs[request.id], Commit()
        with self._spans("commit"):
            output.commit(commit, tokens, kinds, rows.logprobs)
        committed = len(commit.token_ids)
        # The rows of the anchor and of every draft token that stands are computed and verified; the
        # last committed token has no KV yet. Rejected rows stay behind, to be overwritten.
        request.computed = entry.start + entry.count + committed - 1
        with self._spans("commit"):
            request.forced_tail = output.force(commit, rows.logprobs)
        if request.drafter is not None:
            self._drafting.lengths.observe(entry, commit.token_ids[:committed])
        return JudgedRound(entry, commit, verdict)
