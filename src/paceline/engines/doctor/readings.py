"""The ways in which an engine may read a drafter's checkpoint, and what each would accept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core import Request, SamplingParams
from paceline.drafters.reference import Trained
from paceline.evaluate.doctor import other_readings
from paceline.models.dflash.batch import BlockOutput
from paceline.models.dflash.config import DFlashConfig

AT_ONCE = 16  # blocks of one forward
WINDOWS = (512, 1024, 2048, 4096)
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class JudgedRounds:
    """Rounds of one answer, all of whose draft tokens the answer itself can judge. Anchors are
    places in prompt and answer together; `accepted` is what the engine accepted."""

    name: str
    prompt_tokens: int
    anchors: Counts
    accepted: Counts


@dataclass(frozen=True, slots=True)
class DrafterReading:
    """One way to draft from a checkpoint.

    config     what the engine takes the checkpoint's config for
    slot       the slot that the first draft token is read from; 1 is the first mask
    masks      mask slots of a block; None: as many as tokens are drafted
    prompt     whether the draft sees the prompt's features
    own_mask   whether masks have the embedding that the checkpoint ships
    """

    label: str
    config: DFlashConfig
    slot: int = 1
    masks: int | None = None
    prompt: bool = True
    own_mask: bool = True


def readings_of(
    trained: Trained, target_theta: float, drafted: int, context: int
) -> list[DrafterReading]:
    """Return every mistaken reading that is told from the right one, for drafts of `drafted` tokens
    and texts of `context` tokens."""
    return list(_mistaken(trained, target_theta, drafted, context))


def _mistaken(
    trained: Trained, target_theta: float, drafted: int, context: int
) -> Iterator[DrafterReading]:
    config = trained.config
    for label, other, shift in other_readings(trained, target_theta):
        if not shift:
            yield DrafterReading(label, other)
    yield DrafterReading(
        "slots one place too early (the anchor's own slot first, as DSpark's)", config, 0
    )
    yield DrafterReading("slots one place too late (the first mask left out)", config, 2)
    yield DrafterReading("context without the prompt's features", config, prompt=False)
    if trained.drafter.checkpoint.mask_embedding is not None:
        label = "the target's mask embedding in place of the checkpoint's mask_embedding.pt"
        yield DrafterReading(label, config, own_mask=False)
    if drafted < config.max_draft_len:
        label = f"blocks of all {config.max_draft_len} masks, cut to {drafted}"
        yield DrafterReading(label, config, masks=config.max_draft_len)
    for window in WINDOWS:
        narrower = tuple(
            replace(kind, window=min(window, kind.window or window)) for kind in config.attention
        )
        if window < context and narrower != config.attention:
            yield DrafterReading(
                f"a window of {window} tokens", replace(config, attention=narrower)
            )


def expected_accepted(
    trained: Trained, reading: DrafterReading, rounds: JudgedRounds, drafted: int
) -> Counts:
    """Return how many of `drafted` tokens each round would accept under a reading: drafted from the
    true text up to the round's anchor, judged by the text behind it."""
    tokens, anchors = torch.tensor(trained.texts[rounds.name]), torch.from_numpy(rounds.anchors)
    guesses = draft_tokens(trained, reading, rounds, drafted)
    truth = tokens[anchors[:, None] + torch.arange(1, drafted + 1)]
    accepted: Counts = (guesses == truth).long().cumprod(1).sum(1).numpy()
    return accepted


@torch.inference_mode()
def draft_tokens(
    trained: Trained, reading: DrafterReading, rounds: JudgedRounds, drafted: int
) -> torch.Tensor:
    """Return what a reading drafts in each round, from the true text: [rounds, drafted]."""
    tokens = torch.tensor(trained.texts[rounds.name])
    first = 0 if reading.prompt else rounds.prompt_tokens
    masks = max(reading.masks or 0, reading.slot + drafted - 1)
    found = [torch.zeros(0, drafted, dtype=torch.long)]
    for start in range(0, len(rounds.anchors), AT_ONCE):
        anchors = torch.from_numpy(rounds.anchors[start : start + AT_ONCE])
        hidden = trained.hidden(
            reading.config, rounds.name, anchors, masks, first, own_mask=reading.own_mask
        )
        slots = hidden[:, reading.slot : reading.slot + drafted]
        found.append(_drafts(trained, reading.config, tokens[anchors].tolist(), slots))
    return torch.cat(found)


def _drafts(
    trained: Trained, config: DFlashConfig, anchors: Sequence[int], hidden: torch.Tensor
) -> torch.Tensor:
    """Return the draft tokens of slots' hidden states [blocks, slots, hidden]: the likeliest of
    each, or the path of a DFlash 2 drafter's selector."""
    logits = trained.head_logits(config, hidden)
    best = logits.argmax(-1)
    if trained.head_ids is not None:
        best = trained.head_ids[best]
    selector = trained.drafter.selector
    if selector is None:
        return best
    device, paths = trained.drafter.network.device, []
    for index, anchor in enumerate(anchors):
        params = SamplingParams(temperature=0)
        request = Request(id="doctor", prompt_ids=[anchor], params=params, tokens=[anchor])
        block = logits[index].to(device), hidden[index].to(device)
        output = BlockOutput(best[index].tolist(), (), *block)
        drawn = selector.walk(request, output, slice(0, len(best[index])), "argmax")
        paths.append([each.token for each in drawn])
    return torch.tensor(paths)
