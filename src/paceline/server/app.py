"""The HTTP API: routes, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from anyio import CapacityLimiter
from fastapi import APIRouter, FastAPI, Request, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.params import Depends
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from pydantic import TypeAdapter

from paceline.engine.async_engine import AsyncEngine
from paceline.server import errors, paths, responses, tokenising
from paceline.server.access import RequestLog
from paceline.server.bodies import body_route
from paceline.server.drafters_api import add_drafters
from paceline.server.extension import ServerExtension
from paceline.server.gate import Gate
from paceline.server.live import asked
from paceline.server.messages_api.objects import MessagesError
from paceline.server.messages_api.routes import add_messages
from paceline.server.metrics import CONTENT_TYPE
from paceline.server.protocol import ChatRequest, CompletionRequest
from paceline.server.responses import AnswerChunk, ServedModel
from paceline.server.responses_api import routes as responses_routes
from paceline.server.responses_api.routes import ResponsesApi
from paceline.server.round_bodies import RequestRounds
from paceline.server.serving import Serving
from paceline.server.settings import ServerSettings
from paceline.server.statuses import GENERATION, refusals
from paceline.server.this_server import ThisServer
from paceline.server.tokenising import DetokenizeRequest, TokenizeRequest
from paceline.server.tracing import tracing_to
from paceline.server.ui import MODEL, add_ui
from paceline.version import __version__

NAMED_TYPES: tuple[type, ...] = (AnswerChunk, errors.ErrorResponse, MessagesError)


def create_app(
    async_engine: AsyncEngine,
    settings: ServerSettings,
    extensions: Sequence[ServerExtension] = (),
) -> FastAPI:
    """Return the app that serves `async_engine`, which the caller starts and stops."""
    serving = Serving(async_engine, settings)
    # no /docs: its page would load scripts from somebody else's server
    app = FastAPI(title="Paceline", version=__version__, openapi_url=None, redirect_slashes=False)
    errors.install(app)
    paths.install(app)
    admin = frozenset[str]().union(*(extension.admin for extension in extensions))
    app.add_middleware(Gate, settings=settings, admin=admin)
    app.add_middleware(RequestLog, tracing=tracing_to(settings.otlp_endpoint))
    key: list[Depends] = [Security(HTTPBearer(auto_error=False))] if settings.api_keys else []
    kept = ResponsesApi(serving)
    _add_generation(app, serving, kept, key)
    # one at a time: what the page computes must not take the cores from a served model
    turn = CapacityLimiter(1)
    _add_lookups(app, serving, kept, key)
    _add_page_data(app, serving, ThisServer(async_engine, serving.live, turn), key)
    add_drafters(app, serving)
    for extension in extensions:
        extension.add(app, key)
    _add_operations(app, serving)
    app.state.live = serving.live  # whoever runs the app runs its sampling
    app.state.languages = serving.callers.languages  # and has them loaded
    app.state.capture = serving.capture  # and closes it
    offers = {MODEL, *(extension.tab for extension in extensions)}
    add_ui(app, offers=offers, key_needed=bool(settings.api_keys), turn=turn)
    return app


def _add_generation(app: FastAPI, serving: Serving, kept: ResponsesApi, key: list[Depends]) -> None:
    routes = APIRouter(
        route_class=body_route(serving.bodies), responses=GENERATION, dependencies=key
    )

    @routes.post("/v1/chat/completions", response_model=responses.ChatCompletion)
    async def chat_completions(body: ChatRequest, http: Request) -> Response:
        """Answer a conversation, whole or as a stream."""
        return await serving.answer(body, http)

    @routes.post("/v1/completions", response_model=responses.Completion)
    async def completions(body: CompletionRequest, http: Request) -> Response:
        """Continue text or token ids, whole or as a stream."""
        return await serving.answer(body, http)

    responses_routes.add_creation(routes, kept)
    add_messages(routes, serving)

    @routes.post("/tokenize", response_model=tokenising.Tokenized)
    async def tokenize(body: TokenizeRequest, http: Request) -> Response:
        """Return the token ids of a text or a conversation."""
        written = await tokenising.tokenize(serving, body, http)
        return Response(written, media_type="application/json")

    @routes.post("/detokenize", response_model=tokenising.Detokenized)
    async def detokenize(body: DetokenizeRequest, http: Request) -> Response:
        """Return the text of token ids."""
        written = await tokenising.detokenize(serving, body, http)
        return Response(written, media_type="application/json")

    app.include_router(routes)


def _add_lookups(app: FastAPI, serving: Serving, kept: ResponsesApi, key: list[Depends]) -> None:
    def entry(name: str) -> ServedModel:
        return {
            "id": name,
            "object": "model",
            "created": serving.started,
            "owned_by": "paceline",
            "max_model_len": serving.engine.max_model_len,
        }

    routes = APIRouter(dependencies=key)
    responses_routes.add_lookups(routes, kept)

    @routes.get("/v1/models", response_model=responses.ModelList, responses=refusals(401))
    async def models() -> Response:
        """List the models that requests may name."""
        return JSONResponse({"object": "list", "data": [entry(name) for name in serving.models]})

    @routes.get(
        "/v1/models/{name:path}", response_model=ServedModel, responses=refusals(400, 401, 404)
    )
    async def model(name: str) -> Response:
        """Return one model by its name."""
        serving.check_model(name)
        return JSONResponse(entry(name))

    @routes.get("/server_info", response_model=responses.ServerInfo, responses=refusals(401))
    async def server_info() -> Response:
        """Name the model, in the place where SGLang's router looks for it."""
        return JSONResponse({"served_model_name": serving.models[0], "version": __version__})

    @routes.get(
        "/v1/requests/{id}/rounds",
        response_model=RequestRounds,
        responses=refusals(401, 404),
    )
    async def rounds(id: str, http: Request) -> Response:
        """Return the rounds of a request that had `explain` set to true."""
        return Response(await serving.rounds(id, http), media_type="application/json")

    app.include_router(routes)


