"""Options of a server, validated on construction."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import PlainValidator

from paceline.core import InvalidRequest
from paceline.core.documents import checked
from paceline.core.field_types import Between, Flag, OneOf, Several
from paceline.server.keys import FORMS, ApiKey, read_keys

SHARE_ANSWERS = {  # choices, and what the start-up line says of each
    "named": "If they set one of these fields, they also draft from each other's answers.",
    "always": "They also draft from each other's answers.",
    "never": "No request drafts from another's answer.",
}
STEADY_MS = (5.0, 1000.0)
LOOPBACK = ("localhost", "127.0.0.1", "::1")
LONGEST = 24 * 3600.0  # seconds; longer time limits than a day are mistakes
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
ORIGIN_WORDS = ("localhost", "*", "none")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s,]+", re.IGNORECASE | re.ASCII)
DAYS = "days, more than 0"
URL = re.compile(r"https?://\S+$", re.IGNORECASE)
ROOT_PATH = re.compile(r"(/[a-z0-9._~-]+)+", re.IGNORECASE | re.ASCII)
# a host as a URL names it: a name, an IPv4 address, or an IPv6 address in brackets; then a port
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9_.-]+))(?::\d*)?", re.IGNORECASE | re.ASCII)


def _check_keys(keys: object) -> tuple[str, ...]:
    """Check API keys by hand: an error must not show one."""
    if not isinstance(keys, tuple | list) or not all(isinstance(key, str) for key in keys):
        raise InvalidRequest("api_keys", "<hidden>", f"a list of texts, each {FORMS}")
    read_keys(keys)
    return tuple(keys)


def _check_key(key: object) -> str | None:
    """Check an admin key by hand: an error must not show it."""
    if key is None or (isinstance(key, str) and key.isascii() and re.fullmatch(r"[!-~]+", key)):
        return key
    raise InvalidRequest("admin_key", "<hidden>", "printable ASCII without spaces, not empty")


Names = Annotated[tuple[str, ...], Several]
Seconds = Annotated[
    float,
    Between(0.1, LONGEST, words="seconds, from 0.1 to a day (86400)"),
    Flag(metavar="SECONDS"),
]


@checked
class ServerSettings:
    """Options of an HTTP server. Raises InvalidRequest naming the field.

    The command line, its help and docs/cli.md take name, type, default and text from the fields.
    """

    host: str = "127.0.0.1"
    """where to listen (default: 127.0.0.1, loopback)"""
    port: Annotated[int, Between(0, 65535, words="a port from 0 (any free one) to 65535")] = 8000
    """port to listen on; 0 takes a free one"""
    api_keys: Annotated[tuple[str, ...], PlainValidator(_check_keys), Flag("api-key", "KEY")] = ()
    """key that clients send as `Authorization: Bearer KEY`, or `NAME KEY` with a name for the log
    and traces, or `NAME KEY tokens=own` (see --traces-tokens); repeat it for several. Set
    PACELINE_API_KEY instead, or --api-key-file, which a list of processes does not show
    (default: open to all who reach the port)"""
    api_key_file: Annotated[str, Flag(metavar="FILE")] | None = None
    """file with an API key on each line, as `NAME KEY`, `NAME KEY tokens=own` or `KEY`; the log
    names the key of each request. Lines that begin with # are comments"""
    admin_key: Annotated[str | None, PlainValidator(_check_key), Flag(metavar="KEY")] = None
    """key that those send who load, route and retire drafters (/v1/drafters), and who promote and
    roll back with --autospec; set PACELINE_ADMIN_KEY instead (default: none, and nobody may)"""
    served_model_names: Annotated[Names, Flag("served-model-name", "NAME")] = ()
    """name that requests use; repeat it for several (default: the model's own)"""
    spec_metrics: Annotated[str, OneOf(("none", "summary", "detailed"))] = "summary"
    """what responses tell of their speculation; `detailed` adds counts of each round"""
    drain_timeout: Annotated[
        float, Between(0, words="seconds, at least 0"), Flag(metavar="SECONDS")
    ] = 30.0
    """time that running requests get to finish after SIGTERM"""
    max_body_bytes: Annotated[
        int, Between(1, words="at least 1 byte"), Flag("max-body", "SIZE", size=True)
    ] = 4 * 2**20
    """longest request body"""
    share_answers: Annotated[str, OneOf(tuple(SHARE_ANSWERS))] = "named"
    """whose answers drafts are looked up in, besides the request's own text: those of the same
    scope if it names a cache_salt, user or safety_identifier (named), of the same scope in any case
    (always), or nobody's (never)"""
    steady_stream: Annotated[float, Flag(metavar="MS")] = 0.0
    """milliseconds between the writes of a stream, all of one size, which hide from the network how
    many tokens a round committed; 0 writes events as they come"""
    stored_responses: Annotated[
        int, Between(0, 2**20, words="a whole number; 0 keeps none"), Flag(metavar="N")
    ] = 1000
    """most responses of /v1/responses that are kept in memory for follow-ups; those not used for
    longest go first"""
    stored_responses_memory: Annotated[
        int, Between(0, words="at least 0 bytes"), Flag(metavar="SIZE", size=True)
    ] = 64 * 2**20
    """memory for kept responses"""
    keep_alive: Seconds = 75.0  # above the 60 s of common load balancers: they should close first
    """time that an idle connection is kept for the client's next request"""
    read_timeout: Seconds = 30.0
    """time that a client has to send a request's headers, and the longest pause while it sends the
    body"""
    write_timeout: Seconds = 60.0
    """time that a client may leave an answer unread; then the connection is cut and the request is
    aborted"""
    max_connections: Annotated[int, Between(1, 2**20, words="1 or more")] | None = None
    """most open connections (default: 1024, or what the limit of open files allows); raise it
    together with --max-waiting"""
    allow_hosts: Annotated[Names, Flag("allow-host", "NAME")] = ()
    """name under which clients or a reverse proxy reach the server; repeat it for several. Without
    API keys a server on loopback answers to localhost only, and with this option any server to
    these names only"""
    allow_origins: Annotated[Names, Flag("allow-origin", "ORIGIN")] = ("localhost",)
    """origin whose web pages may use the API from a browser, as https://chat.example.org; repeat it
    for several. `localhost` allows the pages of this machine, `*` those of every site, and
    `none` only the server's own page (default: localhost)"""
    root_path: Annotated[str, Flag(metavar="PATH")] = ""
    """path below which a reverse proxy serves this server, as /llm; the proxy may leave it in
    requests or strip it"""
    uds: Annotated[str, Flag(metavar="PATH")] | None = None
    """Unix socket to listen on, in place of host and port"""
    ssl_certfile: Annotated[str, Flag(metavar="FILE")] | None = None
    """certificate chain (PEM); with it the server speaks HTTPS only"""
    ssl_keyfile: Annotated[str, Flag(metavar="FILE")] | None = None
    """private key of the certificate (PEM), if its file has none"""
    lenient: bool = False
    """leave out request fields that this server does not know or support, in place of refusing
    them; the answer's header x-paceline-ignored and the log name them"""
    log_level: Annotated[str, OneOf(LEVELS)] = "info"
    """least level of the lines that are logged: requests are `info`, refusals `warning`, the
    requests of probes and of the page `debug`"""
    log_format: Annotated[str, OneOf(FORMATS)] = "text"
    """how log lines are written, to stderr"""
    otlp_endpoint: Annotated[str, Flag(metavar="URL")] | None = None
    """collector that gets a trace of each request over OTLP/HTTP, as
    http://127.0.0.1:4318/v1/traces; no trace holds any text"""

    traces: Annotated[str, Flag(metavar="FOLDER")] | None = None
    """folder that gets traces: counts, times and rounds of every request, for `paceline traces`
    and autospec. No text, and no token ids without --traces-tokens"""
    traces_tokens: bool = False
    """keep the token ids of prompts and answers too, which drafters learn from: on an open server
    those of all requests, otherwise those of keys whose line says tokens=own (for drafters that
    serve this key alone) or tokens=shared (for all)"""
    traces_ttl: Annotated[float, Between(0, open=True, words=DAYS), Flag(metavar="DAYS")] = 30.0
    """days after which token ids are deleted from traces"""
    traces_keep: Annotated[float, Between(0, open=True, words=DAYS), Flag(metavar="DAYS")] = 90.0
    """days after which all else is deleted from traces"""
    traces_sample: Annotated[float, Between(0, 1)] = 1.0
    """share of the requests whose token ids are kept, of those that may be"""
    traces_redact: Annotated[str, Flag(metavar="MODULE:FUNCTION")] | None = None
    """function that gets the token ids of prompt and answer before they are written, and returns
    both as they may be kept, or None"""

    def __post_init__(self) -> None:
        self._check_traces()
        if not all(self.served_model_names):
            raise InvalidRequest("served_model_names", self.served_model_names, "non-empty names")
        if self.admin_key in {key.key for key in self.keys_by_name.values()}:
            raise InvalidRequest("admin_key", "<hidden>", "a key that is no API key")
        shortest, longest = STEADY_MS
        if self.steady_stream and not shortest <= self.steady_stream <= longest:
            expected = f"0 (off), or milliseconds from {shortest:g} to {longest:g}"
            raise InvalidRequest("steady_stream", self.steady_stream, expected)
        for name in self.allow_hosts:
            if not is_host(name):
                expected = "a host name or address without scheme and port, as paceline.example"
                raise InvalidRequest("allow_hosts", name, expected)
        for origin in self.allow_origins:
            if origin not in ORIGIN_WORDS and not ORIGIN.fullmatch(origin):
                expected = f"{', '.join(ORIGIN_WORDS)}, or an origin as https://chat.example.org"
                raise InvalidRequest("allow_origins", origin, expected)
        if self.root_path and not ROOT_PATH.fullmatch(self.root_path):
            expected = "a path as /llm, without a slash at its end"
            raise InvalidRequest("root_path", self.root_path, expected)
        if self.otlp_endpoint and not URL.match(self.otlp_endpoint):
            expected = "an address as http://127.0.0.1:4318/v1/traces"
            raise InvalidRequest("otlp_endpoint", self.otlp_endpoint, expected)
        if self.ssl_keyfile and not self.ssl_certfile:
            expected = "a certificate too, by --ssl-certfile"
            raise InvalidRequest("ssl_keyfile", self.ssl_keyfile, expected)

    def _check_traces(self) -> None:
        """Refuse options of traces that would do nothing."""
        needed = "traces" if self.traces is None else "traces_tokens"
        stated = {
            "traces_tokens": self.traces_tokens and self.traces is None,
            "traces_sample": self.traces_sample != 1 and not self.traces_tokens,
            "traces_redact": self.traces_redact is not None and not self.traces_tokens,
        }
        for name, alone in stated.items():
            if alone:
                flag = needed.replace("_", "-")
                raise InvalidRequest(name, getattr(self, name), f"--{flag} beside it")

    @property
    def keys_by_name(self) -> dict[str, ApiKey]:
        """Return the API keys by the names that the log gives them: key-1 and so on without one."""
        return {key.name: key for key in read_keys(self.api_keys)}

    @property
    def on_loopback(self) -> bool:
        """Return whether only this machine can reach the server."""
        if self.uds is not None:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"


def host_name(value: str) -> str | None:
    """Return the host in a Host header, in lower case and without brackets, port and final dot.

    None when the value is malformed.
    """
    match = HOST.fullmatch(value)
    return (match[1] or match[2]).lower().removesuffix(".") if match else None


def is_host(name: str) -> bool:
    """Return whether `name` is a host name or address without scheme, port and brackets."""
    written = f"[{name}]" if name.count(":") > 1 else name  # one colon parts a name from a port
    return host_name(written) == name.lower()
