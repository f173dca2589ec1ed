"""The settings of a distillation: the type, bounds, default and help text of each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.errors import together
from paceline.core.field_types import Between
from paceline.training.config import AboveZero, Amount, Count, Sets, Share, TextLength

ADAPTER_LR, WHOLE_LR = 2e-4, 1e-5  # peaks: of LoRA's matrices, and of all weights
SOFT_TOKENS = 32
DRAFTER_EPOCHS = 4.0


@checked
class DistilConfig:
    """Everything that decides what a run computes, and where it writes. The descriptions of the
    fields are the help texts of `paceline distil`."""

    student: str = about("the smaller model: a name that `paceline list` shows, folder or hub id")
    sets: Sets = about("folders that `paceline synth` wrote with the larger model")
    out: str = about("folder of the run; a student that passes is kept in its `student`")
    objective: Literal["hard", "kl"] = about(
        "what is learnt: the larger model's answers, or its distribution along them", "hard"
    )
    teacher: str | None = about(
        "with objective kl: the larger model", None, "the name that the sets state"
    )
    soft_tokens: Annotated[int, Between(1, 4096)] | None = about(
        "with objective kl: tokens of the distribution that count", None, f"{SOFT_TOKENS}"
    )
    quantize: Literal["int8"] | None = about(
        "with objective kl: the larger model's linear layers, as it served", None, "none"
    )
    rank: Annotated[int, Between(0, 1024)] = about(
        "rank of the LoRA matrices that learn; 0 trains all weights", 32
    )
    steps: Count | None = about("optimizer steps", None)
    epochs: AboveZero | None = about("passes over the texts, in place of --steps", None, "2")
    texts: Amount = about("texts of a step", 16)
    pack_tokens: Annotated[int, Between(64, 1 << 20)] = about(
        "tokens that are computed at a time; a start that texts share counts once", 4096
    )
    max_tokens: TextLength = about("tokens after which a text is cut", 2048)
    lr: Share | None = about(
        "peak learning rate of AdamW", None, f"{ADAPTER_LR:g}, or {WHOLE_LR:g} with rank 0"
    )
    warmup: Share = about("share of the run in which the learning rate rises", 0.05)
    clip: AboveZero = about("largest norm of a gradient", 1.0)
    seed: Annotated[int, Between(0, (1 << 63) - 1)] = about(
        "decides LoRA's first weights and the order of the texts", 0
    )
    dtype: Literal["bfloat16", "float32"] | None = about(
        "numbers of the frozen weights; what learns is float32",
        None,
        "bfloat16 on CUDA, float32 on a CPU",
    )
    device: Literal["cpu", "cuda"] = about("device to compute on", "cpu")
    threads: Annotated[int, Between(1, 4096)] | None = about("threads of the CPU", None, "all")
    eval_every: Count = about("steps between losses on held-out texts", 20)
    save_every: Count = about("steps between saves", 20)
    prompts: Count = about("prompts of each split that student and teacher are compared on", 64)
    tasks: dict[str, str] = about(
        "NAME=FILE of tasks with known answers that must not get worse, repeatable", dict
    )
    fall: Share = about("most that a share of right answers to tasks may fall by", 0.05)

    drafter: str | None = about(
        "app.yaml: the student that is kept answers this application's prompts, and a drafter for "
        "it learns from that",
        None,
    )
    drafter_rows: Count | None = about(
        "with --drafter: rows of the student's answers", None, "app.yaml's size"
    )
    drafter_epochs: AboveZero | None = about(
        "with --drafter: passes of the drafter's training over them", None, f"{DRAFTER_EPOCHS:g}"
    )

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise together(problems)

    def _problems(self) -> Iterator[InvalidRequest]:
        if self.steps is not None and self.epochs is not None:
            yield InvalidRequest("steps", self.steps, "either steps or epochs")
        for name in ("teacher", "soft_tokens", "quantize"):
            value = getattr(self, name)
            if value is not None and self.objective != "kl":
                yield InvalidRequest(name, value, "objective kl beside it")
        for name in ("drafter_rows", "drafter_epochs"):
            if getattr(self, name) is not None and self.drafter is None:
                yield InvalidRequest(name, getattr(self, name), "drafter beside it")

    def total_steps(self, texts: int) -> int:
        """Return the optimizer steps of the whole run over so many texts."""
        if self.steps is not None:
            return self.steps
        return max(1, math.ceil((self.epochs or 2.0) * texts / self.texts))

    @property
    def peak_lr(self) -> float:
        return self.lr if self.lr is not None else ADAPTER_LR if self.rank else WHOLE_LR

    @property
    def numbers(self) -> str:
        """Return the name of the frozen weights' numbers."""
        return self.dtype or ("bfloat16" if self.device == "cuda" else "float32")

    @property
    def soft(self) -> int:
        """Return how many tokens of the teacher's distribution count; 0 for its answers alone."""
        return (self.soft_tokens or SOFT_TOKENS) if self.objective == "kl" else 0

    @property
    def folder(self) -> Path:
        return Path(self.out)
