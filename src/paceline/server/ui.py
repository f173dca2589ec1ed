"""The web page: its files, and the endpoints that it calls, which are not in the API's schema.

The page itself and `/ui/state` load without an API key, so that there is a place to enter one;
every other path under `/ui/` asks for it (gate.py).
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from paceline.core import InvalidRequest, ModelError
from paceline.dataset.run_log import run_state
from paceline.roofline.architecture import model_names, read_architecture
from paceline.roofline.device import FORMATS, PRESETS, hardware, hardware_names
from paceline.roofline.scenario import KINDS, listed_presets, predict
from paceline.server import errors, paths
from paceline.server.access import RequestLog
from paceline.server.bodies import read_object, too_much
from paceline.server.errors import ApiError
from paceline.server.fields import JsonObject
from paceline.server.gate import Gate
from paceline.server.page_answers import (
    HardwareLists,
    ListedHardware,
    ModelLists,
    PageState,
    Tab,
    TrainingRuns,
)
from paceline.server.responses import picked
from paceline.server.settings import ServerSettings
from paceline.server.ui_measured import measured
from paceline.server.ui_timing import timing
from paceline.version import __version__

MODEL, AUTOSPEC, TRAINING = "model", "autospec", "training"  # what tabs need of a server
TABS = (
    # name, title, what it needs
    ("calculator", "Calculator", None),
    ("timing", "Timing", None),
    ("playground", "Playground", MODEL),
    ("live", "Live", MODEL),
    ("autospec", "Autospec", AUTOSPEC),
    ("training", "Training", TRAINING),
)
START = "paceline serve --drafter auto"
NEEDS_SERVER = {
    # why a tab is not there, and the command that brings it
    "playground": (
        "The playground talks to a model that Paceline serves, and shows which of its "
        "tokens were drafted. This page runs without a model; start one, and open its address:",
        START,
    ),
    "live": (
        "Live shows what a running server measures: acceptance by position, latencies, queue. "
        "This page runs without a model; start one, and open its address:",
        START,
    ),
    "autospec": (
        "Autospec shows how well drafters do, cohort by cohort, what is tried in their place, and "
        "why. This server has no store of drafters; start it with the folder of one, and with "
        "traces, from which acceptance over time is known:",
        f"{START} --autospec STORE --traces FOLDER",
    ),
    "training": (
        "Training shows how far runs of paceline train are, their loss and speed, and acceptance "
        "by set and position. The page alone shows it, for the folders that it is started with:",
        "paceline ui --training RUN",
    ),
}
FOLDER = Path(__file__).parent.parent / "web"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".md": "text/plain; charset=utf-8",
    ".LICENSE": "text/plain; charset=utf-8",
}
HEADERS = {
    # asked for again each time, and answered 304: a new version shows at once
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # the browser itself makes sure that nothing is asked of anybody else
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Vary": "Accept-Encoding",
}


def create_ui_app(settings: ServerSettings, runs: Sequence[Path] = ()) -> FastAPI:
    """Return the app of the page without a model: the calculator, the timing, and the training of
    the folders `runs`."""
    app = FastAPI(
        title="Paceline",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    errors.install(app)
    paths.install(app)
    app.add_middleware(Gate, settings=settings)
    app.add_middleware(RequestLog)
    turn, offers = CapacityLimiter(1), {TRAINING} if runs else set[str]()
    add_ui(app, offers=offers, key_needed=bool(settings.api_keys), turn=turn)

    def training() -> TrainingRuns:
        answer: TrainingRuns = {"runs": [], "errors": {}}
        for folder in runs:
            try:
                answer["runs"].append(run_state(folder))
            except InvalidRequest as error:
                answer["errors"][str(folder)] = str(error)
        return answer

    if runs:  # a long log does not make the calculator wait
        app.get("/ui/training", include_in_schema=False)(_endpoint(training, CapacityLimiter(1)))
    return app


def add_ui(
    app: FastAPI, *, offers: Collection[str], key_needed: bool, turn: CapacityLimiter
) -> None:
    """Add the page at `/`. `offers` is what the server has that tabs need: a model, a store of
    drafters. What the page computes waits for `turn`."""
    files = read_files()
    tabs = [_tab(name, title, needs is None or needs in offers) for name, title, needs in TABS]
    state: PageState = {
        "version": __version__,
        "key_needed": key_needed,
        "opens_on": "playground" if MODEL in offers else "calculator",
        "tabs": tabs,
    }

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def ui_page(request: Request) -> Response:
        return files["index.html"].answer(request)

    @app.get("/web/{path:path}", include_in_schema=False)
    async def ui_file(path: str, request: Request) -> Response:
        if path not in files:
            raise ApiError(404, f"no file {path!r} belongs to the page")
        return files[path].answer(request)

    @app.get("/ui/state", include_in_schema=False)
    async def ui_state() -> Response:
        return JSONResponse(state)

    for name, listed in LISTS.items():
        app.get(f"/ui/{name}", include_in_schema=False)(_endpoint(listed, turn))
    for name, compute in ANSWERS.items():
        app.post(f"/ui/{name}", include_in_schema=False)(_endpoint(compute, turn))


def _tab(name: str, title: str, available: bool) -> Tab:
    tab: Tab = {"name": name, "title": title, "available": available}
    if available:
        return tab
    reason, command = NEEDS_SERVER[name]
    return {**tab, "reason": reason, "command": command}


@cache
def listed_models() -> ModelLists:
    """Return the listed models with their parameters, in all and by token; precisions; drafters;
    presets."""
    architectures = [read_architecture(name) for name in model_names()]
    return {
        "models": [
            {
                "name": architecture.name,
                "max_context": architecture.max_context,
                "parameters": architecture.parameters(),
                "active_parameters": architecture.active_parameters(),
                "weight_bytes": architecture.weight_bytes(),
            }
            for architecture in architectures
        ],
        "precisions": list(FORMATS),
        "drafters": list(KINDS),
        "presets": list(listed_presets()),
    }


@cache
def listed_hardware() -> HardwareLists:
    """Return the listed hardware (bytes, bytes/s, FLOP/s) and the preset calibrations."""
    return {
        "hardware": [picked(ListedHardware, hardware(name)) for name in hardware_names()],
        "calibrations": {name: preset.model_dump() for name, preset in PRESETS.items()},
    }


LISTS = {"models": listed_models, "hardware": listed_hardware}
ANSWERS = {"predict": predict, "timing": timing, "measured": measured}


def _endpoint(
    answer: Callable[..., object], turn: CapacityLimiter
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint that answers on a thread: a POST passes the JSON object in its body."""

    async def endpoint(http: Request) -> Response:
        raw = await http.body()

        def encoded() -> Response:
            stated = [_read(raw)] if http.method == "POST" else []
            # ASCII: an answer may repeat text from a user that UTF-8 cannot encode
            text = json.dumps(answer(*stated), allow_nan=False, separators=(",", ":"))
            return Response(text, media_type="application/json")

        try:
            return await run_sync(encoded, limiter=turn)
        except ModelError as error:
            field = str(error).partition(":")[0]  # such errors begin with the config's own name
            param = field if field.endswith(".config") else "model.config"
            raise ApiError(400, str(error), param=param) from None

    return endpoint


def _read(raw: bytes) -> JsonObject:
    return read_object(raw, too_much, parse_constant=_refuse)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


# -- the page's files, held in memory: no other path can be asked for ------------------------------


@dataclass(frozen=True, slots=True)
class File:
    """One file of the page. `packed` is its content with gzip."""

    content: bytes
    packed: bytes
    media_type: str
    tag: str

    def answer(self, request: Request) -> Response:
        """Return the file, or 304 to a browser that has it."""
        # weak: the same file, packed or not
        headers = {**HEADERS, "ETag": f"W/{self.tag}"}
        if self.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(self.packed, headers=headers, media_type=self.media_type)
        return Response(self.content, headers=headers, media_type=self.media_type)


@cache
def read_files(folder: Path = FOLDER) -> dict[str, File]:
    """Read every file of the page, by its path in `folder` with forward slashes."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in TYPES]
    return {path.relative_to(folder).as_posix(): _read_file(path) for path in paths}


def _read_file(path: Path) -> File:
    content = path.read_bytes()
    tag = '"' + hashlib.blake2b(content, digest_size=12).hexdigest() + '"'
    return File(content, gzip.compress(content, mtime=0), TYPES[path.suffix], tag)
