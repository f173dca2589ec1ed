"""`paceline drafter push`: a trained drafter to the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Strict

from paceline.cli.options import POSITIONAL, Positional
from paceline.core.document_help import about
from paceline.core.documents import checked


@checked
class PushCommand:
    """Publish a drafter on the hub, with its model card and where it comes from.

    Uses the token of `hf auth login` or HF_TOKEN. A repository that there is gets a new commit.
    """

    drafter: Annotated[Path, Strict(False), POSITIONAL] = about(
        "folder that `paceline train` wrote, as runs/mine/drafter"
    )
    repository: Positional = about("hub id of the model repository, as org/name")
    private: bool = about("make a new repository private", False)
    user_data: bool = about("publish weights that have learnt from what users said", False)

    def run(self) -> int:
        """Check the folder, publish it and print its address."""
        from paceline.drafters.publishing import check_publishable, publish

        check_publishable(self.drafter, self.repository, user_data=self.user_data)
        print(publish(self.drafter, self.repository, private=self.private))
        return 0
