"""Training texts and their order, decided by counters alone: a resumed run takes the texts that an
uninterrupted run would have taken."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.core import InvalidRequest
from paceline.dataset.loops import loop_start
from paceline.dataset.training_set import (
    PARTS,
    Manifest,
    Part,
    TrainingRow,
    read_binding,
    read_manifest,
    read_rows,
)
from paceline.training.config import TrainConfig
from paceline.training.packs import Pick, Text, draw_anchors, random_for, valid_anchors

SHUFFLE = (1 << 32) - 1  # stands for the order where draws of a text have its number
# A drafter's mask token was chosen when no text held it. A run that goes on from the drafter leaves
# out texts with that token, up to this share of all; more of them are another kind of text.
FEW = 0.01
LEFT_OUT = "texts of its {} split, whose prompts another set trains on"
# With any of these in an application's sampling, answers are not drawn from the plain distribution.
SHAPING = (
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


def read_texts(
    folders: Sequence[Path],
    split: str,
    max_tokens: int,
    first: int = 0,
    parts: Collection[str] = PARTS,
) -> list[Text]:
    """Read the texts of a split that are of these parts, numbered from `first` on and cut to
    `max_tokens`. Texts without an anchor are left out, and so are the loops of an answer. Raises
    InvalidRequest (field `sets`) where none is left."""
    return [
        text for texts in read_by_set(folders, split, max_tokens, first, parts) for text in texts
    ]


def read_by_set(
    folders: Sequence[Path],
    split: str,
    max_tokens: int,
    first: int = 0,
    parts: Collection[str] = PARTS,
) -> list[list[Text]]:
    """Read texts as read_texts() does; return those of each folder."""
    by_set: list[list[Text]] = []
    for folder in folders:
        app, texts = read_manifest(folder).app, list[Text]()
        by_set.append(texts)
        for row in read_rows(folder, split):
            if row.part not in parts:
                continue
            # Of a tuple, torch makes a tensor several times as slowly as numpy an array.
            ids = torch.from_numpy(np.array(row.ids[:max_tokens], np.int64))
            said = torch.zeros(len(ids), dtype=torch.bool)
            for start, end in row.spans:
                looping = loop_start(row.ids[start:end])
                said[start : end if looping is None else start + looping] = True
            if len(valid_anchors(said)):
                end = int(said.nonzero()[-1]) + 1  # nobody looks behind it
                texts.append(Text(first, ids[:end], said[:end], row.source, _drawn_at(row, app)))
                first += 1
    if not any(by_set):
        names = ", ".join(str(folder) for folder in folders)
        expected = f"a set whose split {split!r} has answers of two tokens or more"
        raise InvalidRequest("sets", names, expected)
    return by_set


def _drawn_at(row: TrainingRow, app: Mapping[str, Any]) -> float:
    """Return the temperature of a row whose answer was drawn from the target's distribution alone,
    and 0 for others. `app` is what the set's manifest says of its application."""
    description = app.get("description")
    if description is None:
        return 0.0  # the set does not say how it was sampled
    sampling, bound = description.get("sampling") or {}, read_binding(app, "app")
    if bound is None:  # sets that are older than bindings have the grammar in the description
        free = not (description.get("grammar") or description.get("tools"))
    else:
        free = bound.of(row.source) is None
    if not free or any(sampling.get(name) is not None for name in SHAPING):
        return 0.0
    return row.temperature


def without_token(texts: Sequence[Text], token: int) -> list[Text]:
    """Return the texts without `token`."""
    return [text for text in texts if not bool((text.ids == token).any())]


def token_counts(texts: Sequence[Text], vocabulary: int) -> torch.Tensor:
    """Return how often the target said each token: int64 [vocabulary]."""
    said = torch.cat([text.ids[text.said] for text in texts])
    return torch.bincount(said, minlength=vocabulary)


def seen_tokens(texts: Sequence[Text]) -> list[int]:
    """Return the tokens that stand in the texts, ascending."""
    counts = torch.bincount(torch.cat([text.ids for text in texts]))
    return [int(token) for token in counts.nonzero()[:, 0]]


def frequent_tokens(counts: torch.Tensor, most: int) -> torch.Tensor:
    """Return at most `most` tokens that were said most often, ascending int64 [n]; ties go to the
    lower id."""
    order = torch.sort(counts, descending=True, stable=True).indices
    return order[: min(most, int((counts > 0).sum()))].sort().values


