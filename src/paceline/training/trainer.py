"""The training loop: steps, evaluations, saves, and an end.

One process or several, on CPU or CUDA. A run that was killed goes on from its last save and takes
the same steps as one that was not. A run whose learning rate fell goes on from before the fall.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from paceline.core import InvalidRequest
from paceline.engine.peak import peak_of
from paceline.training.attention import pads
from paceline.training.average import Average
from paceline.training.config import TrainConfig
from paceline.training.cost import StepCosts
from paceline.training.data import Data, Order, texts_in_order
from paceline.training.evaluation import BlockTally, Progress, Score, mean_length, packs_of
from paceline.training.form import TrainingForm
from paceline.training.losses import SlotLosses, position_weights
from paceline.training.optimizers import Optimizers
from paceline.training.packs import (
    Pack,
    Pick,
    Text,
    at_errors,
    block_labels,
    make_pack,
    seed_for,
    side_by_side,
)
from paceline.training.passing import Passing
from paceline.training.schedule import STOPPED, Schedule
from paceline.training.seen import Seen, Soft
from paceline.training.state import STABLE, STATE, load_state, save_state
from paceline.training.target import TrainingTarget
from paceline.training.telling import Telling
from paceline.training.workers import Workers

QUARTER = 4  # one of so many packs compares the weights with their average
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
        self.schedule = Schedule(config, config.total_steps(len(self.data.train)))
        self.optimizers = Optimizers(self.form.drafter, config, self.form.head.weight.dtype)
        self.average = Average(self.form.drafter)
        self.progress = Progress(config.regression, judged=config.init is not None)
        self.step = 0
        self.target.prefer(self.data.train)
        self._wrapped = self.workers.wrap(self.form)
        self._size = self.form.config.block_size
        peak = peak_of(self.form.head.weight.dtype, config.device)
        self._costs = StepCosts(config.device, peak)
        self._speedup = 1.0  # that drafts would have brought in the last step, for expected_speedup
        self._earlier, self._began = 0.0, time.monotonic()
        self._stopping = False
        self._telling = Telling()
        self.passing: Passing | None = None

    @property
    def seconds(self) -> float:
        """The time of this run up to now, over all its starts."""
        return self._earlier + time.monotonic() - self._began

    def resume(self) -> bool:
        """Go back to the run's last save, if there is one; if the learning rate fell for another
        end than this one, go back to the save before."""
        state = self._load(STATE)
        if state is None:
            return False
        if self.schedule.planned_otherwise(state["schedule"]):
            best = {name: state["progress"][name] for name in ("best", "best_length")}
            state = self._load(STABLE)
            if state is None:
                expected = f"a folder that has {STABLE}, the state before the learning rate fell"
                raise InvalidRequest("out", self.config.out, expected)
            state["progress"] |= best  # of the drafter that is in the folder
        self.form.drafter.load_state_dict(state["drafter"])
        self.optimizers.load(state["optimizers"])
        self.average.load(state["average"])
        self.progress = Progress.restored(state["progress"])
        here = {"device": self._costs.device, "peak": self._costs.peak}
        self._costs = StepCosts(**state["since"] | here)
        self.schedule.restore(state["schedule"])
        self._speedup = state.get("speedup", 1.0)
        self.step, self._earlier = state["step"], state["seconds"]
        self._telling = Telling(self._earlier)
        self.schedule.check(self.step, self._earlier)
        return True

    def stop(self) -> None:
        """Let the run end soon: the learning rate falls, for half as long as at a planned end."""
        self._stopping = True

    def run(self, log: Log) -> None:
        """Train until the planned end, a stop by somebody, a regression, or the end of patience."""
        if self.step == 0 and not self.progress.history:
            self._evaluate(log)
            self._save()  # from here on the folder is this run's
        while not self._over and self._decide(log):
            self.take_step()
            last = self.step == self.schedule.end
            if self._telling.is_due(self.step) or last:
                log(self.step, self.numbers())
            best = (self.step % self.config.eval_every == 0 or last) and self._evaluate(log)
            if best or last or self._over or self.step % self.config.save_every == 0:
                self._save()
        self.workers.wait()

    @property
    def _over(self) -> bool:
        end = self.schedule.end
        return self.regressed or (end is not None and self.step >= end)

    @property
    def regressed(self) -> bool:
        """Return whether a fall out of domain ends the run."""
        return self.config.on_regression == "stop" and bool(self.progress.regressions)

    @property
    def _impatient(self) -> bool:
        return 0 < self.config.patience <= self.progress.waited

    @property
    def finished(self) -> str | None:
        """The reason why the run ended before its planned end, or None."""
        if self.regressed:
            return self.progress.told_fall(self.progress.history[-1])
        decisions = self.schedule.decisions
        if self._stopping or decisions.ends == STOPPED:
            place = self.step if self._stopping else decisions.decay_start
            return f"the run was stopped; the same command goes on from step {place}"
        if self._impatient:
            return f"{self.config.patience} evaluations in a row were no better"
        return None

    def _decide(self, log: Log) -> bool:
        """Decide what the next step depends on; return whether there is one. What is measured is
        decided by the first process for all, and the state before a decay is kept."""
        before = self.schedule.saved()
        facts = torch.tensor([self.seconds, float(self._stopping)], dtype=torch.float64)
        seconds, stopping = self.workers.sum(facts * self.workers.first).tolist()
        self._telling.seconds = seconds
        if stopping and self.schedule.decaying:
            self._save()
            return False
        if stopping:
            begins = self.schedule.stop(self.step, STOPPED)
        else:
            begins = self.schedule.decide(self.step, seconds)
        if self._impatient and not begins:
            begins = self.schedule.stop(self.step, self.schedule.ends)
        if begins:
            self._stopping = False
            self._save(STABLE, before)
            self._save()  # a kill in the decay loses nothing of the stable phase
            log(self.step + 1, {"decay_steps": self.schedule.decisions.falling})
        return True

    def texts_to_read(self) -> list[Text]:
        """Return every text that the run reads, in the order in which it is read first."""
        steps = self.config.total_steps(len(self.data.train))
        return texts_in_order(self.data, self.order, steps)

    def ask(self) -> None:
        """Ask those who write the features for what is read next, where they are passed on."""
        if self.passing is not None:
            self.passing.ask(self.step, () if self.workers.count > 1 else self.target.in_memory)

    def take_step(self) -> None:
        """Take one optimizer step over the next texts."""
        config, workers, start = self.config, self.workers, self._costs.now()
        picks = self.order.step(self.step)
        self.ask()
        if self.target.folder is not None:
            self.target.expect([pick.text for pick in workers.mine(self.order.coming())])
        blocks = sum(len(pick.anchors) for pick in picks)
        size = self._block_size()
        norm = self._norm(picks, size)
        # Texts with as much context together: on CUDA they are padded to the longest of a part.
        window = self.target.window
        own_picks = sorted(workers.mine(picks), key=lambda pick: pick.context(window))
        with self._counted():
            self.target.fetch([pick.text for pick in own_picks])
        padded = pads(config.attention, config.device)
        parts = list(side_by_side(own_picks, config.micro, config.micro_tokens, window, padded))
        # What on_policy samples is that of the step, also after an interruption.
        torch.manual_seed(seed_for(config.seed, self.step, workers.rank))
        sums = torch.zeros(7, dtype=torch.float64)
        for index, part in enumerate(parts):
            pack = self._pack(part, size)
            with workers.together(self._wrapped, last=index == len(parts) - 1):
                out = self._forward_backward(pack, norm)
            reached, plain = out.right.cumprod(1).sum(), out.ce[~out.ce.isnan()]
            speed = (0.0, 0.0) if out.speed is None else out.speed.tolist()
            counted = (out.loss, reached, pack.counts.sum(), plain.sum(), plain.numel(), *speed)
            sums += torch.tensor([float(part) for part in counted])
        with self._costs.phase("optimiser"):
            grad = torch.nn.utils.clip_grad_norm_(self.form.drafter.parameters(), config.clip)
            share = self.schedule.lr_share(self.step)
            self.optimizers.step(share)
            self.average.add(self.step + 1)
        sums = workers.sum(sums)
        if sums[6]:
            self._speedup = float(sums[5] / sums[6])
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
        _, counts = block_labels(picks, size)
        zero = torch.zeros(counts.shape)
        return float(position_weights(self.config.weights, zero, counts, counts).sum())

    def _block_size(self) -> int:
        """Return the tokens of a block in this step."""
        short = self.config.short_block
        return self._size if short is None or self.schedule.whole_blocks(self.step) else short

    def _pack(self, picks: Sequence[Pick], size: int) -> Pack:
        target, config = self.target, self.config
        with self._counted():
            seen = target.read_all([pick.text for pick in picks])
        mask = self.form.config.mask_token_id
        if config.on_policy:
            with self._costs.phase("drafter"):
                pack = make_pack(picks, seen, size, mask, target.window)
                picks = at_errors(picks, pack, self.form.right(pack.to(self.workers.device)))
            # The time of its head is a part of that phase, too.
            self._costs.operations["drafter"] += sum(self.form.operations(pack, learns=False))
        with self._costs.phase("data"):
            pack = make_pack(picks, seen, size, mask, target.window)
            if target.soft_tokens:
                pack = self._soften(pack, picks, seen)
            return pack.to(self.workers.device)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the time and the operations of the target."""
        target = self.target
        tokens, logits = target.computed_tokens, target.computed_logits
        with self._costs.phase("target"):
            yield
        tokens, logits = target.computed_tokens - tokens, target.computed_logits - logits
        self._costs.operations["target"] += target.operations(tokens, logits)

    def _soften(self, pack: Pack, picks: Sequence[Pick], seen: Sequence[Seen]) -> Pack:
        """Return the pack with the target's distribution in its blocks, where that is learnt."""
        slots = pack.labels.shape[1]
        pairs = zip(picks, seen, strict=True)
        soft_parts = [view.behind(pick.anchors, slots) for pick, view in pairs]
        likely, shares = (torch.cat(parts) for parts in zip(*soft_parts, strict=True))
        if self.config.labels == "target":
            pack = replace(pack, labels=likely[..., 0])
        if not self.config.soft_mix and not self.config.on_policy:
            return pack
        rows = self.form.head.row_of.cpu()[likely]
        # Labels of the target's are what it says with temperature 0.
        drawn_at = 0.0 if self.config.labels == "target" else 1.0
        temperatures = [drawn_at * pick.text.temperature for pick in picks for _ in pick.anchors]
        return replace(pack, soft=Soft(rows, shares, torch.tensor(temperatures)))

    def _forward_backward(self, pack: Pack, norm: float) -> SlotLosses:
        costs = self._costs
        before = costs.phases["head"]
        start = costs.now()
        outcome: SlotLosses = self._wrapped(pack, costs, self._speedup)
        torch.autograd.backward(outcome.loss * (self.workers.count / norm))
        inside = costs.phases["head"] - before
        costs.phases["drafter"] += costs.now() - start - inside
        drafter, head = self.form.operations(pack, learns=True)
        costs.operations["drafter"] += drafter
        costs.operations["head"] += head
        return replace(outcome, loss=outcome.loss.detach())

    def _evaluation_packs(self, texts: list[Text]) -> Iterator[Pack]:
        config, own_texts = self.config, self.workers.mine(texts)
        self.target.fetch(own_texts)
        mask, target = self.form.config.mask_token_id, self.target
        padded = pads(config.attention, config.device)
        limits = target.window, config.micro, config.micro_tokens, padded
        anchors, size = config.eval_anchors, self._size
        for pack in packs_of(own_texts, anchors, target.read_all, size, mask, *limits):
            yield pack.to(self.workers.device)

    def _scores(self, packs: dict[str, list[Pack]]) -> dict[str, Score]:
        """Return the expected acceptance length of every set, by the weights as they are."""
        scores = {}
        self.form.eval()
        for name, set_packs in packs.items():
            tally = BlockTally(self._size - 1)
            for pack in set_packs:
                tally.add(self.form.right(pack), pack)
            tally.sums = self.workers.sum(tally.sums)
            scores[name] = tally.score()
        self.form.train()
        return scores

    def _evaluate(self, log: Log) -> bool:
        """Evaluate the weights or their average, whichever is better; return whether the result is
        the best so far. Its drafter is written then."""
        held_packs, other_packs, foreign_packs = (
            {name: list(self._evaluation_packs(texts)) for name, texts in sets.items()}
            for sets in (self.data.held_out, self.data.out_of_domain, self.data.foreign)
        )
        entries = self._compared(held_packs) if self.step else {}
        averaged = bool(entries) and entries["average/al"] > entries["weights/al"]
        with self.average.in_place() if averaged else nullcontext():
            held, other = self._scores(held_packs), self._scores(other_packs)
            foreign = self._scores(foreign_packs)
            slots = self._costs.all_slots
            best = self.progress.add(self.step, held, other, foreign, slots, averaged)
            log(self.step, self.progress.numbers() | entries | self._forecast())
            if best and self.workers.first and self.step:
                self.export(self.progress, self.step)
        return best

    def _compared(self, packs: dict[str, list[Pack]]) -> dict[str, float]:
        """Return log entries: the mean acceptance length by the weights and by their average, on
        the first quarter of the packs, which is enough since both are judged on the same texts."""
        some = {name: of[: -(-len(of) // QUARTER)] for name, of in packs.items()}
        lengths = {"weights/al": mean_length(self._scores(some))}
        with self.average.in_place():
            lengths["average/al"] = mean_length(self._scores(some))
        return lengths

    def _forecast(self) -> dict[str, float]:
        """Return log entries of the forecast for the planned end. A decay is no part of the curve
        that it continues."""
        if self.schedule.decaying:
            return {}
        left = self.schedule.share_left(self.step, self.seconds)
        forecast = self.progress.forecast(self._costs.all_slots * (1 + left))
        if forecast is None:
            return {}
        return {f"forecast/{name}": getattr(forecast, name) for name in ("al", "low", "high")}

    def _load(self, name: str) -> dict[str, Any] | None:
        return load_state(self.config.folder, asdict(self.config), self.inputs, name)

    def _save(self, name: str = STATE, decisions: dict[str, Any] | None = None) -> None:
        """Save the state, with earlier decisions if there are any."""
        if self.workers.first:
            state = {
                "config": asdict(self.config),
                "inputs": self.inputs,
                "step": self.step,
                "seconds": self.seconds,
                "schedule": decisions or self.schedule.saved(),
                "drafter": self.form.drafter.state_dict(),
                "average": self.average.state(),
                "optimizers": self.optimizers.state(),
                "progress": asdict(self.progress),
                "since": asdict(self._costs),
                "speedup": self._speedup,
            }
            save_state(self.config.folder, state, name)

    def numbers(self) -> dict[str, float]:
        """Return log entries of the steps since the last call, and the hours that are left."""
        costs, seconds = self._costs, self.seconds
        self._costs = StepCosts(
            costs.device, costs.peak, all_slots=costs.all_slots, all_seconds=costs.all_seconds
        )
        left = self.schedule.share_left(self.step, seconds) * seconds
        return costs.numbers() | {"hours_left": left / 3600}
