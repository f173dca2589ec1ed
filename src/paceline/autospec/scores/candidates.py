"""The drafters that are scored, and the texts that all of them can be scored on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paceline.autospec.scores.matrix import NONE
from paceline.core import InvalidRequest
from paceline.core.names import local_path
from paceline.drafters.base import Drafter
from paceline.drafters.corpus_folder import (
    LEAD,
    CorpusAnswer,
    read_corpus_answers,
    read_corpus_manifest,
)
from paceline.drafters.kinds import BuildContext
from paceline.drafters.spec import BASELINES, make_drafters, parse_spec
from paceline.engine.build import build_engine
from paceline.engine.config import EngineConfig
from paceline.engine.costs import Costs
from paceline.models.batch import Network
from paceline.models.loader import load_model
from paceline.models.networks import sequence_features

TOGETHER = 16  # texts that are replayed side by side


@dataclass(slots=True)
class CandidateDrafters:
    """Drafters that are scored. Those that need more than texts have the target's network, with KV
    for `blocks` blocks; `costs` is the engine's table, where one was loaded."""

    model: str
    specs: dict[str, str]
    drafters: dict[str, Drafter]
    vocabulary: int
    longest_text: int
    network: Network | None = None
    blocks: int = 0
    costs: Costs | None = None

    @classmethod
    def load(
        cls, model: str, specs: Sequence[str], *, with_costs: bool = True, **options: Any
    ) -> CandidateDrafters:
        """Load drafters by their specs, NONE among them. The target is loaded where a drafter needs
        it, and for its cost table, unless `with_costs` is false. `options` are EngineConfig's.

        Raises InvalidRequest or ModelError.
        """
        wanted = [spec for spec in specs if spec != NONE]
        parsed = [parse_spec(spec) for spec in wanted]
        named = {spec.name: text for spec, text in zip(parsed, wanted, strict=True)}
        named |= {NONE: NONE} if NONE in specs else {}
        if not with_costs and all(spec.kind in BASELINES for spec in parsed):
            loaded = load_model(model)
            drafters = make_drafters(wanted, BuildContext(target=loaded))
            size = loaded.config.vocab_size
            return cls(loaded.name, named, drafters, size, loaded.max_context)
        fixed: dict[str, Any] = {
            "draft_policy": "fixed",
            "prefix_cache": False,
            "max_num_seqs": TOGETHER,
        }
        drafter = tuple(wanted) or None
        engine = build_engine(EngineConfig(model=model, drafter=drafter, **(fixed | options)))
        return cls(
            engine.model_name,
            named,
            dict(engine.drafters),
            engine.vocab_size,
            engine.max_model_len,
            engine.runner.network,
            engine.plan.num_blocks,
            engine.drafting.costs,
        )

    @property
    def layers(self) -> list[int]:
        """The target's layers that some drafter taps."""
        return sorted({layer for d in self.drafters.values() for layer in d.feature_layers})


class GroupFeatures:
    """The target's features of a group's texts, computed once for all drafters; `texts` is emptied
    before the next group."""

    def __init__(self, candidates: CandidateDrafters) -> None:
        self.texts: dict[tuple[int, ...], torch.Tensor] = {}
        self._network, self._layers = candidates.network, candidates.layers

    @torch.inference_mode()
    def of(self, text: Sequence[int], layers: Sequence[int]) -> torch.Tensor:
        """Return a text's outputs of `layers`, side by side: [tokens, layers * hidden]."""
        network, key = self._network, tuple(text)
        assert network is not None, "who taps layers has the network"
        if key not in self.texts:
            self.texts[key] = sequence_features(network, text, self._layers)
        whole = self.texts[key].view(len(text), len(self._layers), network.hidden_size)
        return whole[:, [self._layers.index(layer) for layer in layers]].flatten(1)


def scorable(
    candidates: CandidateDrafters, answers: Iterable[CorpusAnswer], counts: Counter[str]
) -> Iterator[CorpusAnswer]:
    """Yield the answers that every candidate can be scored on, the oldest first."""
    newest, known = _known_to_corpora(candidates.specs)
    for answer in sorted(answers, key=lambda answer: answer.time):
        size = len(answer.prompt_ids) + len(answer.output_ids)
        if len(answer.output_ids) < 2:
            counts["too_short"] += 1
        elif not answer.chosen_places:
            counts["all_forced"] += 1
        elif size > candidates.longest_text:
            counts["too_long"] += 1
        elif 0 < answer.time <= newest or (not answer.time and _content(answer) in known):
            counts["in_a_corpus"] += 1
        else:
            _check_ids(answer, candidates.vocabulary)
            yield answer


def _known_to_corpora(specs: Mapping[str, str]) -> tuple[float, set[tuple[object, ...]]]:
    """Return when the newest answer in a candidate's corpus was given, and the content of all."""
    newest, known = 0.0, set[tuple[object, ...]]()
    for text in specs.values():
        if text == NONE or (value := dict(parse_spec(text).options).get("corpus")) is None:
            continue
        folder = local_path(value, "corpus")
        newest = max(newest, read_corpus_manifest(folder, "corpus").newest)
        known.update(map(_content, read_corpus_answers(folder, "corpus")))
    return newest, known


def _content(answer: CorpusAnswer) -> tuple[object, ...]:
    return tuple(answer.prompt_ids[-LEAD:]), tuple(answer.output_ids)


def _check_ids(answer: CorpusAnswer, vocabulary: int) -> None:
    largest = max(max(answer.prompt_ids), max(answer.output_ids))
    if largest >= vocabulary:
        expected = f"token ids below {vocabulary}, this model's vocabulary"
        raise InvalidRequest("answers", largest, expected)
