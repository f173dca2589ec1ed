"""`paceline drafters`: the versions of drafters in a store."""

from __future__ import annotations

import getpass
import json
import socket
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Strict

from paceline.cli.option import Argument
from paceline.cli.options import Positional
from paceline.cli.show import stderr_console
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between, OneOf

if TYPE_CHECKING:
    from paceline.autospec.store import Author, DrafterStore, StoreChange

DEFAULT_STORE = "~/.local/share/paceline/autospec"
GOALS = ("scored", "shadow", "canary", "live")
JSON_HELP = "print it as JSON"
COHORT_HELP = "the requests that it is about, as model|app|language|region"
Folder = Annotated[Path, Strict(False), Argument(metavar="FOLDER")]
Optional = Annotated[str, Argument(positional=True)]


@checked
class StorePlace:
    """The folder of the store of drafters."""

    store: Folder | None = about("folder of the store of drafters", None, DEFAULT_STORE)

    def open(self, *, create: bool = False) -> DrafterStore:
        """Open the store. Raises InvalidRequest and StoreError."""
        from paceline.autospec.store import DrafterStore
        from paceline.autospec.store.place import default_folder

        folder = default_folder() if self.store is None else self.store.expanduser()
        return DrafterStore(folder, create=create)


@checked
class DraftersListCommand:
    """List the versions of drafters: their states, whom they serve, and what they were scored."""

    json: bool = about(JSON_HELP, False)
    place: StorePlace = StorePlace()

    def run(self) -> int:
        from paceline.autospec.store.describing import version_json
        from paceline.cli.drafters_show import print_versions

        with self.place.open() as store:
            if self.json:
                listed = [version_json(store, version) for version in store.versions()]
                print(json.dumps(listed, indent=1))
            else:
                print_versions(store)
        return 0


@checked
class DraftersShowCommand:
    """Show a version: what it is, its lineage, its scores and its history, and check its files."""

    name: Positional = about("a version's name")
    json: bool = about(JSON_HELP, False)
    place: StorePlace = StorePlace()

    def run(self) -> int:
        from paceline.autospec.store.describing import full_json
        from paceline.cli.drafters_show import print_version

        with self.place.open() as store:
            told = full_json(store, store.version(self.name))
        if self.json:
            print(json.dumps(told, indent=1))
        else:
            print_version(told)
        return 1 if told["fault"] else 0


@checked
class DraftersAddCommand:
    """Add a version to the store, which is made where there is none yet.

    Copies the folders that the spec names into the store.
    """

    name: Positional = about("a name for the version, as app-3")
    spec: Positional = about(
        "the drafter, as --drafter takes it without a name: suffix, FOLDER, hybrid:FOLDER"
    )
    parent: str | None = about("the version that it was made from", None)
    target: str | None = about("the target's name, where the folder does not say it", None)
    note: str = about("a line about it", "")
    reason: str = about("why; it is kept in the history", "")
    json: bool = about(JSON_HELP, False)
    place: StorePlace = StorePlace()

    def run(self) -> int:
        from paceline.autospec.store import TargetIdentity
        from paceline.autospec.store.describing import version_json
        from paceline.drafters.spec import parse_spec

        parse_spec(self.spec)  # refuses kinds that no server has
        with self.place.open(create=True) as store:
            version = store.register(
                self.name,
                author(self.reason),
                spec=self.spec,
                target=TargetIdentity(name=self.target),
                parent=self.parent,
                note=self.note,
            )
            if self.json:
                print(json.dumps(version_json(store, version), indent=1))
            else:
                print(f"{version.name} is {version.state} in {store.folder}")
        return 0


@checked
class DraftersPromoteCommand:
    """Take a version to its next state, or to a later one.

    A version that is made live serves a cohort, by default all requests, and the version that
    served it is retired.
    """

    name: Positional = about("a version's name")
    to: Annotated[str, OneOf(GOALS)] | None = about("the state", None, "the next one")
    cohort: str = about(COHORT_HELP, "", "all requests")
    reason: str = about("why; it is kept in the history", "")
    json: bool = about(JSON_HELP, False)
    place: StorePlace = StorePlace()

    def run(self) -> int:
        from paceline.autospec.store import VersionState
        from paceline.autospec.store.states import next_state

        with self.place.open() as store:
            warn_of_holder(store)
            before = store.version(self.name).state
            goal = VersionState(self.to) if self.to else next_state(self.name, before)
            change = store.promote(
                self.name, author(self.reason), goal, cohort=self.cohort, expected=before
            )
        report(change, f"{self.name} is {goal}", as_json=self.json)
        return 0


