"""`paceline train`: train a drafter for a target, from a set that `paceline synth` wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, ValidationInfo
from rich.console import Console

from paceline.cli.option import Argument
from paceline.cli.options import DEFAULTS
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import fields_of
from paceline.training.config import Count, Sets, Tracker, TrainConfig

REGRESSED = 3  # exit code where a fall out of domain is why there is no drafter
ABOUT = {name: field.description or "" for name, field in fields_of(TrainConfig).items()}


def named_values(kind: str) -> BeforeValidator:
    """Read NAME=VALUE of the command line, where `kind` says what a value is, such as FOLDER."""

    def read(values: object, info: ValidationInfo) -> object:
        if not isinstance(values, list):
            return values
        named: dict[str, str] = {}
        for text in values:
            name, _, value = text.partition("=")
            if not (name and value) or name in named:
                raise InvalidRequest(info.field_name or "", text, f"NAME={kind}, each name once")
            named[name] = value
        return named

    return BeforeValidator(read)


def _shares(texts: object, info: ValidationInfo) -> object:
    if not isinstance(texts, list):
        return texts
    pairs = [part.partition("=") for part in ",".join(texts).split(",")]
    try:
        shares = {name: float(share) for name, _, share in pairs}
    except ValueError:
        shares = {}
    if len(shares) < len(pairs):
        expected = "objectives with shares, each once, like ce=0.1,tv=0.9"
        raise InvalidRequest(info.field_name or "", ",".join(texts), expected)
    return shares


def _words(texts: object) -> object:
    if not isinstance(texts, list):
        return texts
    return tuple(word for text in texts for word in text.split(",") if word)


def find_target(word: str) -> None:
    """Raise PacelineError for a name of a model that is not there."""
    from paceline.models.catalog import canonical

    canonical(word)


def _find_drafter(word: str) -> None:
    from paceline.models.catalog import canonical

    canonical(word, "drafter")


def find_set(text: str) -> None:
    """Raise InvalidRequest for a folder that holds no training set."""
    from paceline.dataset.training_set import read_manifest

    read_manifest(Path(text))


def _find_named_set(text: str) -> None:
    _, _, folder = text.partition("=")
    if folder:  # else the form is wrong, which is refused elsewhere
        find_set(folder)


NamedFolders = Annotated[
    dict[str, str],
    named_values("FOLDER"),
    Argument(metavar="NAME=FOLDER", look_up=_find_named_set),
]
LIST = Argument(metavar="LIST")


@checked
class TrainCommand(TrainConfig):
    """Train a drafter for a target.

    Trains a DFlash drafter on what the target said. A run that was interrupted goes on when the
    same command is given again.
    """

    model: Annotated[str, Argument(look_up=find_target)] = about(ABOUT["model"], DEFAULTS.model)
    sets: Annotated[Sets, Argument(positional=True, metavar="SET", look_up=find_set)] = about(
        ABOUT["sets"]
    )
    held_out: NamedFolders = about(ABOUT["held_out"], dict)
    out_of_domain: NamedFolders = about(ABOUT["out_of_domain"], dict)
    init: Annotated[str, Argument(look_up=_find_drafter)] | None = about(
        ABOUT["init"], None, "random weights"
    )
    target_options: Annotated[
        dict[str, str], named_values("VALUE"), Argument(metavar="NAME=VALUE")
    ] = about(ABOUT["target_options"], dict)
    steps: Annotated[Count, Argument(instead=("epochs", "hours"))] | None = about(
        ABOUT["steps"], None
    )
    mix: Annotated[dict[str, float], BeforeValidator(_shares), LIST] = about(
        ABOUT["mix"], lambda: {"ce": 1.0}
    )
    trackers: Annotated[tuple[Tracker, ...], BeforeValidator(_words), LIST] = about(
        ABOUT["trackers"], ()
    )

    def run(self) -> int:
        from paceline.training.run import train, write_features

        console = Console(highlight=False, soft_wrap=True)
        if self.features_only:
            write_features(self, console.print)
            return 0
        result = train(self, console.print)
        if int(os.environ.get("RANK", "0")) == 0:
            if result.why is not None:
                console.print(result.why, markup=False)
            if result.drafter is not None:
                console.print(f"the best drafter is in {result.drafter}", markup=False)
        if result.drafter is not None:
            return 0
        return REGRESSED if result.regressed else 1
