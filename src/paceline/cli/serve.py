"""The commands that listen: `paceline serve`, the server, and `paceline ui`, its page alone."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Strict
from rich.console import Console

from paceline.cli import show
from paceline.cli.loading import importing
from paceline.cli.option import Argument, Only
from paceline.cli.options import DEFAULTS, MODEL_HELP, Positional, Strings
from paceline.cli.watch import find_run
from paceline.core import InvalidRequest, PacelineError
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.garbage import collecting_paused
from paceline.engine.config import EngineConfig
from paceline.server.keys import FORMS, read_keys
from paceline.server.logs import logging_to
from paceline.server.settings import SHARE_ANSWERS, ServerSettings
from paceline.server.sockets import bind, check_certificate, connection_bound

UI_PORT = 8800  # beside a server on its own default port
UI_OPTIONS = (
    "host", "port", "uds", "root_path", "ssl_certfile", "ssl_keyfile", "api_keys", "api_key_file",
    "allow_hosts", "log_level", "log_format",
)  # fmt: skip
RunFolders = Annotated[Strings, Argument(metavar="RUN", look_up=find_run)]
StoreFolder = Annotated[Path, Strict(False), Argument(metavar="STORE")]
log = logging.getLogger(__name__)


@checked
class ServeCommand:
    """Serve a model over an OpenAI-compatible HTTP API.

    SIGINT or SIGTERM ends it, once the running requests are finished; a second signal aborts them.
    """

    model: Positional = about(MODEL_HELP, DEFAULTS.model)
    autospec: StoreFolder | None = about(
        "folder of a store of drafters, which /v1/autospec and the page's tab Autospec show; with "
        "the admin key they promote and roll back. The store need not be there yet",
        None,
    )
    server: ServerSettings = ServerSettings()
    engine: EngineConfig = DEFAULTS

    def run(self) -> int:
        settings = with_keys(self.server)

        # before the model: what is wrong shows at once
        connection_bound(settings)
        check_certificate(settings)
        if settings.otlp_endpoint is not None:
            from paceline.server.tracing import check_tracing

            check_tracing()
        if settings.traces is not None:
            from paceline.server.capture import check_capture

            check_capture(settings)
        store = self._store()
        sock = bind(settings)
        with sock, logging_to(level=settings.log_level, style=settings.log_format):
            with collecting_paused():
                from paceline.engine.async_engine import AsyncEngine
                from paceline.engine.build import build_engine
                from paceline.engine.startup import start_up_rows
                from paceline.models.packed_file import writing_later

                # the second is FastAPI's, which asks for it when a route is made
                with writing_later(), importing("paceline.server.run", "pydantic.v1"):
                    engine = build_engine(self.engine)
                from paceline.server.run import serve
            console = Console(highlight=False)
            console.print(show.start_up_table(start_up_rows(engine)))
            console.print(sharing(settings), soft_wrap=True)
            if settings.traces is not None:
                from paceline.server.capture import capture_line

                console.print(capture_line(settings), soft_wrap=True)
            extensions = []
            if store is not None:
                from paceline.autospec.api import autospec_extension

                console.print(store_line(store), soft_wrap=True)
                traces = None if settings.traces is None else Path(settings.traces)
                extensions.append(autospec_extension(store, traces))
            serve(AsyncEngine(engine), settings, sock=sock, extensions=extensions)
        return 0

    def _store(self) -> Path | None:
        """Return the folder of the store. Raises InvalidRequest for what cannot be one."""
        if self.autospec is None:
            return None
        folder = self.autospec.expanduser()
        if "," in str(folder.absolute()):
            raise InvalidRequest("autospec", str(folder), "a path without a comma")
        if folder.exists() and not folder.is_dir():
            raise InvalidRequest("autospec", str(folder), "a folder")
        return folder


@checked
class UiCommand:
    """Serve the web page alone: the calculator, the token timing and, with --training, runs of
    training. No model is needed.

    SIGINT or SIGTERM ends it. `paceline serve` has the page too, with a playground and a live view
    of the served model.
    """

    training: RunFolders = about("folder of a run of paceline train, repeatable", ())
    server: Annotated[ServerSettings, Only(UI_OPTIONS)] = ServerSettings(port=UI_PORT)

    def run(self) -> int:
        settings = with_keys(self.server)

        from paceline.server.run import serve_ui, warn_of_open_server

        check_certificate(settings)
        with logging_to(level=settings.log_level, style=settings.log_format):
            warn_of_open_server(settings)
            serve_ui(settings, on_ready=announce_page, runs=[Path(run) for run in self.training])
        return 0


def store_line(folder: Path) -> str:
    """Say in one line what the store of drafters has. Serving does not need it."""
    from paceline.autospec.store import DrafterStore, VersionState
    from paceline.autospec.store.database import FILE

    if not (folder / FILE).is_file():
        make = f"paceline drafters add NAME SPEC --store {folder}"
        return f"There is no store of drafters in {folder} yet: `{make}` makes one."
    try:
        with DrafterStore(folder) as store:
            versions, live = len(store.versions()), len(store.versions(VersionState.LIVE))
    except PacelineError as error:
        return f"Autospec: {error}"
    return f"The store of drafters in {folder} has {versions} versions, {live} of them live."


def sharing(settings: ServerSettings) -> str:
    """Say in one line what requests share."""
    key = "API key, " if settings.api_keys else ""
    scope = f"{key}cache_salt, user and safety_identifier"
    answers = SHARE_ANSWERS[settings.share_answers]
    return f"Requests with the same {scope} share cached prompts. {answers}"


def with_keys(settings: ServerSettings) -> ServerSettings:
    """Return settings with the keys of their file. Raises InvalidRequest, without showing a key."""
    if settings.api_key_file is None:
        return settings
    try:
        text = Path(settings.api_key_file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        expected = f"a text file that can be read ({error})"
        raise InvalidRequest("api_key_file", settings.api_key_file, expected) from None
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and line[0] != "#"]
    if not keys:
        expected = f"a file with lines {FORMS}"
        raise InvalidRequest("api_key_file", settings.api_key_file, expected)
    read_keys(keys, "api_key_file")
    return replace(settings, api_keys=(*settings.api_keys, *keys))


def announce_page(url: str) -> None:
    print(f"Paceline's page is at {url}/", flush=True)
