"""The paths below /v1/drafters: drafters are loaded, routed to and retired while the server serves.

The gate asks for the admin key before a request comes here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, FastAPI, Security
from fastapi.security import HTTPBearer
from pydantic import ConfigDict, Field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from typing_extensions import TypedDict

from paceline.core.documents import Document
from paceline.engine.newcomers import LoadFailed, NoRoom
from paceline.engine.routes import Routes
from paceline.engine.versions import DrafterInUse, LoadedDrafter, UnknownDrafter
from paceline.server.bodies import body_route, read_object, too_much
from paceline.server.errors import ApiError, invalid
from paceline.server.serving import Serving
from paceline.server.statuses import refusals

D = TypeVar("D", bound=Document)
PATH = "/v1/drafters"
LONGEST_NAME = 128  # characters
REFUSED = (400, 401, 403, 503)


class DrafterToLoad(Document):
    """A drafter and the name that requests and routes have for it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: Annotated[str, Field(max_length=LONGEST_NAME)]
    """Letters, digits, `.`, `_` and `-`; no other drafter of the server has it."""
    spec: str
    """The drafter, as `--drafter` takes it, without a name: `dflash:FOLDER`, `suffix`."""


class ShownDrafter(TypedDict):
    """A drafter of the server. `requests` run or wait with it; `version` tells its weights from
    others, and is null while it loads; bytes are of memory."""

    name: str
    version: str | None
    spec: str
    state: Literal["loading", "live", "retiring", "retired"]
    requests: int
    weight_bytes: int
    kv_bytes: int


class ShownDrafters(TypedDict):
    drafters: list[ShownDrafter]
    routes: Routes


class DocumentReader:
    """Reads the bodies of this API, whose fields are none of a generation's."""

    async def read(self, http: Request, model: type[D]) -> D:
        """Read the body of `http` as a `model`. Raises ApiError or InvalidRequest (400)."""
        try:
            raw = await http.body()
        except ClientDisconnect:
            raise ApiError(400, "the client hung up before the body had ended") from None
        return model.read(read_object(raw, too_much))


class DraftersApi:
    """Answers for the drafters of a server."""

    def __init__(self, serving: Serving) -> None:
        self._engine = serving.engine

    def shown(self) -> dict[str, object]:
        """Return all drafters and the routes."""
        versions = self._engine.versions
        used = versions.used()
        drafters = [_shown(drafter, used[drafter.name]) for drafter in versions.list()]
        routes = versions.routes.model_dump()
        return {"drafters": drafters, "routes": routes, "takes_corpora": True}

    async def load(self, body: DrafterToLoad) -> ShownDrafter:
        """Load a drafter and return it when it can be routed to. Raises ApiError."""
        with _refused():
            return _shown(await self._engine.versions.load(body.name, body.spec))

    async def retire(self, name: str) -> tuple[ShownDrafter, bool]:
        """Retire a drafter. Return it, and whether it has left. Raises ApiError."""
        versions = self._engine.versions
        before = next((each for each in versions.list() if each.name == name), None)
        with _refused():
            drafter = await versions.retire(name)
        if drafter is not None:
            return _shown(drafter, versions.used()[name]), False
        assert before is not None, "an unknown name is refused"
        return {**_shown(before), "state": "retired"}, True


def add_drafters(app: FastAPI, serving: Serving) -> None:
    """Add the paths to an app."""
    api = DraftersApi(serving)
    key = [Security(HTTPBearer(auto_error=False))]
    bodies = APIRouter(route_class=body_route(DocumentReader()), dependencies=key)
    others = APIRouter(dependencies=key)

    @others.get(PATH, response_model=ShownDrafters, responses=refusals(401, 403))
    async def list_drafters() -> Response:
        """List the drafters and the routes."""
        return JSONResponse(api.shown())

    @bodies.post(
        PATH,
        status_code=201,
        response_model=ShownDrafter,
        responses=refusals(*REFUSED, 409, 413, 500),
    )
    async def load_drafter(body: DrafterToLoad, http: Request) -> Response:
        """Load a drafter beside the others; answer when it can be routed to."""
        return JSONResponse(await api.load(body), 201)

    # before the path with a name: no drafter is called `routes`
    @bodies.put(
        f"{PATH}/routes", response_model=ShownDrafters, responses=refusals(400, 401, 403, 413)
    )
    async def set_routes(body: Routes, http: Request) -> Response:
        """Serve new requests by these routes; running requests keep their drafters."""
        serving.engine.versions.route(body)
        return JSONResponse(api.shown())

    retiring: dict[int | str, dict[str, Any]] = {
        202: {"model": ShownDrafter, "description": "It leaves when its last request has ended."}
    }

    @others.delete(
        f"{PATH}/{{name}}",
        response_model=ShownDrafter,
        responses={**retiring, **refusals(401, 403, 404, 409, 503)},
    )
    async def retire_drafter(name: str) -> Response:
        """Give a drafter no new request; it leaves when its last one has ended."""
        drafter, has_left = await api.retire(name)
        return JSONResponse(drafter, 200 if has_left else 202)

    app.include_router(bodies)
    app.include_router(others)


def _shown(drafter: LoadedDrafter, requests: int = 0) -> ShownDrafter:
    return {
        "name": drafter.name,
        "version": drafter.version,
        "spec": drafter.spec,
        "state": drafter.state.value,
        "requests": requests,
        "weight_bytes": drafter.memory.weights,
        "kv_bytes": drafter.memory.kv,
    }


@contextmanager
def _refused() -> Iterator[None]:
    """Give errors that are about what the server holds their statuses."""
    try:
        yield
    except DrafterInUse as error:
        raise invalid(error, "drafter_in_use", 409) from None
    except UnknownDrafter as error:
        raise invalid(error, "drafter_not_found", 404) from None
    except NoRoom as error:
        raise ApiError(409, str(error), param="spec", code="no_room") from None
    except LoadFailed as error:
        raise ApiError(500, str(error), param="spec", code="load_failed") from None
