"""`paceline drafters`: the versions of drafters in a store, and a server that is told of them."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Strict

from paceline.cli.option import Argument
from paceline.cli.options import Positional
from paceline.cli.show import stderr_console
from paceline.core import InvalidRequest, PacelineError
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between, OneOf

if TYPE_CHECKING:
    from paceline.autospec.server_client import DrafterClient
    from paceline.autospec.store import Author, DrafterStore, StoreChange

DEFAULT_STORE = "~/.local/share/paceline/autospec"
GOALS = ("scored", "shadow", "canary", "live")
JSON_HELP = "print it as JSON"
COHORT_HELP = "the requests that it is about, as model|app|language|region"
Folder = Annotated[Path, Strict(False), Argument(metavar="FOLDER")]
Optional = Annotated[str, Argument(positional=True)]


@checked
class StorePlace:
    """Where the store of drafters lies."""

    store: Folder | None = about("folder of the store of drafters", None, DEFAULT_STORE)

    def open(self, *, create: bool = False) -> DrafterStore:
        """Open the store. Raises InvalidRequest and StoreError."""
        from paceline.autospec.store import DrafterStore
        from paceline.autospec.store.place import default_folder

        folder = default_folder() if self.store is None else self.store.expanduser()
        return DrafterStore(folder, create=create)


@checked
class LiveServer:
    """The running server that is told of a change."""

    server: str | None = about(
        "a running server that is told too, as http://127.0.0.1:8000", None, "none"
    )
    admin_key: str | None = about(
        "the server's admin key; set PACELINE_ADMIN_KEY instead, which a list of processes does "
        "not show",
        None,
    )

    def client(self) -> DrafterClient | None:
        """Return a client of the server, after it has answered; None without --server."""
        from paceline.autospec.server_client import DrafterClient

        if self.server is None:
            return None
        try:
            client = DrafterClient.connect(self.server, self.admin_key)
        except InvalidRequest as error:
            raise InvalidRequest("server", self.server, error.expected) from None
        client.drafters()
        return client


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
        "the drafter, as --drafter takes it without a name: suffix, FOLDER, hybrid:FOLDER, "
        "suffix,corpus=FOLDER"
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
    served it is retired. With --server, the server loads the version, and its routes change. If the
    server was not reached, give the command again.
    """

    name: Positional = about("a version's name")
    to: Annotated[str, OneOf(GOALS)] | None = about("the state", None, "the next one")
    cohort: str = about(COHORT_HELP, "", "all requests")
    reason: str = about("why; it is kept in the history", "")
    json: bool = about(JSON_HELP, False)
    place: StorePlace = StorePlace()
    running: LiveServer = LiveServer()

    def run(self) -> int:
        from paceline.autospec import live_server
        from paceline.autospec.store import StoreChange, VersionState
        from paceline.autospec.store.states import SERVING, check_promotion, next_state
        from paceline.autospec.store.store import check_cohort

        with self.place.open() as store:
            tell_holder(store)
            version = store.version(self.name)
            goal = VersionState(self.to) if self.to else next_state(self.name, version.state)
            cohort = check_cohort(self.cohort)
            is_done = goal is VersionState.LIVE and store.live().get(cohort) == self.name
            client = self.running.client()
            if not (is_done and client):
                check_promotion(self.name, version.state, goal)
            if client is not None and goal in SERVING:
                live_server.bring(client, store, version)
            if is_done and client is not None:
                change = StoreChange(cohort, self.name, ())
            else:
                change = store.promote(
                    self.name, author(self.reason), goal, cohort=cohort, expected=version.state
                )
            waiting = []
            if client is not None and change.live is not None:
                with told(f"{self.name} is live in the store", "give this command again"):
                    live_server.route(client, cohort, self.name)
                    waiting = live_server.dismiss_retired(client, store)
        report(change, f"{self.name} is {goal}", waiting, as_json=self.json)
        return 0


