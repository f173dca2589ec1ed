"""The model card of a trained drafter, from its provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.dataset.training_set import write_whole

PROVENANCE, CARD = "provenance.json", "README.md"

HEAD = """\
---
base_model: {target}
library_name: paceline
tags: [speculative-decoding, dflash, drafter]
---

# A {generation} drafter for {target}

It drafts {drafts} tokens at a time for **these exact weights** of {target} (SHA-256
`{weights}`), its tokenizer and its chat template. With other weights, those of a fine-tuned or
requantised copy included, it accepts less. Speculative decoding is lossless: a drafter decides how
fast text comes, never which.

    paceline serve {target} --drafter fast=THIS_FOLDER
"""


def card(made: Mapping[str, Any], evaluation: str | None = None) -> str:
    """Return the Markdown of `provenance.json`'s content; `evaluation` is `paceline evaluate`'s
    table."""
    target, shape = made["target"], made["shape"]
    parts = [
        HEAD.format(
            target=target["name"],
            generation=made["generation"],
            drafts=shape["block"] - 1,
            weights=target["weights_sha256"],
        ),
        "## Shape\n\n" + _shape(made),
        "## Training data\n\n" + _data(made),
        "## Scores in training\n\n" + _scores(made),
    ]
    if evaluation is not None:
        parts.append("## Served\n\n" + evaluation)
    return "\n".join(part.rstrip() + "\n" for part in parts)


def add_evaluation(folder: Path, table: str, summary: Mapping[str, Any]) -> None:
    """Put an evaluation into the card and the provenance of a drafter that `paceline train` wrote:
    `table` is Markdown, `summary` what evaluate() returned, without its single answers.

    Raises InvalidRequest (field `card`) for a folder without a provenance.
    """
    path = folder / PROVENANCE
    try:
        made = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        expected = f"a drafter's folder with a readable {PROVENANCE} ({error})"
        raise InvalidRequest("card", str(folder), expected) from error
    made["evaluation"] = dict(summary)
    write_whole(path, json.dumps(made, indent=1).encode() + b"\n")
    write_whole(folder / CARD, card(made, table).encode())


def _shape(made: Mapping[str, Any]) -> str:
    shape = made["shape"]
    layers = ", ".join(map(str, shape["target_layer_ids"]))
    first, *later = _stages(made)
    begun = made["init"]
    while begun is not None and begun["made"] is not None:
        begun = begun["made"]["init"]
    start = "random weights" if begun is None else f"the drafter `{begun['name']}`"
    return (
        f"{shape['layers']} layers, {made['weights'] / 1e6:.1f} M weights, blocks of "
        f"{shape['block']}, features of the target's layers {layers}, head cut to "
        f"{shape['head_tokens']} frequent tokens. Trained from {start} for {_settings(first)}"
        + "".join(f", then for {_settings(stage)}" for stage in later)
        + "."
    )


def _stages(made: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the runs that made a drafter, the first one first, as far back as is recorded."""
    before = made["init"]
    known = before is not None and before["made"] is not None
    return [*(_stages(before["made"]) if known else ()), made]


def _settings(made: Mapping[str, Any]) -> str:
    settings = made["settings"]
    mix = ", ".join(f"{share:g} {name}" for name, share in settings["mix"].items())
    return (
        f"{made['step']} steps of {settings['texts']} texts with at most {settings['anchors']} "
        f"blocks each ({mix}, {settings['weights']} position weights, {settings['optimizer']}, "
        f"seed {settings['seed']})"
    )


def _data(made: Mapping[str, Any]) -> str:
    lines = [
        "| set | trained on | tokens the target said | user data | digest |",
        "|---|---|---|---|---|",
    ]
    rows = [(name, data) for stage in _stages(made) for name, data in stage["data"].items()]
    learnt = {data["digest"] for _, data in rows if data["trained_on"]}
    for name, data in {data["digest"]: (name, data) for name, data in rows}.values():
        lines.append(
            f"| {name} | {_yes(data['digest'] in learnt)} | {data['tokens']} | "
            f"{_yes(data['user_data'])} | `{data['digest'][:12]}` |"
        )
    return "\n".join(lines)


def _scores(made: Mapping[str, Any]) -> str:
    """Return acceptance lengths of the last evaluation, beside those before the first step."""
    before = made["before"]
    lines = [
        "Expected acceptance length incl. bonus, judged by the texts themselves.",
        "",
        "| set | before | after | first draft token right |",
        "|---|---|---|---|",
    ]
    for kind, label in (("held_out", "held out"), ("out_of_domain", "out of domain")):
        for name, score in made["scores"][kind].items():
            start = "" if before is None else f"{before[kind][name]['length']:.2f}"
            first = f"{100 * score['positions'][0]:.0f}%"
            lines.append(f"| {name} ({label}) | {start} | {score['length']:.2f} | {first} |")
    for name, share in made["regressions"].items():
        lines.append(
            f"\n**{name} fell by {100 * share:.0f}% against the drafter it started from.**"
        )
    return "\n".join(lines)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
