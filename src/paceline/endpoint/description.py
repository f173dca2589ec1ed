"""What users write about an endpoint: where it listens, what serves behind it, and who gets what.

An `EndpointDescription` names replicas that run already; Envoy's files are rendered from it. A
`ManagedEndpoint` says in their place how replicas are started.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import ConfigDict, Field, model_validator

from paceline.core import InvalidRequest
from paceline.core.cohorts import NONE
from paceline.core.documents import Document
from paceline.core.field_types import AtMost, Between, Expected, OneOf
from paceline.dataset.traces.retention import KEEP_DAYS, TOKEN_DAYS
from paceline.engine.routes import Routes
from paceline.engines import KINDS
from paceline.engines.kind import LaunchPlan
from paceline.engines.programs import find_program
from paceline.roofline.scenario.kinds import KINDS as DRAFTING
from paceline.synth.texts import parse_yaml

FOLDER_PREFIX = "dflash:"  # before a folder, as `--drafter` and the store of drafters have it
NO_DRAFTER = "none"  # the spec of a replica that decodes without drafts
WITHOUT_FOLDER = [
    name for name, kind in DRAFTING.items()
    if not kind.checkpoint and (kind.vllm or kind.sglang or kind.paceline)
]  # fmt: skip
MOST_REPLICAS, MOST_APPS = 64, 1024
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_WORDS = "up to 64 letters, digits, dots, dashes and underscores, a letter or digit first"
HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")
ReplicaName = Annotated[str, Expected(NAME_WORDS, lambda text: bool(NAME.fullmatch(text)))]
Seconds = Annotated[float, Between(0, 86_400, open=True)]
Port = Annotated[int, Between(1, 65_535)]
ENGINES = OneOf(tuple(KINDS))
Listen = Annotated[str, Expected("ADDRESS:PORT, as 127.0.0.1:8000", lambda text: _is_listen(text))]


class EndpointPart(Document):
    """Base of the documents of an endpoint: frozen, with a description for each field."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class EndpointTimes(EndpointPart):
    """How long things may take, in seconds."""

    connect: Seconds = 5.0
    """Until a replica accepts a connection; then another one is tried."""
    idle: Seconds = 600.0
    """Without a byte in either direction, such as before the first token; then the request ends."""
    health: Seconds = 5.0
    """Until a replica answers the health check."""
    health_every: Seconds = 1.0
    """Between two health checks."""
    ready: Seconds = 1800.0
    """Until a started replica answers."""
    alone: Seconds | None = 60.0
    """For which Envoy and the replicas go on serving when nobody steers them any more, before they
    end; null is for ever."""


class EndpointTraces(EndpointPart):
    """What is kept of the answers: counts and times of each, and token ids where they may be."""

    folder: str
    """Where traces go, as of `paceline serve --traces`."""
    tokens: Annotated[list[ReplicaName], AtMost(MOST_APPS, "apps")] = Field(default=[])
    """The apps, by their header X-Paceline-App, whose token ids may be kept. Of no other is any."""
    sample: Annotated[float, Between(0, 1)] = 1.0
    """The share of their requests whose token ids are."""
    token_days: Annotated[float, Between(0, open=True)] = TOKEN_DAYS
    """Days after which token ids are deleted."""
    keep_days: Annotated[float, Between(0, open=True)] = KEEP_DAYS
    """Days after which all is."""
    redact: Annotated[str, Expected("MODULE:FUNCTION", lambda text: ":" in text)] | None = None
    """A function that gets the token ids of a prompt and its answer, and returns both as they may
    be kept, or None."""


class EndpointSettings(EndpointPart):
    """What every endpoint states."""

    listen: Listen
    """Where Envoy takes requests."""
    model: str | None = None
    """The name that requests have for the model. Routes may match it, and no other."""
    session_header: Annotated[
        str, Expected("the name of a header", lambda text: bool(HEADER.fullmatch(text)))
    ] = "X-Session-ID"
    """Requests with the same value in this header get the same drafter."""
    health_path: Annotated[
        str, Expected("a path, as /health", lambda text: text.startswith("/"))
    ] = "/health"
    """A replica that does not answer 200 here gets no requests."""
    times: EndpointTimes = EndpointTimes()
    traces: EndpointTraces | None = None
    """Keep traces of vLLM's answers; by default nothing is looked at."""

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and the port that Envoy listens on."""
        return split_listen(self.listen)


class ReplicaDescription(EndpointPart):
    """An engine that runs with one drafter. Replicas of the same `name` share its requests out."""

    name: ReplicaName
    """The drafter's name, which routes use."""
    url: Annotated[
        str, Expected("http://ADDRESS:PORT with an IP address", lambda text: _is_url(text))
    ]
    engine: Annotated[str, ENGINES] = "vllm"
    drafter: str = NO_DRAFTER
    """What it drafts with: a folder, ngram, suffix, or none."""
    fallback: bool = True
    """Whether it also takes requests of replicas that have failed."""

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None and parts.port is not None
        return parts.hostname, parts.port


