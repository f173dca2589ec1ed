"""The rows of an evaluation, from answers that came over HTTP."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence

from paceline.core import Grammar
from paceline.core.rounds import AR
from paceline.dataset.loops import loop_start
from paceline.engines.answers import EngineAnswer, EngineAsk, Json
from paceline.engines.evaluation.prompts import ServedPrompt
from paceline.engines.evaluation.rounds import RoundsAnswer
from paceline.evaluate.measure import digest, grammar_digest
from paceline.evaluate.result import BLOCK, RequestRow

# What a server may fill in from a model's generation_config.json where a request says nothing.
NEUTRAL: Mapping[str, object] = {
    "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}  # fmt: skip
# The names of grammars in `structured_outputs`, which vLLM and our own server take.
STRUCTURED = {"json_schema": "json", "regex": "regex", "lark": "grammar"}


Sides = Mapping[str, Sequence[RoundsAnswer]]  # of one prompt: all runs, by the name of the side


def ask_of(prompt: ServedPrompt, tokens: int, temperature: float, seed: int) -> EngineAsk:
    """Return the request for one answer. It shares no cached prefix and no remembered answer with
    any other request."""
    fields: Json = {**NEUTRAL, "cache_salt": uuid.uuid4().hex}
    if prompt.grammar is not None:
        fields["structured_outputs"] = _structured(prompt.grammar)
    return EngineAsk(prompt.prompt, tokens, temperature, seed, fields=fields)


def row_of(prompt: ServedPrompt, sides: Sides, seed: int) -> RequestRow:
    """Return the row of a prompt. Its text is the engine's own; where AR's differs, both are timed
    over as many tokens as both have before they loop."""
    text = sides[BLOCK][0].answer
    counted = _counted(text)
    ids = text.prompt_token_ids
    given = prompt.prompt if ids is None else ids
    everything = [each.answer for answers in sides.values() for each in answers]
    timed = min(map(_counted, everything))
    plain = sides.get(AR, ())
    others = {name: answers for name, answers in sides.items() if name != AR}
    row: RequestRow = {
        "prompt": prompt.name,
        "prompt_sha256": _digest(given),
        "prompt_tokens": (text.prompt_tokens or 0) if ids is None else len(ids),
        "seed": seed,
        "output_tokens": len(text.token_ids),
        "output_sha256": digest(text.token_ids),
        "counted_tokens": counted,
        "grammar_sha256": None if prompt.grammar is None else grammar_digest(prompt.grammar),
        "finish_reason": text.finish_reason,
        "same_text": {name: _same(answers, plain[0]) for name, answers in others.items() if plain},
        "seconds": {
            name: [_seconds(each.answer, timed) for each in answers]
            for name, answers in sides.items()
        },
        "timed_tokens": timed,
        "rounds": {
            name: [[r.position, r.drafted, r.accepted] for r in answers[0].rounds or ()]
            for name, answers in others.items()
        },
    }
    return row


def _structured(grammar: Grammar) -> Json:
    source = json.loads(grammar.source) if grammar.kind == "json_schema" else grammar.source
    return {STRUCTURED[grammar.kind]: source}


def _counted(answer: EngineAnswer) -> int:
    start = loop_start(answer.token_ids)
    return len(answer.token_ids) if start is None else start


def _digest(prompt: Sequence[object]) -> str:
    if all(isinstance(item, int) for item in prompt):
        return digest([int(str(item)) for item in prompt])
    text = json.dumps(prompt, ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _same(answers: Sequence[RoundsAnswer], plain: RoundsAnswer) -> bool:
    said = (plain.answer.token_ids, plain.answer.finish_reason)
    return all((each.answer.token_ids, each.answer.finish_reason) == said for each in answers)


def _seconds(answer: EngineAnswer, count: int) -> float | None:
    """Return the seconds from the first to the last of `count` tokens; None for fewer than two."""
    last = min(count, len(answer.arrivals))
    return answer.arrivals[last - 1] - answer.arrivals[0] if last > 1 else None
