"""Prompts of the tests of real engines, and the drafter that these engines load: the shipped one, a
DFlash drafter of the first generation for SmolLM2-135M."""

from __future__ import annotations

from pathlib import Path

from paceline.drafters import shipped

TARGET = "smollm2-135m"
DRAFT_LEN = 7  # of a block of 8, whose first place is the anchor's
NAMED = (
    "a bicycle chain, a lighthouse, a thunderstorm, baking bread, the moon, a library, a garden in "
    "spring, a train journey, an old map, a river delta, a violin, learning to swim, a paper "
    "plane, a compass, winter in the mountains, a beehive, a sailing boat, coffee, a telescope, "
    "a steam engine, the tides, a market place, a chess game, a glass of water, a postcard, "
    "a bridge, a rainbow, a windmill, a puppet theatre, an apple tree, a clock, a campfire"
)
SUBJECTS = NAMED.split(", ")
QUESTIONS = (
    "What is {subject}?",
    "Explain {subject} to a child.",
    "Write two sentences about {subject}.",
    "Why do people like {subject}?",
    "Give three facts about {subject}.",
    "Tell a short story about {subject}.",
    "How would you describe {subject} to a friend?",
    "What can we learn from {subject}?",
    "Write a short email about {subject}.",
    "What questions do people ask about {subject}?",
)


def first_generation() -> Path:
    """Return the folder of the drafter."""
    return shipped.FOLDERS / TARGET