def _add_page_data(
    app: FastAPI, serving: Serving, this_server: ThisServer, key: list[Depends]
) -> None:
    routes = APIRouter(dependencies=key)

    @routes.get("/ui/serving", include_in_schema=False)
    async def ui_serving() -> Response:
        return JSONResponse(serving.facts())

    @routes.get("/ui/requests", include_in_schema=False)
    async def ui_requests(http: Request) -> Response:
        return JSONResponse(serving.recent(http))

    @routes.get("/ui/this-server", include_in_schema=False)
    async def ui_this_server() -> Response:
        return JSONResponse(await this_server.scenario())

    @routes.get("/ui/live", include_in_schema=False)
    async def ui_live(http: Request) -> Response:
        return JSONResponse(serving.live.snapshot(**asked(http.query_params)))

    app.include_router(routes)


def _add_operations(app: FastAPI, serving: Serving) -> None:
    unhealthy = {"model": responses.Health, "description": "The server takes no new requests."}

    @app.head("/health", include_in_schema=False)
    @app.get("/health", response_model=responses.Health, responses={503: unhealthy})
    async def health() -> Response:
        """Say whether the server takes new requests."""
        if not serving.engine.alive:
            return JSONResponse({"status": "dead"}, 503)
        if serving.engine.draining:
            return JSONResponse({"status": "draining"}, 503)
        return JSONResponse({"status": "ok"})

    @app.get("/version", response_model=responses.Version)
    async def version() -> Response:
        """Return the version of the server."""
        return JSONResponse({"version": __version__})

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """Return metrics in the text format of Prometheus."""
        return Response(serving.metrics.render(), media_type=CONTENT_TYPE)

    @app.get("/openapi.json", include_in_schema=False)
    async def schema() -> Response:
        # it takes half a second to make, so a thread makes it
        return await run_in_threadpool(lambda: JSONResponse(_whole_schema(app)))


def _whole_schema(app: FastAPI) -> dict[str, object]:
    """Return the schema of `app`, with the types that paths name and none of them returns."""
    described = app.openapi()
    for kind in NAMED_TYPES:
        schema = TypeAdapter(kind).json_schema(ref_template="#/components/schemas/{model}")
        parts = schema.pop("$defs", {})
        described["components"]["schemas"] |= {**parts, kind.__name__: schema}
    return described
