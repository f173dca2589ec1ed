"""A DFlash drafter of the first generation for SmolLM2-135M, which vLLM's `dflash` loads too.

The shipped drafter is a DFlash 2 one, which vLLM's model runner for CPUs does not draft with. This
one learns short greedy answers about everyday subjects: AL incl. bonus is about 1.4 on such
questions, 2.3 on those that it has learnt, and little on other text. It is made once, in about
three minutes on two idle cores, and lies in `test-drafters/` of the user's cache folder from then
on (~/.cache/paceline/test-drafters/, or below $PACELINE_CACHE):

    python -m tests.engines.first_generation      # makes it where it is missing, prints its folder

In tests it is the fixture `first_generation` of tests/engines/conftest.py.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from paceline.core.cache import cache_dir, cached_folder

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
APP = {
    "name": "subjects",
    "model": TARGET,
    "sampling": {"temperature": 0.0, "max_tokens": 96},
    "size": {"rows": 200},
    "sources": [{"name": "phrases", "kind": "phrases", "path": "phrases.yaml", "count": 320}],
}
TRAIN = (
    f"--block {DRAFT_LEN + 1} --layers 1 --taps 3 --texts 8 --anchors 16 --steps 160 "
    "--eval-every 80 --save-every 160"
)


def first_generation() -> Path:
    """Return the folder of the drafter, and make it where it is missing."""
    recipe = json.dumps([SUBJECTS, QUESTIONS, APP, TRAIN])
    name = f"{TARGET}-dflash-{hashlib.sha256(recipe.encode()).hexdigest()[:8]}"
    return cached_folder(cache_dir() / "test-drafters" / name, _make)


def _make(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        phrases = {"phrases": QUESTIONS, "slots": {"subject": SUBJECTS}}
        (work / "phrases.yaml").write_text(json.dumps(phrases))  # JSON is YAML too
        (work / "app.yaml").write_text(json.dumps(APP))
        _paceline("synth", str(work / "app.yaml"), "--out", str(work / "set"))
        _paceline("train", str(work / "set"), "--out", str(work / "run"), *TRAIN.split())
        shutil.copytree(work / "run" / "drafter", folder, dirs_exist_ok=True)


def _paceline(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "paceline", *words], check=True)


if __name__ == "__main__":
    print(first_generation())
