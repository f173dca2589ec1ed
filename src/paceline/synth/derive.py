"""Prompts made from other prompts: with the noise of typing and speech, or to be said anew.

Everything here is drawn from the seed and the prompt alone, so that a resumed run makes the same. A
prompt keeps the origin of the one that it was made from, and so its split.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from paceline.synth.prompts import SourcePrompt, drawn, keyed, make_prompt
from paceline.synth.source_spec import Noise, NoisySource, RewriteSource

EVERY = 6  # words for each word that is changed; one at least
LETTERS = re.compile(r"[^\W\d_]{3,}")  # what a slip can happen in, and still be read
FILLERS = ("um", "uh", "well", "like", "you know", "I mean", "so", "er")


def noisy(
    prompts: Iterable[SourcePrompt], spec: NoisySource, seed: int
) -> Iterator[SourcePrompt | None]:
    """Yield each prompt with noise of the kind that is drawn for it, in its last turn."""
    for prompt in prompts:
        kind = drawn(spec.noise, seed, spec.name, "noise", prompt.key)
        draw = random.Random(keyed(seed, spec.name, kind, prompt.key))
        text = " ".join(NOISES[kind](prompt.text.split(), draw))
        messages = [*prompt.messages[:-1], {"role": "user", "content": text}]
        yield make_prompt(messages, f"{kind}:{prompt.place}", prompt.family, prompt.tools)


def reworded(
    prompts: Iterable[SourcePrompt], spec: RewriteSource, seed: int
) -> Iterator[SourcePrompt]:
    """Yield the prompts as they are, in an order of the source's own. The place of each begins with
    the way in which the target says it anew."""
    shares = {name: way.share for name, way in spec.ways.items()}
    for prompt in sorted(prompts, key=lambda prompt: keyed(seed, spec.name, prompt.key)):
        way = drawn(shares, seed, spec.name, "way", prompt.key)
        yield replace(prompt, place=f"{way}:{prompt.place}", origin=prompt.family)


def _typos(words: list[str], draw: random.Random) -> list[str]:
    """Swap, drop or double a letter in some words."""
    places = [place for place, word in enumerate(words) if LETTERS.fullmatch(word.strip(".,!?"))]
    for place in draw.sample(places, min(len(places), _some(words))):
        word = words[place]
        at = draw.randrange(len(word.strip(".,!?")) - 1)
        first, second = word[at], word[at + 1]
        words[place] = (
            word[:at] + draw.choice((second + first, first, first * 2 + second)) + (word[at + 2 :])
        )
    return words


def _fillers(words: list[str], draw: random.Random) -> list[str]:
    for place in sorted(draw.sample(range(len(words)), _some(words)), reverse=True):
        words.insert(place, f"{draw.choice(FILLERS)},")
    return words


def _repeats(words: list[str], draw: random.Random) -> list[str]:
    """Say some words twice, as one does while thinking."""
    for place in sorted(draw.sample(range(len(words)), _some(words)), reverse=True):
        words.insert(place, words[place].rstrip(".,!?"))
    return words


def _bare(words: list[str], draw: random.Random) -> list[str]:
    """Leave out capitals and punctuation; words with digits keep their capitals."""
    bare = [word.rstrip(".,!?;:") for word in words]
    return [word if re.search(r"\d", word) else word.lower() for word in bare if word] or words


def _some(words: list[str]) -> int:
    return max(1, len(words) // EVERY)


NOISES: dict[Noise, Callable[[list[str], random.Random], list[str]]] = {
    "typos": _typos,
    "fillers": _fillers,
    "repeats": _repeats,
    "bare": _bare,
}
