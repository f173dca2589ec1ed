"""What a run has shown: the counts, the failures with their requests, and the verdict."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.bodies import Case
from tests.fuzz.bystander import Noticed
from tests.fuzz.connection import HttpReply

SHOWN = 12  # failures of a kind that are printed
LOGGED = 40  # lines of the log of a server that died
SAVED = 200  # requests of a kind that are saved


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a server must keep to: seconds that a bystander's stream or /health may wait, seconds
    that its one-token requests may, queue included, and MiB that memory may grow by."""

    gap: float = 0.25
    wait: float = 5.0
    growth: float = 256.0


@dataclass(slots=True)
class Death:
    """A server that ended by itself, and what was in flight."""

    code: int
    log: str
    cases: list[Case]
    culprits: list[int] = field(default_factory=list)  # those that ended a server alone


@dataclass(slots=True)
class Findings:
    """Everything that the storm, the bystanders and the checks at the end have seen."""

    statuses: Counter[str] = field(default_factory=Counter)
    errors: list[tuple[Case, str]] = field(default_factory=list)  # 5xx, whole or in a stream
    hangs: list[tuple[Case, str]] = field(default_factory=list)
    dropped: list[tuple[Case, str]] = field(default_factory=list)
    lost: dict[str, list[Case]] = field(default_factory=dict)  # by the URL of a server that died
    spans: list[tuple[int, float, float]] = field(default_factory=list)  # index, sent, answered
    wire: Counter[str] = field(default_factory=Counter)
    deaths: list[Death] = field(default_factory=list)
    noticed: list[Noticed] = field(default_factory=list)
    rss: list[float] = field(default_factory=list)  # MiB, of the last server
    checks: list[str] = field(default_factory=list)  # that failed
    seconds: float = 0.0
    gap_causes: list[tuple[Case, float]] = field(default_factory=list)  # longest gap of each, alone

    def take(self, case: Case, reply: HttpReply) -> None:
        """Counts one answer, and keeps it if it is the server's failure."""
        self.statuses[str(reply.status)] += 1
        if reply.status >= 500:
            self.errors.append((case, f"{reply.status} {_message(reply.body)}"))
        elif reply.status == 200 and reply.body.startswith(b"data: "):
            last = reply.body.rstrip().rpartition(b"\n\n")[2]
            if b'data: {"error"' in reply.body:
                error = _error(reply.body)
                if error.get("type") != "invalid_request_error":  # a 4xx that came late
                    self.errors.append((case, f"in a stream: {_message(reply.body)}"))
            elif last != b"data: [DONE]":
                self.dropped.append((case, "a stream without its end"))

    def gaps(self, over: float) -> list[tuple[str, float, float, float]]:
        """Waits of streams and /health that are longer, the longest first."""
        every = (gap for noticed in self.noticed for gap in noticed.gaps)
        longer = (tuple(gap) for gap in every if gap[0] != "one token" and gap[3] > over)
        return sorted(longer, key=lambda gap: -gap[3])

    def longest(self, what: str) -> float:
        return max((noticed.longest.get(what, 0.0) for noticed in self.noticed), default=0.0)

    def in_flight(self, start: float, end: float) -> list[int]:
        """Indices of the requests that were in flight in between, those sent last before the end
        first: a request mostly stalls others when it arrives."""
        flying = [span for span in self.spans if span[1] < end and span[2] > start]
        return [index for index, _, _ in sorted(flying, key=lambda span: -span[1])]

    @property
    def growth(self) -> float:
        """MiB by which memory grew after the first quarter of the last server's life."""
        return self.rss[-1] - self.rss[len(self.rss) // 4] if self.rss else 0.0

    def failures(self, bounds: Bounds) -> list[str]:
        """What the server did wrong, in sentences; none: the run is good."""
        failed = [
            (len(self.deaths), "deaths of the server"),
            (len(self.errors), "answers were 5xx"),
            (len(self.hangs), "requests got no answer"),
            (len(self.dropped), "connections ended without a whole answer"),
            (len(self.gaps(bounds.gap)), f"bystanders' gaps over {1e3 * bounds.gap:.0f} ms"),
        ]
        told = [f"{count} {what}" for count, what in failed if count]
        if self.longest("one token") > bounds.wait:
            told.append(f"a one-token request waited {self.longest('one token'):.1f} s")
        if self.growth > bounds.growth:
            told.append(f"memory grew by {self.growth:.0f} MiB")
        told += [f"{n} times {what}" for what, n in self.wire.items() if "ACCEPTED" in what]
        if not sum(noticed.streams for noticed in self.noticed):
            told.append("no bystander could read a stream")
        return told + self.checks


def _error(body: bytes) -> dict[str, Any]:
    """The error of an answer or a stream; empty where there is none that can be read."""
    text = body.rpartition(b'data: {"error"')[2] if body.startswith(b"data: ") else b""
    whole = b'{"error"' + text.split(b"\n")[0] if text else body
    try:
        error = json.loads(whole)["error"]
    except (ValueError, LookupError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _message(body: bytes) -> str:
    """The error's own words."""
    return str(_error(body).get("message") or repr(body[:200]))[:200]


def report(findings: Findings, bounds: Bounds) -> str:
    """The whole run as text."""
    rss, gaps = findings.rss or [0.0], findings.gaps(bounds.gap)
    sent = len(findings.spans)
    rows = [
        ("requests",
        f"{sent} in {findings.seconds:.0f} s, {sent / (findings.seconds or 1):.0f}/s"),
        ("statuses", ", ".join(f"{s}: {n}" for s, n in sorted(findings.statuses.items()))),
        ("deaths", f"{len(findings.deaths)}"),
        ("5xx", f"{len(findings.errors)}"),
        ("hangs", f"{len(findings.hangs)}"),
        ("cut off", f"{len(findings.dropped)}"),
        ("wire clients", f"{findings.wire.total()}"),
        ("bystander", f"{sum(n.streams for n in findings.noticed)} streams, "
         f"{sum(n.events for n in findings.noticed)} events"),
        *((f"  {what}", f"longest {1e3 * findings.longest(what):.0f} ms, p99 {1e3 * p99:.0f} ms")
          for what, p99 in _p99(findings).items()),
        ("  gaps", f"{len(gaps)} over {1e3 * bounds.gap:.0f} ms, "
         f"{len(findings.gaps(1.0))} over 1 s"),
        ("  had no CPU", f"{sum(n.starved for n in findings.noticed):.1f} s, taken off its gaps"),
        ("RSS, MiB",
        f"{rss[0]:.0f} at the start, {max(rss):.0f} at most, {rss[-1]:.0f} at the end"),
    ]  # fmt: skip
    lines = [f"{name:14}{text}" for name, text in rows]
    lines += [f"  wire: {n:5} {what}" for what, n in sorted(findings.wire.items())]
    for number, death in enumerate(findings.deaths, 1):
        lines.append(f"death {number}: exit code {death.code}; of {len(death.cases)} in flight, "
                     f"alone it dies of {death.culprits or 'none that was tried'}")  # fmt: skip
        lines += [f"  {case.shown()}" for case in death.cases if case.index in death.culprits]
        lines += [f"  log: {line}" for line in _crashed(death.log)[:LOGGED]]
    for what, start, end, seconds in gaps[:SHOWN]:
        flying = findings.in_flight(start, end)
        lines.append(f"gap: {what} {seconds:.2f} s; in flight: {flying[:SHOWN]}")
    lines += [f"gap of {gap:.2f} s alone: {case.shown()}" for case, gap in findings.gap_causes]
    for name, kept in (
        ("5xx", findings.errors),
        ("hang", findings.hangs),
        ("cut", findings.dropped),
    ):
        lines += [f"{name}: {told}: {case.shown()}" for case, told in kept[:SHOWN]]
        lines += [f"{name}: and {len(kept) - SHOWN} more"] if len(kept) > SHOWN else []
    return "\n".join(lines)


def _crashed(log: str) -> list[str]:
    """The log from the thread that crashed on, where faulthandler names one."""
    lines = log.splitlines()
    at = [index for index, line in enumerate(lines) if line.startswith("Current thread")]
    return lines[at[0] :] if at else lines


def _p99(findings: Findings) -> dict[str, float]:
    """The worst of all servers' lives."""
    names = {name: None for noticed in findings.noticed for name in noticed.p99}
    return {name: max(n.p99.get(name, 0.0) for n in findings.noticed) for name in names}


def save(findings: Findings, folder: Path, told: str) -> None:
    """Write the report, the log of each server that died, and every failing request: its first
    line, an empty line, its body."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("*.http"), *folder.glob("*.log")]:
        old.unlink()
    (folder / "report.txt").write_text(told + "\n", "utf-8", "replace")
    kinds = {
        "5xx": [case for case, _ in findings.errors],
        "hang": [case for case, _ in findings.hangs],
        "cut": [case for case, _ in findings.dropped],
        "gap": [case for case, _ in findings.gap_causes],
    }
    for number, death in enumerate(findings.deaths, 1):
        kinds[f"death-{number}"] = death.cases
        (folder / f"death-{number}.log").write_text(death.log, "utf-8", "replace")
    for kind, kept in kinds.items():
        for case in kept[:SAVED]:
            head = f"{case.method} {case.target}\n\n".encode("utf-8", "surrogatepass")
            (folder / f"{kind}-{case.index}.http").write_bytes(head + case.content)
