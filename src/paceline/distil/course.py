"""The course of a distillation: steps of the student, saved so that a run goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict

import torch
from torch.nn.utils import clip_grad_norm_

from paceline.core import InvalidRequest, PacelineError
from paceline.core.signals import ending_on_signals
from paceline.distil.bound import Bounds
from paceline.distil.config import DistilConfig
from paceline.distil.inputs import Inputs
from paceline.distil.packs import TextPack, labelled, packs
from paceline.distil.student import Student
from paceline.distil.teacher import Teacher
from paceline.engine.grammar import Compiler
from paceline.models.loader import identity
from paceline.models.networks import DTYPES
from paceline.training.data import SHUFFLE
from paceline.training.losses import soft_loss
from paceline.training.optimizers import BETAS
from paceline.training.packs import Text, random_for
from paceline.training.state import load_state, replace_folder, save_state
from paceline.training.trackers import open_trackers

CANDIDATE = "candidate"  # the student at the end of the course, before it is judged
FINAL_SHARE = 0.1  # of the peak learning rate, at the end of the cosine
# What a resumed run may be told anew.
FREE = (
    "prompts", "tasks", "fall", "save_every", "drafter", "drafter_rows", "drafter_epochs",
)  # fmt: skip


class Diverged(PacelineError):
    """A gradient was not finite. The run is saved up to its last save."""


class Course:
    """A student on its way: its optimizer and step, which are saved and go on."""

    def __init__(self, config: DistilConfig, inputs: Inputs, show: Callable[[str], None]) -> None:
        self.config, self.inputs, self.show = config, inputs, show
        self.total = config.total_steps(len(inputs.train))
        dtype = DTYPES[config.numbers]
        self.student = Student(inputs.student, config.rank, dtype, config.device, config.seed)
        self.weights = self.student.learning()
        for weight in self.weights.values():
            weight.data = weight.data.float()
        self.teacher: Teacher | None = None
        if inputs.teacher is not None:
            student = inputs.student
            vocabulary = student.shape.vocab_size
            compiler = Compiler(student.tokenizer, vocabulary, student.eos_ids)
            self.teacher = Teacher(
                inputs.teacher,
                config.soft,
                vocabulary,
                config.device,
                config.quantize,
                Bounds(compiler, inputs.grammars),
            )
        self.optimizer = torch.optim.AdamW(
            self.weights.values(), lr=config.peak_lr, betas=BETAS, weight_decay=0.0
        )
        self.step, self.seconds, self._ending = 0, 0.0, False

    def run(self) -> bool:
        """Take the steps that are left, and write the student to CANDIDATE. Return False where
        somebody asked for an end before: the run is saved."""
        resumed = self._resume()
        numbers = sum(weight.numel() for weight in self.weights.values()) / 1e6
        start = f"going on at step {self.step} of" if resumed else "learning for"
        self.show(
            f"{start} {self.total} steps: {numbers:.1f} M weights, "
            f"{len(self.inputs.train)} texts, {self.config.texts} of them a step"
        )
        begin = self.step + (1 if resumed else 0)
        trackers = open_trackers((), self.config.folder, asdict(self.config), begin)
        try:
            with ending_on_signals(self.end):
                while self.step < self.total and not self._ending:
                    logged = self.take_step()
                    for tracker in trackers:
                        tracker.log(self.step, logged)
        finally:
            for tracker in trackers:
                tracker.close()
        if self.step < self.total:
            self._save()
            return False
        replace_folder(self.config.folder / CANDIDATE, self.student.save)
        return True

    def end(self) -> None:
        """End after the present step."""
        self._ending = True

    def take_step(self) -> dict[str, float]:
        """Take a step, with the loss on held-out texts and a save where they are due; return the
        numbers of the log."""
        logged = self._learn()
        last = self.step == self.total
        if last or not self.step % self.config.eval_every:
            logged["held_out"] = self.held_out_loss()
            self.show(_line(self.step, logged, self._left()))
        if last or not self.step % self.config.save_every:
            self._save()
        return logged

    def texts_of(self, step: int) -> list[Text]:
        """Return the texts of a step: all once per epoch, shuffled by the seed."""
        texts, first = self.inputs.train, step * self.config.texts
        places = [divmod(first + turn, len(texts)) for turn in range(self.config.texts)]
        orders = {
            epoch: random_for(self.config.seed, epoch, SHUFFLE).permutation(len(texts))
            for epoch, _ in places
        }
        return [texts[orders[epoch][place]] for epoch, place in places]

    def _learn(self) -> dict[str, float]:
        began = time.monotonic()
        texts = self.texts_of(self.step)
        labels = sum(len(labelled(text)) for text in texts)
        total, tokens = 0.0, 0
        for part in packs(texts, self.config.pack_tokens):
            loss = self._loss(part) / labels
            loss.backward()  # type: ignore[no-untyped-call]
            total, tokens = total + float(loss.detach()), tokens + len(part.ids)
        norm = clip_grad_norm_(self.weights.values(), self.config.clip)
        if not math.isfinite(float(norm)):
            raise Diverged(f"step {self.step}: the gradient is not finite; a lower lr may help")
        share = lr_share(self.step, self.total, self.config.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.peak_lr * share
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        took = time.monotonic() - began
        self.seconds += took
        return {
            "loss": total,
            "lr": self.config.peak_lr * share,
            "tokens_per_second": tokens / took,
            "seconds_per_step": took,
            "hours": self.seconds / 3600,
            "hours_left": self._left() / 3600,
        }

    def _loss(self, part: TextPack) -> torch.Tensor:
        """Return the sum over the pack's labels."""
        log_q = torch.log_softmax(self.student.logits(part).float(), dim=-1)
        if self.teacher is not None:
            return soft_loss("kl", log_q[None], self.teacher.soft(part.texts)).sum()
        return -log_q.gather(-1, part.labels[:, None].to(log_q.device)).sum()

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Return the mean cross entropy of held-out answers, in nats per token."""
        total, count = 0.0, 0
        for part in packs(self.inputs.held_out, self.config.pack_tokens):
            log_q = torch.log_softmax(self.student.logits(part).float(), dim=-1)
            labels = part.labels[:, None].to(log_q.device)
            total -= float(log_q.gather(-1, labels).sum())
            count += len(part.labels)
        return total / count

    def _left(self) -> float:
        """Return the seconds to the end of the last step."""
        return (self.total - self.step) * self.seconds / self.step

    def _settings(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self.config).items() if name not in FREE}

    def _digests(self) -> dict[str, object]:
        return {
            "student": identity(self.inputs.student)["weights_sha256"],
            "sets": [manifest.digest for manifest in self.inputs.manifests.values()],
        }

    def _save(self) -> None:
        state = {
            "config": self._settings(),
            "inputs": self._digests(),
            "total": self.total,
            "step": self.step,
            "seconds": self.seconds,
            "weights": {name: weight.detach() for name, weight in self.weights.items()},
            "optimizer": self.optimizer.state_dict(),
        }
        save_state(self.config.folder, state)

    def _resume(self) -> bool:
        state = load_state(
            self.config.folder, self._settings(), self._digests(), model=DistilConfig
        )
        if state is None:
            return False
        if state["total"] != self.total:
            field = "epochs" if self.config.steps is None else "steps"
            expected = f"the {state['total']} steps that the run began with, or another --out"
            raise InvalidRequest(field, self.total, expected)
        self.step, self.seconds = state["step"], state["seconds"]
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        return True


def lr_share(step: int, total: int, warmup: float) -> float:
    """Return the share of the peak learning rate in a step, counted from 0: a straight rise, then a
    cosine down to FINAL_SHARE (Loshchilov and Hutter 2017, arXiv 1608.03983)."""
    rising = math.ceil(warmup * total)
    if step < rising:
        return (step + 1) / rising
    over = (step - rising) / max(1, total - rising)
    return FINAL_SHARE + (1 - FINAL_SHARE) * (1 + math.cos(math.pi * over)) / 2


def _line(step: int, numbers: Mapping[str, float], left: float) -> str:
    return (
        f"step {step}: loss {numbers['loss']:.3f}, held out {numbers['held_out']:.3f}, "
        f"{numbers['tokens_per_second']:.0f} tokens/s, {left / 60:.0f} minutes left"
    )
