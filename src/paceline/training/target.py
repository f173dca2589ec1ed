"""The frozen target: its features and distributions, kept in memory and on disk."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from paceline.models.any_target import TargetShape
from paceline.models.batch import BLOCK_SIZE, Network
from paceline.models.network import TorchNetwork
from paceline.models.networks import SharedStart, packed_outputs
from paceline.models.whole_sequences import logits_of, side_by_side, whole_output
from paceline.training.cost import target_operations
from paceline.training.feature_folder import FeatureFolder
from paceline.training.packs import Text
from paceline.training.seen import Seen
from paceline.training.top_k import top_k

GROUP_TOKENS = 4096  # of texts whose KV is in memory at once, behind the longest start they share


class TrainingTarget:
    """The frozen target, which reads training texts. `soft_tokens` 0 keeps features alone.

    The first texts that are read are kept in memory until `budget` bytes are full; the others come
    from `folder`, where there is one that has them, or are read each time. `computed_tokens` counts
    the tokens that were read, `computed_logits` those whose distribution was. With a `window` only
    what blocks of so many tokens of context may see is kept in memory. Unless `along_all`, the
    distribution is computed only along texts with a temperature. `embedding` and
    `head`, [vocabulary, hidden], are the target's; features lie on `device`.
    """

    embedding: torch.Tensor
    head: torch.Tensor
    device: torch.device | str = "cpu"
    folder: FeatureFolder | None = None
    window: int | None = None
    along_all = True

    def __init__(
        self, shape: TargetShape, layers: Sequence[int], budget: int, soft_tokens: int = 0
    ) -> None:
        self.shape = shape
        self._layers, self.soft_tokens = tuple(layers), soft_tokens
        self._left, self._kept = budget, dict[int, Seen]()
        self._preferred: dict[int, int] = {}
        self.computed_tokens = self.computed_logits = 0

    def prefer(self, texts: Sequence[Text]) -> None:
        """Keep these texts before any others."""
        self._preferred = {text.number: len(text) - text.needed(self.window) for text in texts}

    @property
    def in_memory(self) -> Collection[int]:
        """The numbers of the texts that are kept in memory."""
        return self._kept.keys()

    def expect(self, texts: Sequence[Text]) -> None:
        """Begin to read from disk what is there of texts that are asked for soon."""
        if self.folder is not None:
            self.folder.expect([text for text in texts if text.number not in self._kept])

    def fetch(self, texts: Sequence[Text]) -> None:
        """Get the share of this process ready of texts that are read next. All processes call this
        together, also with no texts, before they read any text of it."""

    def read(self, text: Text) -> Seen:
        return self.read_all([text])[0]

    def read_all(self, texts: Sequence[Text]) -> list[Seen]:
        """Read texts together, which costs less than one after the other; bits are the same."""
        fresh = {text.number: text for text in texts if text.number not in self._kept}
        found = self._stored(fresh.values())
        missing = [text for number, text in fresh.items() if number not in found]
        computed = self._compute(missing) if missing else []
        self.computed_tokens += sum(map(len, missing))
        for text, seen in zip(missing, computed, strict=True):
            found[text.number] = seen
            if self.folder is not None:
                self.folder.write(text, seen)
        for number, seen in found.items():
            found[number] = seen.since(fresh[number].needed(self.window))
            self._keep_within_budget(fresh[number], found[number])
        return [found.get(text.number) or self._kept[text.number] for text in texts]

    def _stored(self, texts: Iterable[Text]) -> dict[int, Seen]:
        """Return what the folder has of texts, by their numbers."""
        found: dict[int, Seen] = {}
        if self.folder is not None:
            for text in texts:
                seen = self.folder.read(text)
                if seen is not None:
                    features = seen.features.to(self.device, non_blocking=True)
                    found[text.number] = replace(seen, features=features)
        return found

    def _keep_within_budget(self, text: Text, seen: Seen) -> None:
        waiting = self._preferred.pop(text.number, 0)
        bytes_per_token = seen.bytes / len(seen.features)
        reserved = 0.0 if waiting else bytes_per_token * sum(self._preferred.values())
        if seen.bytes <= self._left - reserved:
            self._left -= seen.bytes
            self._kept[text.number] = seen

    def operations(self, tokens: int, logits: int) -> float:
        """Return the floating-point operations of reading so many tokens, with the distribution of
        so many of them, without attention itself, which is a few percent."""
        return target_operations(self.shape, tokens, logits)

    def _compute(self, texts: Sequence[Text]) -> list[Seen]:
        raise NotImplementedError

    def close(self) -> None:
        """Free what the target holds outside this process."""

    def _wanted(self, text: Text) -> np.ndarray:
        """Mark the tokens behind which something is learnt from the target's distribution."""
        wanted = np.zeros(len(text), dtype=bool)
        if self.soft_tokens and (text.temperature > 0 or self.along_all):
            wanted[:-1] = text.said[1:].numpy()
        return wanted

    def _seen(
        self,
        features: torch.Tensor,
        soft: Sequence[tuple[torch.Tensor, torch.Tensor]],
        wanted: torch.Tensor,
    ) -> Seen:
        """Return what was seen of a text, with zeros where no distribution was wanted."""
        if not self.soft_tokens:
            return Seen(features)
        likely = torch.zeros(len(features), self.soft_tokens, dtype=torch.int32)
        probabilities = torch.zeros(len(features), self.soft_tokens, dtype=torch.float16)
        if soft:
            likely[wanted] = torch.cat([part for part, _ in soft])
            probabilities[wanted] = torch.cat([part for _, part in soft])
        return Seen(features, likely, probabilities)


