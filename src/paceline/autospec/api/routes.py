"""The routes below /v1/autospec. A store that is slow, locked or gone fails these alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import get_args

from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.params import Depends
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer

from paceline.autospec.api.answers import (
    AutospecOverview,
    By,
    DrafterChange,
    PromotionBody,
    ReadTraces,
    RollbackBody,
    StoreOverview,
)
from paceline.autospec.api.curves import SPANS
from paceline.autospec.api.flights import Flight, on_thread, patiently
from paceline.autospec.api.overview import overview
from paceline.autospec.api.promotions import promote, rollback
from paceline.autospec.api.traced import MINUTE, TracedTraffic
from paceline.autospec.drift.cells import HOUR
from paceline.autospec.store import ArtefactDamaged, StoreError
from paceline.core import InvalidRequest, PacelineError
from paceline.core.priority import step_back
from paceline.server.bodies import body_route
from paceline.server.drafters_api import DocumentReader
from paceline.server.errors import ApiError
from paceline.server.extension import ServerExtension
from paceline.server.responses import write_json
from paceline.server.statuses import refusals

PATH = "/v1/autospec"
PROMOTE, ROLLBACK = f"{PATH}/promote", f"{PATH}/rollback"
STORE_FRESH, TRACES_FRESH = 2.0, 15.0  # seconds for which an answer is kept
STORE_PATIENCE, TRACES_PATIENCE = 5.0, 2.0  # seconds that a request waits for a store and traces
CHANGE_PATIENCE = 60.0  # for a change, which compares the files of a version with their checksums
LOW_PRIORITY = 10


def autospec_extension(store: Path, traces: Path | None) -> ServerExtension:
    """Return the routes over a store of drafters, and the folder that the server writes traces to.

    Neither needs to be there yet.
    """
    api = AutospecApi(store, traces)
    return ServerExtension(api.add_to, "autospec", frozenset({PROMOTE, ROLLBACK}))


class AutospecApi:
    """Answers about a store, from threads of its own."""

    def __init__(self, store: Path, traces: Path | None) -> None:
        self._store, self._folder = store, traces
        self._traffic = {HOUR: TracedTraffic(), MINUTE: TracedTraffic.by_minute()}
        self._traces = {
            unit: Flight("autospec-traces", partial(self._read_traces, unit), TRACES_FRESH)
            for unit in self._traffic
        }
        self._overviews = {
            by: Flight(f"autospec-{by}", partial(self._read_store, by), STORE_FRESH)
            for by in get_args(By)
        }
        self._changing: Future[DrafterChange] | None = None

    async def overview(self, by: str) -> AutospecOverview:
        """Return the overview with curves by the minute, hour or day. Raises InvalidRequest and
        ApiError."""
        span = next((by_ for by_ in self._overviews if by_ == by), None)
        if span is None:
            raise InvalidRequest("by", by, f"one of {', '.join(self._overviews)}")
        traces = await self._traces_now(HOUR)
        if SPANS[span].unit != HOUR and traces["state"] == "read":
            traces = await self._traces_now(SPANS[span].unit)
        with _refused(self._store):
            view = await self._overviews[span].result(STORE_PATIENCE)
        return {**view, "traces": traces}

    async def change(self, work: Callable[[], DrafterChange]) -> DrafterChange:
        """Make a change of the store, one at a time. Raises InvalidRequest and ApiError."""
        if self._changing is not None and not self._changing.done():
            message = "another change of the store is under way; try again when it is done"
            raise ApiError(409, message, code="change_under_way")
        self._changing = on_thread("autospec-change", work)
        try:
            with _refused(self._store):
                return await patiently(self._changing, CHANGE_PATIENCE)
        finally:
            for flight in self._overviews.values():
                flight.forget()

    def add_to(self, app: FastAPI, key: list[Depends]) -> None:
        """Add the routes to an app."""
        reading = APIRouter(dependencies=key)
        changing = APIRouter(
            route_class=body_route(DocumentReader()),
            dependencies=[Security(HTTPBearer(auto_error=False))],
            responses=refusals(400, 401, 403, 409, 413, 503),
        )

        @reading.get(PATH, response_model=AutospecOverview, responses=refusals(400, 401, 503))
        async def autospec(by: str = "hour") -> Response:
            """Tell versions, cohorts, changes under way and decisions of the store of drafters;
            `by` is `minute` (the last three hours), `hour` (a week) or `day` (60 days)."""
            shown = write_json(await self.overview(by))  # in a millisecond: it may be long
            return Response(shown, media_type="application/json")

        @changing.post(PROMOTE, response_model=DrafterChange)
        async def promotion(body: PromotionBody, http: Request) -> Response:
            """Take a version to a later state. Servers follow when the loop sees it."""
            work = partial(promote, self._store, body, actor_of(http))
            return JSONResponse(await self.change(work))

        @changing.post(ROLLBACK, response_model=DrafterChange)
        async def going_back(body: RollbackBody, http: Request) -> Response:
            """Bring back the version that a cohort had before. Servers follow when the loop sees
            it."""
            work = partial(rollback, self._store, body, actor_of(http))
            return JSONResponse(await self.change(work))

        app.include_router(reading)
        app.include_router(changing)

    async def _traces_now(self, unit: float) -> ReadTraces:
        """Have the traces read in such units of time, and say how far that is."""
        if self._folder is None:
            return {"state": "none", "until": None, "message": None}
        flight = self._traces[unit]
        try:
            traffic = await flight.result(TRACES_PATIENCE)
        except TimeoutError:
            if flight.latest is None:
                return {"state": "reading", "until": None, "message": None}
            traffic = flight.latest
        except (PacelineError, OSError) as error:
            until = self._traffic[unit].until or None
            return {"state": "failed", "until": until, "message": str(error)}
        return {"state": "read", "until": traffic.until, "message": None}

    def _read_traces(self, unit: float) -> TracedTraffic:
        step_back(LOW_PRIORITY)
        assert self._folder is not None, "asked for only where there is one"
        traffic = self._traffic[unit].read_on(self._folder, time.time())
        self._traffic[unit] = traffic
        return traffic

    def _read_store(self, by: By) -> StoreOverview:
        shown = self._traffic[SPANS[by].unit]
        return overview(self._store, self._traffic[HOUR], shown, by)


def actor_of(http: Request) -> str:
    """Return who sends a request with the admin key, as the history names them."""
    return f"admin key from {http.client.host}" if http.client else "admin key"


@contextmanager
def _refused(store: Path) -> Iterator[None]:
    """Word what a store has against a request."""
    try:
        yield
    except ArtefactDamaged as error:
        raise ApiError(409, str(error), code="files_damaged") from None
    except StoreError as error:
        raise ApiError(503, str(error), code="store_failed") from None
    except TimeoutError:
        message = (
            f"the store {store} has not answered in time; what it was asked may still happen, so "
            "look again before you repeat it"
        )
        raise ApiError(503, message, code="store_slow") from None
    except InvalidRequest as error:
        if error.field != "store":
            raise
        raise ApiError(503, str(error), code="no_store") from None
