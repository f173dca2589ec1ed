"""The training loop: steps, evaluations, saves, and an end.

One process or several, on CPU or CUDA. A run that was killed goes on from its last save and takes
the same steps as one that was not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from paceline.engine.peak import matmul_peak
from paceline.training.config import TrainConfig
from paceline.training.cost import (
    StepCosts,
    drafter_operations,
    head_operations,
    target_operations,
)
from paceline.training.data import Data, Order
from paceline.training.evaluation import BlockTally, Progress, Score, packs_of
from paceline.training.form import TrainingForm
from paceline.training.losses import SlotLosses, Soft, position_weights
from paceline.training.optimizers import Optimizers, course
from paceline.training.packs import Pack, Pick, Text, block_labels, make_pack
from paceline.training.state import load_state, save_state
from paceline.training.target import Seen, TrainingTarget
from paceline.training.workers import Workers

LOG_EVERY = 10  # steps
Log = Callable[[int, dict[str, float]], None]  # takes a step and its numbers


@dataclass
class Trainer:
    """A training run. `export(progress, step)` writes the drafter of a new best score; `inputs` are
    digests of target, sets and drafter, so that a run goes on with the same only."""

    config: TrainConfig
    form: TrainingForm
    target: TrainingTarget
    data: Data
    workers: Workers
    export: Callable[[Progress, int], None]
    inputs: dict[str, object]

    def __post_init__(self) -> None:
        config = self.config
        self.order = Order(self.data.train, config.texts, config.anchors, config.seed)
        self.total = config.total_steps(len(self.data.train))
        self.optimizers = Optimizers(self.form.drafter, config, self.form.head.weight.dtype)
        self.progress = Progress(config.regression, judged=config.init is not None)
        self.step = 0
        self.target.prefer(self.data.train)
        self._wrapped = self.workers.wrap(self.form)
        self._size = self.form.config.block_size
        peak = matmul_peak(self.form.head.weight.dtype, config.device)
        self._costs = StepCosts(config.device, peak)

    def resume(self) -> bool:
        """Go back to the run's last save, if there is one."""
        state = load_state(self.config.folder, asdict(self.config), self.inputs)
        if state is None:
            return False
        self.form.drafter.load_state_dict(state["drafter"])
        self.optimizers.load(state["optimizers"])
        self.progress = Progress(**state["progress"])
        here = {"device": self._costs.device, "peak": self._costs.peak}
        self._costs = StepCosts(**state["since"] | here)
        self.step = state["step"]
        return True

    def run(self, log: Log) -> None:
        """Train to the end, until patience ends, or until a regression stops the run."""
        if self.step == 0 and not self.progress.history:
            self._evaluate(log)
            self._save()  # from here on the folder is this run's
        while self.step < self.total and not self.finished:
            self.take_step()
            last = self.step == self.total
            if self.step % LOG_EVERY == 0 or last:
                log(self.step, self.numbers())
            evaluated = self.step % self.config.eval_every == 0 or last
            best = evaluated and self._evaluate(log)
            if best or last or self.finished or self.step % self.config.save_every == 0:
                self._save()
        self.workers.wait()

    @property
    def finished(self) -> str | None:
        """The reason why evaluations ended the run before its last step, or None."""
        patience = self.config.patience
        if patience and self.progress.waited >= patience:
            return f"{patience} evaluations in a row were no better"
        if self.config.on_regression == "stop" and self.progress.regressions:
            return self.progress.told_fall()
        return None

    def take_step(self) -> None:
        """Take one optimizer step over the next texts."""
        config, workers, start = self.config, self.workers, self._costs.now()
        picks = self.order.step(self.step)
        blocks = sum(len(pick.anchors) for pick in picks)
        size = self._block_size()
        norm = self._norm(picks, size)
        own_picks = workers.mine(picks)
        parts = [own_picks[i : i + config.micro] for i in range(0, len(own_picks), config.micro)]
        sums = torch.zeros(5, dtype=torch.float64)
        for index, part in enumerate(parts):
            pack = self._pack(part, size)
            with workers.together(self._wrapped, last=index == len(parts) - 1):
                out = self._forward_backward(pack, norm)
            reached, plain = out.right.cumprod(1).sum(), out.ce[~out.ce.isnan()]
            parts_of_sums = (out.loss, reached, pack.counts.sum(), plain.sum(), plain.numel())
            sums += torch.tensor([float(part) for part in parts_of_sums])
        with self._costs.phase("optimiser"):
            grad = torch.nn.utils.clip_grad_norm_(self.form.drafter.parameters(), config.clip)
            share = course(self.step, self.total, config.warmup, config.final_lr)
            self.optimizers.step(share)
        sums = workers.sum(sums)
        self.step += 1
        self._costs.add(
            self._costs.now() - start,
            loss=float(sums[3]) / max(1.0, float(sums[4])),
            objective=float(sums[0]) / norm,
            al=1 + float(sums[1]) / blocks,
            slots=float(sums[2]),
            blocks=blocks,
            grad_norm=float(grad),
            lr_share=share,
        )

    def _norm(self, picks: Sequence[Pick], size: int) -> float:
        """Return the divisor of the summed loss of a step: its blocks (D-PACE), or the sum of its
        weights."""
        if self.config.weights == "dpace":
            return float(sum(len(pick.anchors) for pick in picks))
        labels = [block_labels(pick.text, pick.anchors, size) for pick in picks]
        counts = torch.cat([slot_counts for _, slot_counts in labels])
        zero = torch.zeros(counts.shape)
        return float(position_weights(self.config.weights, zero, counts, counts).sum())

    def _block_size(self) -> int:
        """Return the tokens of a block in this step."""
        short = self.config.short_block
        if short is not None and self.step < self.config.value("short_share") * self.total:
            return short
        return self._size

    def _pack(self, picks: Sequence[Pick], size: int) -> Pack:
        target, config = self.target, self.config
        before = target.computed_tokens
        with self._costs.phase("target"):
            seen = [target.read(pick.text) for pick in picks]
        tokens = target.computed_tokens - before
        self._costs.operations["target"] += target_operations(target.shape, tokens)
        with self._costs.phase("data"):
            mask = self.form.config.mask_token_id
            pack = make_pack(picks, [view.features for view in seen], size, mask)
            if config.soft:
                pack = self._soften(pack, picks, seen)
            return pack.to(self.workers.device)

    def _soften(self, pack: Pack, picks: Sequence[Pick], seen: Sequence[Seen]) -> Pack:
        """Return the pack with the target's distribution in its blocks, where that is learnt."""
        slots = pack.labels.shape[1]
        pairs = zip(picks, seen, strict=True)
        soft_parts = [view.behind(pick.anchors, slots) for pick, view in pairs]
        likely, shares = (torch.cat(parts) for parts in zip(*soft_parts, strict=True))
        if self.config.labels == "target":
            pack = replace(pack, labels=likely[..., 0])
        if set(self.config.mix) == {"ce"}:
            return pack
        rows = self.form.head.row_of.cpu()[likely]
        return replace(pack, soft=Soft(rows, shares))

    def _forward_backward(self, pack: Pack, norm: float) -> SlotLosses:
        costs, config = self._costs, self.form.config
        before = costs.phases["head"]
        start = costs.now()
        outcome: SlotLosses = self._wrapped(pack, costs)
        (outcome.loss * (self.workers.count / norm)).backward()
        inside = costs.phases["head"] - before
        costs.phases["drafter"] += costs.now() - start - inside
        slots = pack.ids.numel()
        costs.operations["drafter"] += drafter_operations(config, len(pack.tokens), slots)
        rows = len(self.form.head.weight)
        costs.operations["head"] += head_operations(config, rows, pack.labels.numel())
        return replace(outcome, loss=outcome.loss.detach())

    def scores(self, sets: dict[str, list[Text]]) -> dict[str, Score]:
        """Return the expected acceptance length of every set."""
        config, mask, scores = self.config, self.form.config.mask_token_id, {}
        self.form.eval()
        for name, texts in sets.items():
            tally = BlockTally(self._size - 1)
            own_texts = self.workers.mine(texts)
            if self.target.together:
                for _ in range(-(-len(texts) // self.workers.count) - len(own_texts)):
                    self.target.read(texts[0])  # for those that have one text more
            for pack in packs_of(
                own_texts, config.eval_anchors, self.target.features, self._size, mask, config.micro
            ):
                tally.add(self.form.right(pack.to(self.workers.device)), pack)
            tally.sums = self.workers.sum(tally.sums)
            scores[name] = tally.score()
        self.form.train()
        return scores

    def _evaluate(self, log: Log) -> bool:
        """Evaluate; return whether the result is the best so far. Its drafter is written then."""
        held, other = self.scores(self.data.held_out), self.scores(self.data.out_of_domain)
        best = self.progress.add(self.step, held, other)
        log(self.step, self.progress.numbers())
        if best and self.workers.first and self.step:
            self.export(self.progress, self.step)
        return best

    def _save(self) -> None:
        if self.workers.first:
            save_state(
                self.config.folder,
                {
                    "config": asdict(self.config),
                    "inputs": self.inputs,
                    "step": self.step,
                    "drafter": self.form.drafter.state_dict(),
                    "optimizers": self.optimizers.state(),
                    "progress": asdict(self.progress),
                    "since": asdict(self._costs),
                },
            )

    def numbers(self) -> dict[str, float]:
        """Return log entries of the steps since the last call."""
        costs = self._costs
        self._costs = StepCosts(
            costs.device, costs.peak, all_slots=costs.all_slots, all_seconds=costs.all_seconds
        )
        return costs.numbers()