def check_target(manifests: Mapping[str, Manifest], identity: Mapping[str, str]) -> None:
    """Raise InvalidRequest where a set was made with other weights, tokens or template."""
    for folder, manifest in manifests.items():
        for key, meaning in (
            ("tokenizer_sha256", "tokenizer"),
            ("template", "chat template"),
            ("weights_sha256", "weights"),
        ):
            digest, own_digest = manifest.target.get(key), identity[key]
            if digest is not None and digest != own_digest:
                expected = (
                    f"a set made with this model's {meaning} ({key} {own_digest[:12]}); this one "
                    f"was made with {manifest.target.get('name')} ({digest[:12]})"
                )
                raise InvalidRequest("sets", folder, expected)


@dataclass(slots=True)
class Data:
    """The texts of a run. Each has a number of its own, by which its features are kept once.
    `left_out` is the number of texts by set that are not judged: another set trains on their
    prompts."""

    train: list[Text]
    held_out: dict[str, list[Text]]
    out_of_domain: dict[str, list[Text]]
    manifests: dict[str, Manifest]
    foreign: dict[str, list[Text]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def judged(self) -> Iterator[Text]:
        """Yield the texts that an evaluation reads."""
        for sets in (self.held_out, self.out_of_domain, self.foreign):
            for texts in sets.values():
                yield from texts


def read_data(
    config: TrainConfig,
    target_identity: Mapping[str, str],
    most: int,
    show: Callable[[str], None] | None = None,
) -> Data:
    """Read the texts of the sets. `held_out` is that split of the training sets and of the sets
    named so, and `foreign` is that split of the same. `out_of_domain` is the `neighbour` split of
    the training sets, and the sets named so; where a training set holds out text of its task, its
    plain chat counts as out of domain too, as NAME/replay.

    Sets do not know of one another, so that one may train on what another holds out. Such texts are
    left out of what is judged, and `show` is told. A set's own splits are as it made them."""
    named = [(Path(folder).name, folder) for folder in config.sets]
    folders = dict(named)
    manifests: dict[str, Manifest] = {}
    for name, folder in (*named, *config.held_out.items(), *config.out_of_domain.items()):
        if name in manifests:
            raise InvalidRequest("sets", name, "a name of its own for every set")
        manifests[name] = read_manifest(Path(folder))
    for option, sets, splits in (
        ("held_out", config.held_out, ("held_out", "foreign")),
        ("out_of_domain", config.out_of_domain, ("held_out",)),
    ):
        for name, folder in sets.items():
            if not any(map(manifests[name].of, splits)):
                raise InvalidRequest(option, folder, f"a set with a {' or '.join(splits)} split")
    check_target(manifests, target_identity)
    by_set = read_by_set([Path(folder) for folder in config.sets], "train", most)
    texts = [text for set_texts in by_set for text in set_texts]
    trained = {n: set(map(_prompt, of)) for n, of in zip(folders, by_set, strict=True)}
    count, left_out = len(texts), Counter[str]()
    held: dict[str, list[Text]] = {}
    other: dict[str, list[Text]] = {}
    foreign: dict[str, list[Text]] = {}
    for result, split, where in (
        (held, "held_out", folders | config.held_out),
        (foreign, "foreign", folders | config.held_out),
        (other, "neighbour", folders),
        (other, "held_out", config.out_of_domain),
    ):
        for name, folder in where.items():
            groups = {name: PARTS}
            if result is held and name in folders:
                groups = _held_groups(name, Path(folder))
            for group, parts in groups.items():
                if manifests[name].of(split):
                    split_texts = read_texts([Path(folder)], split, most, count, parts)
                    count += len(split_texts)
                    kept = _unseen(split_texts, name, trained)
                    if fewer := len(split_texts) - len(kept):
                        left_out[name] += fewer
                        if show is not None:
                            told = f"{fewer} of {len(split_texts)}" if kept else "all"
                            show(f"{group}: left out {told} {LEFT_OUT.format(split)}")
                    if kept:
                        judged = result if group == name else other
                        judged[group] = _spread(kept, config.eval_texts)
    _check_judged(config, held, foreign, other)
    return Data(texts, held, other, manifests, foreign, left_out)


def _unseen(texts: list[Text], name: str, trained: Mapping[str, set[bytes]]) -> list[Text]:
    """Return the texts of a set whose prompts no other set trains on."""
    others = set[bytes]().union(*(trained[other] for other in trained if other != name))
    return [text for text in texts if _prompt(text) not in others]


def _prompt(text: Text) -> bytes:
    """Return a digest of the tokens before the first that was said."""
    start = int(text.said.nonzero()[0])
    return hashlib.blake2b(text.ids[:start].numpy().tobytes(), digest_size=16).digest()


def _check_judged(
    config: TrainConfig,
    held: Mapping[str, list[Text]],
    foreign: Mapping[str, list[Text]],
    other: Mapping[str, list[Text]],
) -> None:
    """Raise InvalidRequest where nothing is left of what a run has to be judged by."""
    for option, sets, judged in (
        ("held_out", config.held_out, {**held, **foreign}),
        ("out_of_domain", config.out_of_domain, other),
    ):
        for name, folder in sets.items():
            if name not in judged:
                expected = f"a set with prompts that no set of the run trains on ({name} has none)"
                raise InvalidRequest(option, folder, expected)
    if config.on_regression == "stop" and not other:
        raise InvalidRequest("on_regression", "stop", "a set out of domain to watch")
    if not held:
        expected = "a set with a held_out split, or NAME=FOLDER of another one that has it"
        raise InvalidRequest("held_out", config.held_out, expected)


def _held_groups(name: str, folder: Path) -> dict[str, tuple[Part, ...]]:
    """Return the parts of a training set's held-out split by the name that each is judged under."""
    parts = {row.part for row in read_rows(folder, "held_out")}
    if parts != {"on_task", "replay"}:
        return {name: PARTS}
    return {name: ("on_task",), f"{name}/replay": ("replay",)}


def _spread(texts: list[Text], most: int) -> list[Text]:
    """Return at most `most` texts, evenly spread."""
    places = torch.linspace(0, len(texts) - 1, min(most, len(texts)))
    return [texts[int(place)] for place in places]


def without_mask(data: Data, mask: int, show: Callable[[str], None] | None) -> Data:
    """Return `data` without its few texts that hold the drafter's mask token. Where there are many,
    all of them stay, and check_fit() refuses the drafter."""
    kept = without_token(data.train, mask)
    left_out = len(data.train) - len(kept)
    if not 0 < left_out <= FEW * len(data.train):
        return data
    if show is not None:
        texts = "1 text that holds" if left_out == 1 else f"{left_out} texts that hold"
        show(f"left out {texts} token {mask}, the drafter's mask token")
    return replace(data, train=kept)


def texts_in_order(data: Data, order: Order, steps: int | None) -> list[Text]:
    """Return every text that a run reads once, in the order in which it is read first: those that
    are judged, then those of the steps, of which a run of some hours (None) reads all."""
    texts = {text.number: text for text in data.judged()}
    most = len(texts.keys() | {text.number for text in data.train})
    taken = None if steps is None else steps * order.per_step
    for text in islice(order.texts_from(0), taken):
        if len(texts) == most:
            break
        texts[text.number] = text
    return list(texts.values())


class Order:
    """The texts and anchors of each step, which takes `per_step` texts: all of them once per epoch,
    shuffled by the seed. Those of the next step are drawn while this one is computed."""

    def __init__(self, texts: Sequence[Text], per_step: int, anchors: int, seed: int) -> None:
        self._texts, self.per_step = texts, per_step
        self._anchors, self._seed = anchors, seed
        self._shuffled: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))
        self._drawer = ThreadPoolExecutor(1)
        self._drawn: tuple[int, Future[list[Pick]]] | None = None

    def step(self, step: int) -> list[Pick]:
        if self._drawn is None or self._drawn[0] != step:
            self._drawn = step, self._drawer.submit(self._draw, step)
        picks = self._drawn[1].result()
        self._drawn = step + 1, self._drawer.submit(self._draw, step + 1)
        return picks

    def coming(self) -> list[Pick]:
        """Return what the step after the last one will take."""
        assert self._drawn is not None, "step() comes first"
        return self._drawn[1].result()

    def texts_from(self, step: int) -> Iterator[Text]:
        """Yield the texts of a step and of all that follow it, without end."""
        epoch, place = divmod(step * self.per_step, len(self._texts))
        while True:
            for index in self._permutation(epoch)[place:]:
                yield self._texts[index]
            epoch, place = epoch + 1, 0

    def _draw(self, step: int) -> list[Pick]:
        return [self._pick(step * self.per_step + turn) for turn in range(self.per_step)]

    def _pick(self, turn: int) -> Pick:
        epoch, place = divmod(turn, len(self._texts))
        if self._shuffled[0] != epoch:
            self._shuffled = epoch, self._permutation(epoch)
        text = self._texts[self._shuffled[1][place]]
        return Pick(text, draw_anchors(text, self._anchors, self._seed, epoch))

    def _permutation(self, epoch: int) -> np.ndarray:
        return random_for(self._seed, epoch, SHUFFLE).permutation(len(self._texts))
