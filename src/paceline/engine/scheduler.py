"""The scheduler: which requests get how many rows in the next step.

One rule: each request has `computed` tokens and `tokens` + drafted ones, and every step hands out
rows so that the first catches up with the second (after vLLM's V1 scheduler). A prompt chunk, a
prompt whose prefix was cached, a plain decode and a draft to verify are all the same case.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice

from paceline.core import CutReason, OutputDelta, Request
from paceline.engine.draft import Draft, no_draft
from paceline.engine.kv_cache import KVCache
from paceline.engine.prompt_share import PromptRows, PromptShare
from paceline.engine.step_cost import StepCost
from paceline.models.batch import BLOCK_SIZE

DRAFT_NEWS = 0.2  # share of a step's news that goes into the rows of drafts
NONE_SCORED = range(0)
SCORED_BESIDE = 16  # rows of prompts that a step scores beside decoding requests


@dataclass(slots=True)
class Scheduled:
    """Rows of one request in this step: `count` committed tokens from `start`, then the draft, of
    at most `draft_limit` tokens as slots and budget allow. Branches of a draft have their rows
    behind those of all requests. `chunk` says that they are of a prompt.
    `scored` are the rows, counted from the first, that give log-probabilities of the prompt.
    `samples` says that the step reaches the last known token, so that the next one is chosen."""

    request: Request
    start: int
    count: int
    draft_limit: int = 0
    draft: Draft = field(default_factory=no_draft)
    chunk: bool = False
    scored: range = NONE_SCORED
    samples: bool = field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        at_end = self.start + self.count == len(request.tokens)
        self.samples = at_end and request.params.max_tokens != 0
        if request.params.prompt_logprobs is not None:
            first = max(request.scored - self.start, 0)
            end = min(self.count, first + request.unscored)
            self.scored = range(first, max(first, end))

    @property
    def rows(self) -> int:
        return self.count + self.draft.length

    @property
    def all_rows(self) -> int:
        """The rows, and those of the draft's branches."""
        return self.count + self.draft.length + self.draft.branch_rows

    @property
    def outputs(self) -> int:
        """Rows from which tokens are chosen. Scored rows, which get logits too, do not count, nor
        do those of branches."""
        return 1 + self.draft.length if self.samples else 0


def looking_back(cost: StepCost, scheduled: Iterable[Scheduled]) -> float:
    """Return what the rows of a step add by looking back, as StepCost counts it."""
    return sum([cost.looking_back(entry.start, entry.all_rows) for entry in scheduled])


@dataclass(slots=True)
class Plan:
    """One step: requests that run, that were admitted, and that had to give their memory back."""

    scheduled: list[Scheduled] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    most_scored: int = 0  # rows of prompts that may give log-probabilities

    @property
    def samples_above_zero(self) -> bool:
        """Return whether a request of the step has a temperature."""
        return any([entry.request.params.temperature for entry in self.scheduled])

    @property
    def first_branch_rows(self) -> tuple[int, int]:
        """The first row of the drafts' branches, among all rows and among those with logits."""
        outputs = sum([len(entry.scored) + entry.outputs for entry in self.scheduled])
        return sum([entry.rows for entry in self.scheduled]), outputs

    def first_rows(self) -> Iterator[tuple[Request, int]]:
        """Requests that get a token, each with the first of its rows in the step's logits."""
        row = 0
        for entry in self.scheduled:
            row += len(entry.scored)
            if entry.samples:
                yield entry.request, row
                row += entry.outputs

    def counts(self, rounds: Sequence[Scheduled], deltas: Sequence[OutputDelta]) -> dict[str, int]:
        """Describe the step when it is over: `rounds` are the entries that got a token, with their
        `deltas`.

        `prompt_rows` are of prompts, the last chunk of each included; `outputs` are rows whose
        logits were wanted; `seen` counts the tokens whose keys and values were read, those of the
        step's own rows included.
        """
        rows = sum(entry.all_rows for entry in self.scheduled)
        branch_rows = sum(entry.draft.branch_rows for entry in self.scheduled)
        decoded = sum(
            entry.all_rows
            for entry, delta in zip(rounds, deltas, strict=True)
            if delta.completion_tokens > len(delta.token_ids)
        )
        return {
            "requests": len(self.scheduled),
            "rows": rows,
            "prompt_rows": rows - decoded,
            "outputs": branch_rows + sum(len(e.scored) + e.outputs for e in self.scheduled),
            "drafted": branch_rows + sum(len(entry.draft) for entry in self.scheduled),
            "committed": sum(len(delta.token_ids) for delta in deltas),
            "seen": sum(entry.start + entry.rows for entry in self.scheduled),
        }


