"""Who sends a request, as far as drafters and traces care: its cohort, its session, its key."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from starlette.datastructures import Headers

from paceline.core import InvalidRequest
from paceline.core.cohorts import NONE, Cohort
from paceline.server.errors import invalid
from paceline.server.keys import ApiKey
from paceline.server.languages import Languages
from paceline.server.protocol import ChatRequest, CompletionRequest, Message

APP, REGION, SESSION = "X-Paceline-App", "X-Paceline-Region", "X-Session-ID"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LONGEST_SESSION = 256  # characters
SYSTEM = ("system", "developer")  # roles of the messages that an app writes
MOST_SYSTEM = 4096  # characters of a system prompt that tell apps apart
MOST_COHORTS = 64  # that are counted for themselves
OFTEN = 32  # requests of a cohort before it may take the place of a rarer one
HALVED = 4096  # requests after which all counts are halved: what was common last week leaves
WAITING = 4 * MOST_COHORTS  # pooled cohorts whose requests are counted


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    cohort    as the request says it: what routes match
    counted   the same, or the cohort that rare ones are pooled in: what counters, rounds and
              traces have
    session   whose requests belong together; None where nothing says so
    key       the API key that it came with; None on an open server
    """

    cohort: Cohort
    counted: Cohort
    session: str | None = None
    key: ApiKey | None = None


class Callers:
    """Finds the caller of each request. Belongs to the event loop."""

    def __init__(self, keys: dict[str, ApiKey]) -> None:
        self.languages = Languages()
        self._keys, self._common = keys, CommonCohorts()

    def of(self, body: ChatRequest | CompletionRequest, headers: Headers, key_name: str) -> Caller:
        """Return who sends `body` with the API key of this name. Raises ApiError (400), naming the
        header."""
        key = self._keys.get(key_name)
        cohort = Cohort(
            model=body.model,
            app=_stated(headers, APP) or _app(body, key),
            language=self.languages.of(user_text(body)),
            region=_stated(headers, REGION) or NONE,
        )
        return Caller(cohort, self._common.counted(cohort), _session(body, headers), key)


class CommonCohorts:
    """The cohorts that are counted for themselves; others are pooled. At most MOST_COHORTS.

    The first ones are common at once. Later, a cohort takes the place of the rarest one when it
    has come OFTEN, and more often than that one lately. The pooled are counted as by Misra and
    Gries, so that no flood of names makes any of them look common.
    """

    def __init__(self) -> None:
        self._counts: dict[Cohort, int] = {}
        self._pooled: dict[Cohort, int] = {}
        self._requests = 0

    def counted(self, cohort: Cohort) -> Cohort:
        """Count a request, and return the cohort that it counts for."""
        self._requests += 1
        if self._requests % HALVED == 0:
            self._counts = {name: count // 2 for name, count in self._counts.items()}
            self._pooled = _halved(self._pooled)
        if cohort in self._counts or len(self._counts) < MOST_COHORTS:
            self._counts[cohort] = self._counts.get(cohort, 0) + 1
            return cohort
        return cohort if self._admitted(cohort) else Cohort.pooled(cohort.model)

    def _admitted(self, cohort: Cohort) -> bool:
        """Count a request of a pooled cohort; return whether it has become common."""
        if cohort not in self._pooled and len(self._pooled) >= WAITING:
            less = {name: count - 1 for name, count in self._pooled.items()}
            self._pooled = {name: count for name, count in less.items() if count}
            return False
        count = self._pooled[cohort] = self._pooled.get(cohort, 0) + 1
        if count < OFTEN:
            return False
        rarest = min(self._counts, key=self._counts.__getitem__)
        if self._counts[rarest] >= count:
            return False
        self._counts[cohort] = self._pooled.pop(cohort)
        self._pooled[rarest] = self._counts.pop(rarest)
        return True


def user_text(body: ChatRequest | CompletionRequest) -> str:
    """Return the start of the text whose language counts: the user's last message, or the prompt.
    Empty where there is none, as for token ids."""
    if isinstance(body, ChatRequest):
        turns = (message for message in reversed(body.messages) if message.role == "user")
        return _start(next(turns, None), MOST_SYSTEM)
    return next((text[:MOST_SYSTEM] for text in body.prompts if isinstance(text, str)), "")


def _app(body: ChatRequest | CompletionRequest, key: ApiKey | None) -> str:
    """Return the app of a request that names none: its key's name, or a digest of the start of its
    system prompt, which other servers give the same prompt too."""
    if key is not None and key.named:
        return key.name
    if not isinstance(body, ChatRequest):
        return NONE
    system = next((message for message in body.messages if message.role in SYSTEM), None)
    text = _start(system, MOST_SYSTEM)
    if not text.strip():
        return NONE
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=5)
    return f"prompt-{digest.hexdigest()}"


def _start(message: Message | None, characters: int) -> str:
    """Return the first characters of a message, without joining the rest."""
    if message is None or message.content is None:
        return ""
    if isinstance(message.content, str):
        return message.content[:characters]
    text = ""
    for part in message.content:
        text += part.text[:characters]
        if len(text) >= characters:
            break
    return text[:characters]


def _stated(headers: Headers, name: str) -> str:
    """Return the name in a header, or nothing. Raises ApiError (400)."""
    value = headers.get(name, "").strip()
    if value and not NAME.fullmatch(value):
        expected = "up to 64 letters, digits, dots, dashes and underscores, a letter or digit first"
        raise invalid(InvalidRequest(name, value, expected))
    return value


def _session(body: ChatRequest | CompletionRequest, headers: Headers) -> str | None:
    stated = headers.get(SESSION, "").strip()
    if len(stated) > LONGEST_SESSION:
        expected = f"up to {LONGEST_SESSION} characters"
        raise invalid(InvalidRequest(SESSION, f"{len(stated)} characters", expected))
    return stated or body.user or body.prompt_cache_key or None


def _halved(counts: dict[Cohort, int]) -> dict[Cohort, int]:
    return {name: count // 2 for name, count in counts.items() if count > 1}