class EndpointDescription(EndpointSettings):
    """An endpoint and the replicas behind it."""

    replicas: Annotated[list[ReplicaDescription], AtMost(MOST_REPLICAS, "replicas")] = Field(
        default=[]
    )
    routes: Routes | None = None
    """Which drafter serves whom. Without routes every request is answered 503."""
    standins: dict[str, str] = Field(default={})
    """Names of drafters whose replicas have failed, each with the drafter that serves for it."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        urls = [replica.url for replica in self.replicas]
        for index, url in enumerate(urls):
            if url in urls[:index]:
                raise InvalidRequest(f"replicas[{index}].url", url, "an address for each replica")
        for name, standin in self.standins.items():
            if standin not in self.names:
                expected = f"one of: {', '.join(self.names) or 'none: there is no replica'}"
                raise InvalidRequest(f"standins.{name}", standin, expected)
        if self.routes is not None:
            check_routes(self.routes, [*self.names, *self.standins], self.model)
        return self

    @property
    def names(self) -> list[str]:
        """Return the names of the drafters that have a replica, each once."""
        return list(dict.fromkeys(replica.name for replica in self.replicas))


class ReplicaSlot(EndpointPart):
    """A place where one replica may run."""

    port: Port
    environment: dict[str, str] = Field(default={})
    """Variables for this place alone, such as CUDA_VISIBLE_DEVICES."""


class ManagedEndpoint(EndpointSettings):
    """An endpoint that starts its replicas: one for each drafter, each in a slot of its own."""

    engine: Annotated[str, ENGINES]
    target: str
    """The model, a folder or hub id as the engine reads it."""
    slots: Annotated[
        list[ReplicaSlot], AtMost(MOST_REPLICAS, "slots"), Field(min_length=1)
    ]  # fmt: skip
    """Where replicas may run. Replacing a drafter takes two slots."""
    python: str | None = None
    """The engine's interpreter or environment, as of `paceline engine up --python`."""
    max_model_len: Annotated[int, Between(1)] | None = None
    max_num_seqs: Annotated[int, Between(1)] | None = None
    extra: list[str] = Field(default=[])
    """More arguments for the engine."""
    environment: dict[str, str] = Field(default={})
    """Variables for every replica."""
    memory_gb: Annotated[float, Between(0, open=True)] | None = None
    """Main memory that a replica takes. Where less is free, none is started."""
    metrics: Listen | None = None
    """Where Prometheus may scrape Envoy's counts and the metrics of all replicas."""
    drafter: str | None = None
    """[NAME=]DRAFTER of the replica that a new endpoint begins with: a folder, ngram, suffix, mtp,
    or none for one without drafts. By default there is no replica until one is loaded."""

    @classmethod
    def from_yaml(cls, path: str | Path, field: str = "file") -> Self:
        """Read an endpoint's file. Raises InvalidRequest, which names the field with its place."""
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(field, str(path), f"a readable YAML file ({error})") from None
        return cls.read(parse_yaml(text, str(path), field) or {})

    @property
    def first(self) -> tuple[str, str] | None:
        """Return the name and the spec of the drafter that a new endpoint begins with."""
        if self.drafter is None:
            return None
        name, named, spec = self.drafter.rpartition("=")
        return (name if named else Path(spec).name), spec

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        if self.traces is not None and self.engine != "vllm":
            raise InvalidRequest("traces", self.traces.folder, f"none for {self.engine}: vllm only")
        if self.first is not None and not NAME.fullmatch(self.first[0]):
            raise InvalidRequest("drafter", self.drafter, f"NAME=DRAFTER, the name {NAME_WORDS}")
        ports = [self.address[1], *(slot.port for slot in self.slots)]
        for index, port in enumerate(ports):
            if port in ports[:index]:
                raise InvalidRequest(f"slots[{index - 1}].port", port, "a port of its own")
        return self

    def plan(self, spec: str, port: int) -> LaunchPlan:
        """Return how a replica with the drafter `spec` is started on a slot's port. Raises
        InvalidRequest (field `spec`) for one that no engine loads at its start."""
        kind, folder = None, None
        if spec in WITHOUT_FOLDER:
            kind = spec
        elif spec != NO_DRAFTER:
            folder = Path(spec.removeprefix(FOLDER_PREFIX)).expanduser()
            if not (folder / "config.json").is_file():
                kinds = ", ".join(WITHOUT_FOLDER)
                expected = f"a drafter's folder, {kinds}, or {NO_DRAFTER}"
                raise InvalidRequest("spec", spec, expected)
        return LaunchPlan(
            self.target,
            folder,
            kind=kind,
            port=port,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            extra=tuple(self.extra),
            program=find_program(self.engine, self.python),
        )


def split_listen(listen: str) -> tuple[str, int]:
    """Return the host and the port of ADDRESS:PORT."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)


def check_routes(routes: Routes, names: list[str], model: str | None) -> None:
    """Raise InvalidRequest for routes that name a drafter without a replica, or that look at what
    Envoy cannot see of a request."""
    if routes.default is None:
        expected = "a replica's name (one whose drafter is `none` decodes without drafts)"
        raise InvalidRequest("routes.default", None, expected)
    for name, field in routes.drafters.items():
        if name not in names:
            listed = ", ".join(names) or "none: there is no replica"
            raise InvalidRequest(f"routes.{field}", name, f"one of: {listed}")
    for index, route in enumerate(routes.cohorts):
        where = f"routes.cohorts[{index}].match"
        if route.match.language not in (None, NONE):
            expected = "no language: Envoy sees headers and no text; match by app or region"
            raise InvalidRequest(f"{where}.language", route.match.language, expected)
        if route.match.model not in (None, model):
            stated = "states none" if model is None else f"is {model}"
            expected = (
                f"no other model than the endpoint's `model`, which {stated}: Envoy sees no body"
            )
            raise InvalidRequest(f"{where}.model", route.match.model, expected)


def _is_listen(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return _is_ip(host.strip("[]")) and port.isdecimal() and 0 < int(port) < 65_536


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme == "http" and _is_ip(parts.hostname) and text == _rebuilt(parts)
    except ValueError:
        return False


def _rebuilt(parts: SplitResult) -> str:
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    return f"http://{host}:{parts.port}"


def _is_ip(host: str | None) -> bool:
    try:
        ip_address(host or "")
    except ValueError:
        return False
    return True
