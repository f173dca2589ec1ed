"""The web page and what it asks: apart from the OpenAI API, and not in its schema.

The page itself and `/ui/state` load without an API key, so that there is a place to enter one;
every other path under `/ui/` asks for it (gate.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from paceline.core import ModelError
from paceline.roofline.scenario import predict
from paceline.server import errors, ui_lists
from paceline.server.bodies import read_object, too_much
from paceline.server.errors import ApiError
from paceline.server.gate import Gate
from paceline.server.settings import ServerSettings
from paceline.server.static import read_files
from paceline.server.ui_measured import measured
from paceline.server.ui_timing import timing
from paceline.version import __version__

TABS = (
    # name, title, whether it needs a model that is being served
    ("calculator", "Calculator", False),
    ("timing", "Timing", False),
    ("playground", "Playground", True),
    ("live", "Live", True),
)
NEEDS_SERVER = {
    "playground": "The playground talks to a model that Paceline serves, and shows which of its "
    "tokens were drafted. This page runs without a model; start one, and open its address:",
    "live": "Live shows what a running server measures: acceptance by position, latencies, queue. "
    "This page runs without a model; start one, and open its address:",
}
START = "paceline serve --drafter auto"


def create_ui_app(settings: ServerSettings) -> FastAPI:
    """The page alone, without a model: the calculator and the timing."""
    app = FastAPI(title="Paceline", version=__version__, docs_url=None, redoc_url=None)
    errors.install(app)
    app.add_middleware(Gate, settings=settings)
    add_ui(app, served=False, key_needed=bool(settings.api_keys))
    return app


def add_ui(app: FastAPI, *, served: bool, key_needed: bool) -> None:
    """Adds the page at `/`. `served`: a model is there for the playground and the live view."""
    _add_files(app)
    state = {
        "version": __version__,
        "key_needed": key_needed,
        "tabs": [_tab(name, title, served or not needs) for name, title, needs in TABS],
    }

    _add_computing(app)

    @app.get("/ui/state", include_in_schema=False)
    async def ui_state() -> Response:
        """Which tabs are there, and whether a key is needed."""
        return JSONResponse(state)


def _tab(name: str, title: str, available: bool) -> dict[str, Any]:
    tab = {"name": name, "title": title, "available": available}
    return tab if available else {**tab, "reason": NEEDS_SERVER[name], "command": START}


def _add_computing(app: FastAPI) -> None:
    # one at a time, off the event loop: a slider must not take the cores from a served model
    turn = CapacityLimiter(1)

    async def computed(answer: Callable[[], Any]) -> Response:
        try:
            # rendered over there too: a long answer must not hold up anybody's stream
            return await run_sync(lambda: _answer(answer()), limiter=turn)
        except ModelError as error:
            field = str(error).partition(":")[0]  # such errors begin with the config's own name
            param = field if field.endswith(".config") else "model.config"
            raise ApiError(400, str(error), param=param) from None

    @app.get("/ui/models", include_in_schema=False)
    async def ui_models() -> Response:
        """Models, precisions and drafters to choose from."""
        return await computed(ui_lists.models)

    @app.get("/ui/hardware", include_in_schema=False)
    async def ui_hardware() -> Response:
        """Hardware and calibrations to choose from."""
        return await computed(ui_lists.devices)

    @app.post("/ui/predict", include_in_schema=False)
    async def ui_predict(http: Request) -> Response:
        """What speculation would buy: a scenario's prediction."""
        raw = await http.body()
        return await computed(lambda: predict(_stated(raw)))

    @app.post("/ui/timing", include_in_schema=False)
    async def ui_timing(http: Request) -> Response:
        """When each token arrives, for both panes."""
        raw = await http.body()
        return await computed(lambda: timing(_stated(raw)))

    @app.post("/ui/measured", include_in_schema=False)
    async def ui_measured(http: Request) -> Response:
        """Measured points of what a command wrote."""
        raw = await http.body()
        return await computed(lambda: measured(_stated(raw)))


def _stated(raw: bytes) -> Mapping[str, Any]:
    """The body, which must be a JSON object. Raises ApiError (400)."""
    return read_object(raw, too_much, parse_constant=_refuse)


def _answer(content: Any) -> Response:
    """JSON in ASCII: what a user sent, and an answer repeats, need not be encodable."""
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return Response(text, media_type="application/json")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _add_files(app: FastAPI) -> None:
    files = read_files()

    @app.get("/", include_in_schema=False)
    async def ui_page(request: Request) -> Response:
        """The page."""
        return files["index.html"].answer(request)

    @app.get("/web/{path:path}", include_in_schema=False)
    async def ui_file(path: str, request: Request) -> Response:
        """What the page is made of."""
        if path not in files:
            raise ApiError(404, f"no file {path!r} belongs to the page")
        return files[path].answer(request)
