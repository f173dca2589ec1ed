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


def card(provenance: Mapping[str, Any], evaluation: str | None = None) -> str:
    """Return the Markdown of `provenance.json`'s content; `evaluation` is `paceline evaluate`'s
    table."""
    target, shape = provenance["target"], provenance["shape"]
    parts = [
        HEAD.format(
            target=target["name"],
            generation=provenance["generation"],
            drafts=shape["block"] - 1,
            weights=target["weights_sha256"],
        ),
        "## Shape\n\n" + _shape(provenance),
        "## Training data\n\n" + _data(provenance),
        "## Scores in training\n\n" + _scores(provenance),
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
        provenance = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        expected = f"a drafter's folder with a readable {PROVENANCE} ({error})"
        raise InvalidRequest("card", str(folder), expected) from error
    provenance["evaluation"] = dict(summary)
    write_whole(path, json.dumps(provenance, indent=1).encode() + b"\n")
    write_whole(folder / CARD, card(provenance, table).encode())


def _shape(provenance: Mapping[str, Any]) -> str:
    shape = provenance["shape"]
    layers = ", ".join(map(str, shape["target_layer_ids"]))
    first, *later = _stages(provenance)
    begun = provenance["init"]
    while begun is not None and begun["made"] is not None:
        begun = begun["made"]["init"]
    start = "random weights" if begun is None else f"the drafter `{begun['name']}`"
    return (
        f"{shape['layers']} layers, {provenance['weights'] / 1e6:.1f} M weights, blocks of "
        f"{shape['block']}, features of the target's layers {layers}, head cut to "
        f"{shape['head_tokens']} frequent tokens. Trained from {start} for {_settings(first)}"
        + "".join(f", then for {_settings(stage)}" for stage in later)
        + "."
    )


def _stages(provenance: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the runs that made a drafter, the first one first, as far back as is recorded."""
    before = provenance["init"]
    recorded = before is not None and before["made"] is not None
    return [*(_stages(before["made"]) if recorded else ()), provenance]


def _settings(provenance: Mapping[str, Any]) -> str:
    settings = provenance["settings"]
    mix = ", ".join(f"{share:g} {name}" for name, share in settings["mix"].items())
    return (
        f"{provenance['step']} steps of {settings['texts']} texts with at most "
        f"{settings['anchors']} blocks each ({mix}, {settings['weights']} position weights, "
        f"{settings['optimizer']}, seed {settings['seed']})"
    )


def _data(provenance: Mapping[str, Any]) -> str:
    lines = [
        "| set | trained on | tokens the target said | user data | digest |",
        "|---|---|---|---|---|",
    ]
    rows = [(name, data) for stage in _stages(provenance) for name, data in stage["data"].items()]
    learnt = {data["digest"] for _, data in rows if data["trained_on"]}
    for name, data in {data["digest"]: (name, data) for name, data in rows}.values():
        lines.append(
            f"| {name} | {_yes(data['digest'] in learnt)} | {data['tokens']} | "
            f"{_yes(data['user_data'])} | `{data['digest'][:12]}` |"
        )
    return "\n".join(lines)


def _scores(provenance: Mapping[str, Any]) -> str:
    """Return acceptance lengths of the last evaluation, beside those before the first step."""
    before = provenance["before"]
    lines = [
        "Expected acceptance length incl. bonus, judged by the texts themselves.",
        "",
        "| set | before | after | first draft token right |",
        "|---|---|---|---|",
    ]
    for kind, label in (("held_out", "held out"), ("out_of_domain", "out of domain")):
        for name, score in provenance["scores"][kind].items():
            start = "" if before is None else f"{before[kind][name]['length']:.2f}"
            first = f"{100 * score['positions'][0]:.0f}%"
            lines.append(f"| {name} ({label}) | {start} | {score['length']:.2f} | {first} |")
    for name, share in provenance["regressions"].items():
        lines.append(
            f"\n**{name} fell by {100 * share:.0f}% against the drafter it started from.**"
        )
    return "\n".join(lines)


def _yes(value: bool) -> str:
    return "yes" if value else "no"