class LocalTarget(TrainingTarget):
    """A target whose network is in this process. No other code may use the KV of the network.

    Texts that begin alike, as those of an application do, have their start computed once: a later
    text reads the blocks of KV of an earlier one, or of the last ones that were read before.
    `whole` reads texts side by side without that KV, as is best on CUDA (models.whole_sequences);
    their features stay on the network's device.
    """

    def __init__(
        self,
        network: Network,
        shape: TargetShape,
        layers: Sequence[int],
        budget: int,
        soft_tokens: int = 0,
        whole: bool = False,
    ) -> None:
        super().__init__(shape, layers, budget, soft_tokens)
        self._network, self._room = network, 0
        self._last: _LastText | None = None
        self._whole: TorchNetwork | None = None
        if whole:
            if not isinstance(network, TorchNetwork):
                raise TypeError(f"no whole sequences with a {type(network).__name__}")
            self._whole, self.device = network, network.device
        everything = torch.arange(network.vocab_size)
        self.embedding = network.embedding_rows(everything)
        self.head = network.head_rows(everything)

    def _compute(self, texts: Sequence[Text]) -> list[Seen]:
        if self._whole is not None:
            return self._compute_whole(self._whole, texts)
        seen: dict[int, Seen] = {}
        marked = [_MarkedText(text.ids, self._wanted(text), self._first(text)) for text in texts]
        # First a text whose start is in the KV still.
        kept = [self._in_kv(text) for text in marked]
        order = sorted(range(len(texts)), key=lambda index: -kept[index])
        for group in _groups(marked, order):
            views = self._compute_group([marked[index] for index in group.indices], group.starts)
            seen.update(zip(group.indices, views, strict=True))
        return [seen[index] for index in range(len(texts))]

    def _compute_whole(self, network: TorchNetwork, texts: Sequence[Text]) -> list[Seen]:
        seen: dict[int, Seen] = {}
        for group in side_by_side([len(text) for text in texts]):
            output = whole_output(network, [texts[index].ids for index in group], self._layers)
            for row, index in enumerate(group):
                wanted = torch.from_numpy(self._wanted(texts[index]))
                features = output.features[row, : len(wanted)].clone()
                soft: list[tuple[torch.Tensor, torch.Tensor]] = []
                if self.soft_tokens:
                    rows = output.last[row, : len(wanted)][wanted.to(network.device)]
                    self.computed_logits += len(rows)
                    for logits in logits_of(network, rows):
                        soft.append(likely_tokens(logits, self.soft_tokens))
                seen[index] = self._seen(features, soft, wanted)
        return [seen[index] for index in range(len(texts))]

    def _first(self, text: Text) -> int:
        """Return the token from which on a text is kept. A folder has whole texts."""
        return text.needed(self.window) if self.folder is None else 0

    def _in_kv(self, text: _MarkedText) -> int:
        """Return the tokens with which a text begins as the one whose KV is there still."""
        return 0 if self._last is None else _alike(self._last.text, text)

    def _compute_group(
        self, texts: Sequence[_MarkedText], starts: Sequence[SharedStart]
    ) -> list[Seen]:
        blocks = sum(start.own_blocks(len(t.ids)) for t, start in zip(texts, starts, strict=True))
        if blocks > self._room:
            # Growing loses what is there: a later group of the same start needs some more blocks.
            longest = max(len(text.ids) for text in texts) + GROUP_TOKENS
            room = max(blocks, -(-longest // BLOCK_SIZE))
            self._network.allocate_kv(room)
            self._room, self._last = room, None
        kept, last = self._in_kv(texts[0]), self._last
        self._last = None
        # Counted, and not computed.
        self.computed_tokens -= kept + sum(start.tokens for start in starts)
        features: list[list[torch.Tensor]] = [[] for _ in texts]
        soft: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in texts]
        ids, wanted = [text.ids.tolist() for text in texts], [text.wanted for text in texts]
        packed = packed_outputs(self._network, ids, self._layers, wanted, starts, kept)
        for pieces, output in packed:
            assert output.features is not None
            taken = 0
            for piece in pieces:
                features[piece.sequence].append(output.features[piece.rows].cpu())
                count = int(wanted[piece.sequence][piece.start : piece.end].sum())
                logits = output.logits[taken : taken + count]
                taken += count
                self.computed_logits += count
                if count:
                    soft[piece.sequence].append(likely_tokens(logits, self.soft_tokens))
        begun = [kept, *(start.tokens for start in starts[1:])]
        rests: list[Seen] = []
        for index, first in enumerate(begun):
            marks = torch.from_numpy(wanted[index][first:])
            rest = self._seen(torch.cat(features[index]), soft[index], marks)
            rests.append(replace(rest, first=first))

        def view(index: int, first: int) -> Seen:
            rest = rests[index]
            if rest.first <= first:
                return rest.since(first)
            if index or last is None:
                return rest.after(view(starts[index].of, first), first)
            return rest.after(last.seen, first)

        self._last = _LastText(texts[0], view(0, 0))
        return [view(index, text.first) for index, text in enumerate(texts)]


@dataclass(frozen=True, slots=True)
class _MarkedText:
    """The tokens of a text, int64, those behind which the distribution is `wanted`, bool, and the
    `first` one that is kept."""

    ids: torch.Tensor
    wanted: np.ndarray
    first: int


@dataclass(frozen=True, slots=True)
class _LastText:
    """The text whose KV lies in the network's first blocks, and all that was seen of it."""

    text: _MarkedText
    seen: Seen


@dataclass(slots=True)
class _Group:
    """Texts that are read together, by their places in a list, and what each shares with an earlier
    one of them. `tokens` are theirs, what is shared once; `shared` is the longest start."""

    indices: list[int] = field(default_factory=list)
    starts: list[SharedStart] = field(default_factory=list)
    tokens: int = 0
    shared: int = 0


def _groups(texts: Sequence[_MarkedText], order: Sequence[int]) -> Iterator[_Group]:
    """Split texts, in this order, so that the KV of a group stays small: GROUP_TOKENS behind the
    longest start that texts share, or one longer text."""
    group = _Group()
    for index in order:
        start = _shared_start(texts, group.indices, index)
        own, shared = len(texts[index].ids) - start.tokens, max(group.shared, start.tokens)
        if group.indices and group.tokens + own - shared > GROUP_TOKENS:
            yield group
            group, start = _Group(), SharedStart()
            own, shared = len(texts[index].ids), 0
        group.indices.append(index)
        group.starts.append(start)
        group.tokens, group.shared = group.tokens + own, shared
    if group.indices:
        yield group


def _shared_start(texts: Sequence[_MarkedText], earlier: Sequence[int], index: int) -> SharedStart:
    """Return the longest start of a text that an earlier one of its group has as well."""
    longest = SharedStart()
    for place, other in enumerate(earlier):
        tokens = _alike(texts[other], texts[index])
        if tokens > longest.tokens:
            longest = SharedStart(place, tokens)
    return longest


def _alike(earlier: _MarkedText, text: _MarkedText) -> int:
    """Return the tokens, in whole blocks, with which both begin, the same ones wanted. At least one
    token of `text` is its own."""
    most = min(len(earlier.ids), len(text.ids) - 1)
    alike = (earlier.ids[:most] == text.ids[:most]).numpy()
    alike &= earlier.wanted[:most] == text.wanted[:most]
    same = most if alike.all() else int(alike.argmin())
    return same // BLOCK_SIZE * BLOCK_SIZE


def likely_tokens(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` most likely tokens of each row, int32, and their probabilities,
    float16."""
    logits = logits.float()
    top = top_k(logits, count)
    normaliser = logits.logsumexp(-1, keepdim=True)
    return top.places.int().cpu(), (top.values - normaliser).exp().half().cpu()