@checked
class DraftersRetireCommand:
    """Retire a version: it serves nobody any more.

    With --server, the server takes it out of its routes and lets it leave when its last request has
    ended. The server's default cannot leave: promote another version first.
    """

    name: Positional = about("a version's name")
    reason: str = about("why; it is kept in the history", "")
    json: bool = about(JSON_HELP, False)
    place: StorePlace = StorePlace()
    running: LiveServer = LiveServer()

    def run(self) -> int:
        from paceline.autospec import live_server
        from paceline.autospec.store import StoreChange, VersionState

        with self.place.open() as store:
            tell_holder(store)
            version, client = store.version(self.name), self.running.client()
            if client is not None:
                live_server.check_not_default(client, self.name)
            if version.state is VersionState.RETIRED and client is not None:
                change = StoreChange(None, None, (self.name,))
            else:
                change = store.retire(self.name, author(self.reason))
            waiting = []
            if client is not None:
                with told(f"{self.name} is retired in the store", "give this command again"):
                    waiting = live_server.dismiss_retired(client, store)
        report(change, f"{self.name} is retired", waiting, as_json=self.json)
        return 0


@checked
class DraftersRollbackCommand:
    """Make the version live again that was live before the present one.

    One command, one transaction: the present version is retired. With --server, the server's routes
    change too.
    """

    cohort: str = about(COHORT_HELP, "", "all requests")
    reason: str = about("why; it is kept in the history", "")
    json: bool = about(JSON_HELP, False)
    place: StorePlace = StorePlace()
    running: LiveServer = LiveServer()

    def run(self) -> int:
        from paceline.autospec import live_server
        from paceline.autospec.store.store import check_cohort

        with self.place.open() as store:
            tell_holder(store)
            back, client = store.previous(self.cohort), self.running.client()
            if client is not None and back is not None:
                live_server.bring(client, store, back)
            change = store.rollback(author(self.reason), self.cohort)
            waiting = []
            if client is not None:
                done = f"{back.name} is live" if back else "nobody is live for the cohort"
                with told(f"{done} in the store", self._remedy(change)):
                    live_server.route(client, check_cohort(self.cohort), change.live)
                    waiting = live_server.dismiss_retired(client, store)
        live = f"{change.live} is live again" if change.live else "no version of its own is live"
        report(change, live, waiting, as_json=self.json)
        return 0

    def _remedy(self, change: StoreChange) -> str:
        """Return the command that tells a server what this one could not; a second rollback would
        go back further."""
        if change.live is None:
            return "take the cohort out of the server's routes with PUT /v1/drafters/routes"
        return f"give `paceline drafters promote {change.live} --to live` with --server"


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


def tell_holder(store: DrafterStore) -> None:
    """Say on stderr that another process decides for the store too."""
    from paceline.autospec.store import holder_of

    holder = holder_of(store)
    if holder is not None:
        stderr_console().print(
            f"note: {holder} decides for this store too", style="yellow", soft_wrap=True
        )


@contextmanager
def told(done: str, remedy: str) -> Iterator[None]:
    """Say of a server's refusal that the store was changed before, and how to go on."""
    from paceline.autospec.server_client import ServerRefused

    try:
        yield
    except ServerRefused as error:
        message = f"{done}, but the server was not told: {error}; {remedy}"
        raise PacelineError(message) from error


def report(change: StoreChange, what: str, waiting: list[str], *, as_json: bool) -> None:
    """Print what a command has changed; `waiting` still draft for requests of the server."""
    if as_json:
        print(json.dumps({**asdict(change), "waiting": waiting}))
        return
    others = [name for name in change.retired if name not in what]
    end = f"; {', '.join(others)} retired" if others else ""
    where = f" for {change.cohort}" if change.cohort else ""
    print(f"{what}{where}{end}")
    for name in waiting:
        print(f"{name} leaves the server when its last request has ended")