@checked
class DraftersRetireCommand:
    """Retire a version: it serves nobody any more."""

    name: Positional = about("a version's name")
    reason: str = about("why; it is kept in the history", "")
    json: bool = about(JSON_HELP, False)
    place: StorePlace = StorePlace()

    def run(self) -> int:
        with self.place.open() as store:
            warn_of_holder(store)
            change = store.retire(self.name, author(self.reason))
        report(change, f"{self.name} is retired", as_json=self.json)
        return 0


@checked
class DraftersRollbackCommand:
    """Make the version live again that was live before the present one.

    One command, one transaction: the present version is retired.
    """

    cohort: str = about(COHORT_HELP, "", "all requests")
    reason: str = about("why; it is kept in the history", "")
    json: bool = about(JSON_HELP, False)
    place: StorePlace = StorePlace()

    def run(self) -> int:
        with self.place.open() as store:
            warn_of_holder(store)
            change = store.rollback(author(self.reason), self.cohort)
        live = f"{change.live} is live again" if change.live else "no version of its own is live"
        report(change, live, as_json=self.json)
        return 0


@checked
class DraftersDiffCommand:
    """Compare two versions: files, target, training, and scores on each cohort."""

    one: Positional = about("a version's name")
    other: Positional = about("another version's name")
    json: bool = about(JSON_HELP, False)
    place: StorePlace = StorePlace()

    def run(self) -> int:
        from paceline.autospec.store.describing import differences, paired_scores, score_json
        from paceline.cli.drafters_show import print_differences

        with self.place.open() as store:
            one, other = store.version(self.one, "one"), store.version(self.other, "other")
            rows, scores = differences(store, one, other), paired_scores(store, one, other)
        if self.json:
            values = {
                "differences": [{"field": name, "one": a, "other": b} for name, a, b in rows],
                "scores": [
                    {"cohort": cohort, "one": a and score_json(a), "other": b and score_json(b)}
                    for cohort, a, b in scores
                ],
            }
            print(json.dumps(values, indent=1))
        else:
            print_differences(self.one, self.other, rows, scores)
        return 0


@checked
class DraftersHistoryCommand:
    """Print what happened to a version, or to all: when, who did it, and why."""

    name: Optional | None = about("a version's name", None, "all")
    limit: Annotated[int, Between(1)] = about("most lines, the latest", 50)
    json: bool = about(JSON_HELP, False)
    place: StorePlace = StorePlace()

    def run(self) -> int:
        from paceline.autospec.store.describing import transition_json
        from paceline.cli.drafters_show import print_history

        with self.place.open() as store:
            if self.name is not None:
                store.version(self.name)
            steps = store.history(self.name, self.limit)
        if self.json:
            print(json.dumps([transition_json(step) for step in steps], indent=1))
        else:
            print_history(steps)
        return 0


def author(reason: str) -> Author:
    """Return who runs this command, as the history names them, and why."""
    from paceline.autospec.store import Author

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        user = "somebody"
    return Author(f"{user}@{socket.gethostname()}", reason)


def warn_of_holder(store: DrafterStore) -> None:
    """Print on stderr that another process decides for the store too."""
    from paceline.autospec.store import holder_of

    holder = holder_of(store)
    if holder is not None:
        stderr_console().print(
            f"note: {holder} decides for this store too", style="yellow", soft_wrap=True
        )


def report(change: StoreChange, what: str, *, as_json: bool) -> None:
    """Print what a command has changed."""
    if as_json:
        print(json.dumps(asdict(change)))
        return
    others = [name for name in change.retired if name not in what]
    end = f"; {', '.join(others)} retired" if others else ""
    where = f" for {change.cohort}" if change.cohort else ""
    print(f"{what}{where}{end}")