@dataclass(slots=True)
class Scheduler:
    """Waiting and running requests, and the rule that shares out the steps."""

    cache: KVCache
    _: KW_ONLY
    cost: StepCost
    max_num_seqs: int
    token_budget: int
    share: PromptShare
    most_scored: int = 64  # rows of prompts whose logits a step may hold
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    # that a decoding request which may draft verifies in a step, on average of late
    draft_rows: float = 0.0

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is, and free its memory."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self.cache.release(request)

    def requeue(self, request: Request) -> None:
        """Put a request that is in neither queue first in line, with nothing computed."""
        self.cache.release(request)
        request.computed = 0
        self.waiting.appendleft(request)

    def plan(self, draft_length: Callable[[Request], int]) -> Plan:
        """Hand out the rows of one step; `draft_length` says how long a draft a request may have
        that has a `max_draft_len`.

        Every decoding request gets its row first, then prompts in order of arrival, then newcomers,
        and drafts what rows and blocks are left: a draft never holds up or preempts anybody. Rows
        for the drafts to expect are kept from prompts, but half of what is left is theirs. The
        youngest request is preempted first, so the oldest always gets on.
        """
        plan = Plan()
        decoding: list[Request] = []
        prompts: list[Request] = []
        for request in self.running:
            (decoding if request.decoding else prompts).append(request)
        # EngineConfig sees to a row for each. Forced tokens take what is left.
        spare = self.token_budget - len(decoding)
        for request in decoding:
            if plan.preempted and request in plan.preempted:
                continue
            computed = request.computed
            count = min(len(request.tokens) - computed, 1 + spare)
            if self._make_room(request, computed + count, plan):
                plan.scheduled.append(Scheduled(request, computed, count))
                spare -= count - 1
        plan.most_scored = self.most_scored
        if plan.scheduled:  # others wait for their next tokens
            plan.most_scored = min(self.most_scored, SCORED_BESIDE)
        if prompts or self.waiting:
            rows = self._prompt_rows(plan, prompts)
            for request in prompts:
                if not rows.full and request not in plan.preempted:
                    self._schedule_chunk(request, rows, plan)
            if not plan.preempted:
                self._admit(rows, plan)
        if any(request.max_draft_len for request in decoding):
            self._limit_drafts(plan, {request.id for request in decoding}, draft_length)
        return plan

    def observe_drafts(self, plan: Plan) -> None:
        """Learn from the drafts of a step how many rows those of the next one will take. A step
        without room for drafts says nothing, a step of requests that may not draft says none."""
        lengths = [e.draft.length + e.draft.branch_rows for e in plan.scheduled if e.draft_limit]
        if lengths or not any([e.request.max_draft_len for e in plan.scheduled]):
            mean = sum(lengths) / max(1, len(lengths))
            self.draft_rows += DRAFT_NEWS * (mean - self.draft_rows)

    def _prompt_rows(self, plan: Plan, prompts: list[Request]) -> PromptRows:
        """Rows for prompts beside the decoding requests of `plan`, and beside their drafts, which
        get half of the rows that are left at most."""
        decoding = len(plan.scheduled)
        rows = sum(entry.rows for entry in plan.scheduled)
        left = self.token_budget - rows
        if not decoding:
            return PromptRows(self.cost, rows, left)
        drafting = sum([entry.request.max_draft_len > 0 for entry in plan.scheduled])
        drafts = min(left // 2, round(drafting * self.draft_rows))
        waiting = [*prompts, *islice(self.waiting, self.max_num_seqs - len(self.running))]
        back = looking_back(self.cost, plan.scheduled)
        return self.share.rows(self.cost, rows + drafts, decoding, waiting, left - drafts, back)

    def _limit_drafts(
        self, plan: Plan, decoding: set[str], draft_length: Callable[[Request], int]
    ) -> None:
        """Shares the rows that are left evenly; what one cannot use goes to those after it."""
        entries = [e for e in plan.scheduled if e.request.id in decoding and e.samples]
        left = self.token_budget - sum(entry.rows for entry in plan.scheduled)
        for index, entry in enumerate(entries):
            wanted = min(draft_length(entry.request), left // (len(entries) - index))
            tokens = entry.start + entry.count
            while wanted and not self.cache.allocate(entry.request, tokens + wanted):
                wanted //= 2
            entry.draft_limit = wanted
            if wanted < entry.request.max_draft_len:
                entry.draft = no_draft(CutReason.ROOM)
            left -= wanted

    def _schedule_chunk(self, request: Request, rows: PromptRows, plan: Plan) -> None:
        count = min(len(request.tokens) - request.computed, rows.of(request))
        if request.unscored:
            left = plan.most_scored - sum(len(entry.scored) for entry in plan.scheduled)
            if request.unscored > left:
                count = min(count, request.scored + left - request.computed)
        if count and self._make_room(request, request.computed + count, plan):
            plan.scheduled.append(Scheduled(request, request.computed, count, chunk=True))
            rows.take(request, count)

    def _make_room(self, request: Request, num_tokens: int, plan: Plan) -> bool:
        """Find slots for so many tokens, preempting the youngest; False if that is `request`."""
        while not self.cache.allocate(request, num_tokens):
            youngest = self.running[-1]
            self._preempt(youngest, plan)
            if youngest is request:
                return False
        return True

    def _preempt(self, request: Request, plan: Plan) -> None:
        """Take a request's KV away. Its tokens stay, and are computed again when it resumes."""
        self.running.remove(request)
        self.requeue(request)
        request.preemptions += 1
        plan.scheduled = [s for s in plan.scheduled if s.request is not request]
        plan.preempted.append(request)

    def _admit(self, rows: PromptRows, plan: Plan) -> None:
        held_back: list[Request] = []
        while self.waiting and not rows.full and len(self.running) < self.max_num_seqs:
            request = self.waiting.popleft()
            if self._leader_is_busy(request):
                held_back.append(request)
                continue
            if not self._enter(request, plan):
                self.waiting.appendleft(request)
                break
            self._schedule_chunk(request, rows, plan)
        self.waiting.extendleft(reversed(held_back))

    def _enter(self, request: Request, plan: Plan) -> bool:
        """Admits a request if all its known tokens and one more fit; takes its cached prefix."""
        needed = -(-(len(request.tokens) + 1) // BLOCK_SIZE)
        if needed > self.cache.free_blocks:
            return False
        request.computed = self.cache.match_prefix(request)
        if request.first_scheduled is None:
            request.first_scheduled = time.monotonic()
            request.cached_tokens = request.computed
        self.running.append(request)
        plan.admitted.append(request)
        return True

    def _leader_is_busy(self, request: Request) -> bool:
        """Return whether another choice of the prompt is computing the KV that both will share."""
        leader = request.leader
        return (
            leader is not None
            and self.cache.prefix_cache
            and leader in self.running
            and leader.computed < leader.prompt_len - 1
        )
