"""`paceline distil`: a smaller model learns an application from what a larger one answered."""

from __future__ import annotations

from typing import Annotated

from rich.console import Console

from paceline.cli.option import Argument
from paceline.cli.train import find_set, find_target, named_values
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import fields_of
from paceline.core.names import local_path
from paceline.distil.config import DistilConfig
from paceline.training.config import Sets

NOT_BETTER = 3  # exit code of a run whose student is no better than the model that it was
ABOUT = {name: field.description or "" for name, field in fields_of(DistilConfig).items()}
NamedFiles = Annotated[dict[str, str], named_values("FILE"), Argument(metavar="NAME=FILE")]


def _find_app(text: str) -> None:
    if not local_path(text, "drafter").is_file():
        expected = "the file that describes an application, as synth takes it; there is none"
        raise InvalidRequest("drafter", text, expected)


@checked
class DistilCommand(DistilConfig):
    """Let a smaller model learn an application from a larger one.

    Trains the student on the answers that the sets hold, compares it with what it was, and keeps it
    where it is better; exit code 3 where it is not. With --drafter a drafter for it is made too. A
    run that was interrupted goes on when the same command is given again.
    """

    sets: Annotated[Sets, Argument(positional=True, metavar="SET", look_up=find_set)] = about(
        ABOUT["sets"]
    )
    student: Annotated[str, Argument(look_up=find_target)] = about(ABOUT["student"])
    teacher: Annotated[str, Argument(look_up=find_target)] | None = about(
        ABOUT["teacher"], None, "the name that the sets state"
    )
    tasks: NamedFiles = about(ABOUT["tasks"], dict)
    drafter: Annotated[str, Argument(metavar="APP.yaml", look_up=_find_app)] | None = about(
        ABOUT["drafter"], None
    )

    def run(self) -> int:
        from paceline.distil.run import distil

        console = Console(highlight=False, soft_wrap=True)
        result = distil(self, lambda line: console.print(line, markup=False))
        for reason in result.reasons:
            console.print(f"not kept: {reason}", markup=False)
        if result.student is None:
            return NOT_BETTER if result.finished else 1
        console.print(f"the student is in {result.student}", markup=False)
        made = result.drafter
        if made is None:
            return 0
        if made.why is not None:
            console.print(made.why, markup=False)
        if made.drafter is None:
            return 1
        console.print(f"its drafter is in {made.drafter}", markup=False)
        return 0
