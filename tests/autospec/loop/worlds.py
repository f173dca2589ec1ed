"""A small world for the loop: a store, traces, a server in this process, and a clock."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as arrow

from paceline.autospec.loop import Autospec, LoopSettings
from paceline.autospec.loop.observe import TraceFolder
from paceline.autospec.policy import AutospecPolicy
from paceline.autospec.server_client import DrafterRoutes
from paceline.autospec.serving import DrafterRefused, ServedVersion
from paceline.autospec.store import Author, DrafterStore, TargetIdentity, VersionState
from paceline.autospec.store.database import StoreDatabase
from paceline.core.cohorts import Cohort
from paceline.dataset.traces.folder import Partition, day_of, write_part
from paceline.dataset.traces.records import (
    REQUESTS,
    ROUNDS,
    SHARED,
    RequestTrace,
    RoundTrace,
    batch,
)
from paceline.drafters.corpus_folder import CorpusAnswer

ME = Author("test", "because")
DAY, HOUR = 86400.0, 3600.0
SHOP = Cohort("tiny", "shop", "de", "eu").label
CHAT = Cohort("tiny", "chat", "en", "us").label
TARGET = TargetIdentity("tiny", None, "f" * 64, None)
POLICY = AutospecPolicy.read(
    {
        "canary": {"steps": [20.0, 50.0, 100.0], "least_hours": 0.0, "cycle_hours": 0.0},
        "retrain": {"gpu_hours_per_day": 1000.0},
    }
)
TURN_SECONDS = 120.0


class Killed(BaseException):
    """Stands for kill -9."""


class Killer:
    """Raises Killed at one point; the points are counted."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.seen = at, 0

    def point(self) -> None:
        self.seen += 1
        if self.seen - 1 == self.at:
            raise Killed

    @contextmanager
    def watching(self, monkeypatch) -> Iterator[None]:
        """Have the points before and after each commit of a store count."""
        plain, killer = StoreDatabase.transaction, self

        @contextmanager
        def watched(database: StoreDatabase):
            outer = not database.connection.in_transaction
            with plain(database) as connection:
                yield connection
                if outer:
                    killer.point()
            if outer:
                killer.point()

        with monkeypatch.context() as patch:
            patch.setattr(StoreDatabase, "transaction", watched)
            yield


class FakeServing:
    """A server's drafters and routes. `refuses` has specs' parts that it cannot load, and `corpora`
    says whether it can look answers up."""

    def __init__(self) -> None:
        self.drafters: dict[str, ServedVersion] = {}
        self.routes = DrafterRoutes()
        self.loads: Counter[str] = Counter()
        self.changes: list[str] = []
        self.refuses: set[str] = set()
        self.corpora = True
        self.killer = Killer()

    def takes_corpora(self) -> bool:
        return self.corpora

    def loaded(self) -> Mapping[str, ServedVersion]:
        return dict(self.drafters)

    def load(self, name: str, spec: str) -> None:
        self.killer.point()
        if name in self.refuses:
            raise DrafterRefused(f"{name}: no room")
        assert name not in self.drafters, "loaded twice"
        self.loads[name] += 1
        self.changes.append(f"load {name}")
        self.drafters[name] = ServedVersion(name, spec, "live", 0)
        self.killer.point()

    def route(self, routes: DrafterRoutes) -> None:
        self.killer.point()
        named = {name for rule in routes.cohorts for name in rule.shares}
        assert named <= self.drafters.keys(), "a route to what is not loaded"
        if routes != self.routes:
            self.changes.append("route")
        self.routes = routes
        self.killer.point()

    def unload(self, name: str) -> None:
        self.killer.point()
        named = {n for rule in self.routes.cohorts for n in rule.shares}
        assert name not in named and name != self.routes.default, "unloaded while it serves"
        del self.drafters[name]
        self.changes.append(f"unload {name}")
        self.killer.point()

    def share(self, cohort: str, session: float) -> str | None:
        """Return the drafter of a request at a place in [0, 1)."""
        key = Cohort.parse(cohort)
        for rule in self.routes.cohorts:
            if key.matches(rule.match):
                total = 0.0
                for name, share in rule.shares.items():
                    total += share
                    if session < total:
                        return name
        return self.routes.default


@dataclass(frozen=True)
class Likeness:
    """When a world begins, and the seed of its requests: worlds of one likeness have the same."""

    now: float = field(default_factory=time.time)
    seed: int = field(default_factory=lambda: secrets.randbelow(2**32))


class World:
    """Everything outside the loop, and a loop that may be made anew."""

    def __init__(
        self,
        folder: Path,
        policy: AutospecPolicy = POLICY,
        target: TargetIdentity = TARGET,
        model: str = "tiny",
        like: Likeness | None = None,
    ) -> None:
        self.folder, self.policy = folder, policy
        self.target, self.model = target, model
        like = like or Likeness()
        self.now = like.now
        self.serving = FakeServing()
        self.al: dict[str, float] = {}  # by drafter or drafter/app; 3 unless stated
        self.scores: dict[str, float] = {}
        self.rng = np.random.default_rng(like.seed)
        self.number = 0
        self.store = DrafterStore(folder / "store", create=True)
        (folder / "traces").mkdir()
        self.write([])
        self.loop = self._new_loop()

    def _new_loop(self) -> Autospec:
        settings = LoopSettings(self.policy, self.scored, self.target, self.model)
        return Autospec(
            self.store, TraceFolder(self.folder / "traces"), self.serving, settings,
            lambda: self.now,
        )  # fmt: skip

    def restart(self) -> None:
        """Make everything of the process anew, as after kill -9."""
        self.store.close()
        self.store = DrafterStore(self.folder / "store")
        self.loop = self._new_loop()

    def scored(self, specs: Mapping[str, str], answers: Sequence[CorpusAnswer]):
        assert answers, "there are answers held out"
        values = {name: self.scores.get(name, 3.0) for name in specs}
        return {name: (al, max(1.0, al - 0.05), al + 0.05, 500) for name, al in values.items()}

    def live(
        self, name: str, cohort: str = "", since_days: float = 60.0, spec: str = "suffix"
    ) -> None:
        """Add a live version that has served for a while."""
        self.store.register(name, ME, spec=spec, target=self.target)
        self.store.promote(name, ME, VersionState.LIVE, cohort=cohort)
        with self.store.database.transaction() as connection:
            connection.execute(
                "UPDATE services SET started = ? WHERE name = ?",
                (self.now - since_days * DAY, name),
            )

    def push(self, name: str, parent: str = "base", spec: str = "suffix") -> None:
        """Promote a version to canary by hand."""
        self.store.register(name, ME, spec=spec, parent=parent, target=TARGET)
        self.store.promote(name, ME, VersionState.CANARY)

    def request(self, cohort: str, at: float, al: float, drafter: str, **more) -> RequestTrace:
        self.number += 1
        parts = Cohort.parse(cohort)
        rounds = 20
        accepted = int(np.clip(self.rng.normal((al - 1) * rounds, 6), 0, 7 * rounds))
        return RequestTrace(
            id=f"r{self.number}", time=at, model=parts.model, app=parts.app,
            language=parts.language, region=parts.region, drafter=drafter, rounds=rounds,
            draft_rounds=rounds, accepted=accepted, draft_bound=7, output_tokens=rounds + accepted,
            ttft=0.1, total=0.1 + 0.02 * rounds, finish="stop", **more,
        )  # fmt: skip

    def write(
        self, requests: list[RequestTrace], rounds: Sequence[Sequence[RoundTrace]] = ()
    ) -> None:
        write_traces(self.folder / "traces", requests, rounds)

    def history(
        self, days: float = 40.0, fall_days: float = 5.0, *, only: str = "",
        day_seconds: float = DAY, **fall: float,
    ) -> None:  # fmt: skip
        """Write weeks of traffic by `base`, of both cohorts or one, in which cohorts fall: shop=0.2
        by a fifth."""
        requests, pace = [], day_seconds / DAY
        for cohort in [only] if only else (SHOP, CHAT):
            app = Cohort.parse(cohort).app
            for hour in range(int(24 * days)):
                before = days * DAY - hour * HOUR
                al = 3.0 * (1 - fall.get(app, 0.0) * (before < fall_days * DAY))
                requests += [
                    self.request(cohort, self.now - (before - s) * pace, al, "base")
                    for s in (60, 600, 1800, 3000)
                ]
        self.write(requests)

    def long_answers(self, late: float, days: float = 40.0, fall_days: float = 5.0) -> None:
        """Write weeks of long answers by `base`, of 40 rounds each; in the last days the share
        `late` of the draft tokens from token 512 on stands that stood before."""
        requests, rounds = [], []
        for hour in range(int(24 * days)):
            before = days * DAY - hour * HOUR
            for second in (600, 1800, 3000):
                self.number += 1
                name, position, made = f"r{self.number}", 0, []
                for _ in range(40):
                    has_fallen = before < fall_days * DAY and position >= 512
                    level = 4.0 * (late if has_fallen else 1.0)
                    accepted = int(self.rng.binomial(7, level / 7))
                    made.append(RoundTrace(name, position, 7, accepted))
                    position += 20
                parts, accepted = Cohort.parse(SHOP), sum(round.accepted for round in made)
                requests.append(
                    RequestTrace(
                        id=name, time=self.now - before + second, model=parts.model,
                        app=parts.app, language=parts.language, region=parts.region,
                        drafter="base", rounds=40, draft_rounds=40, accepted=accepted,
                        draft_bound=7, output_tokens=position, prompt_tokens=50, finish="stop",
                    )
                )  # fmt: skip
                rounds.append(made)
        self.write(requests, rounds)

    def answers(self, cohort: str = SHOP, count: int = 120, keep_days: float = 14.0) -> None:
        """Write answers with their token ids."""
        self.write(
            [
                self.request(
                    cohort, self.now - HOUR - 30 * (count - n), 2.4, "base", scope=SHARED,
                    prompt_ids=[1, 2, 3], output_ids=list(range(10 * n, 10 * n + 10)),
                    expires=self.now + keep_days * DAY,
                )
                for n in range(count)
            ]
        )  # fmt: skip

    def traffic(self, count: int = 300) -> None:
        """Write requests of both cohorts since the last turn, drafted as the routes say."""
        requests = []
        for n in range(count):
            cohort = (SHOP, CHAT)[n % 2]
            drafter = self.serving.share(cohort, float(self.rng.random())) or "base"
            at = self.now - 60 - n * 0.05
            requests.append(self.request(cohort, at, self._al(drafter, cohort), drafter))
        self.write(requests)

    def _al(self, drafter: str, cohort: str) -> float:
        where = f"{drafter}/{Cohort.parse(cohort).app}"
        return self.al.get(where, self.al.get(drafter, 3.0))

    def turn(self) -> None:
        """Let time pass and do a turn."""
        self.now += TURN_SECONDS
        self.traffic()
        self.loop.tick()

    def settle(self, turns: int = 40) -> None:
        """Do turns until no change is under way."""
        for _ in range(turns):
            self.turn()
            if not self.loop.journal.active():
                self.turn()
                return
        raise AssertionError(f"still under way: {self.loop.journal.active()}")

    def close(self) -> None:
        self.store.close()

    def end(self) -> dict[str, object]:
        """Return what people see at the end."""
        return {
            "live": self.store.live(),
            "states": {v.name: str(v.state) for v in self.store.versions()},
            "loaded": sorted(self.serving.drafters),
            "default": self.serving.routes.default,
            "rules": [(dict(r.match), dict(r.shares)) for r in self.serving.routes.cohorts],
            "changes": [(c.cohort, c.version, str(c.stage)) for c in self.loop.journal.changes()],
        }


def write_traces(
    folder: Path,
    requests: Sequence[RequestTrace],
    rounds: Sequence[Sequence[RoundTrace]] = (),
) -> None:
    """Write requests, and the rounds of each where they are given, as a server does."""
    places: dict[tuple[str, str], list[int]] = {}
    for number, request in enumerate(requests):
        places.setdefault((day_of(request.time), request.app), []).append(number)
    for (day, app), numbers in (places or {("2020-01-01", "none"): []}).items():
        rows = {REQUESTS: [requests[number] for number in numbers]}
        if rounds:
            rows[ROUNDS] = [round for number in numbers for round in rounds[number]]
        for kind, kept in rows.items():
            place = Partition(kind, day, app).path(folder)
            write_part(place, arrow.Table.from_batches([batch(kind, kept)]))


def drifted(world: World) -> None:
    """Have a cohort of a world drift, with answers from which a corpus wins it back."""
    world.live("base")
    world.history(shop=0.2)
    world.answers()
    world.al = {"base/shop": 2.4, "auto-1": 3.2}
    world.scores = {"base": 2.4, "auto-1": 3.2}


def overtaken(world: World, spec: str = "suffix") -> None:
    """Have `good`, which somebody pushed, go live at its second attempt: during the first one,
    `other` goes live by hand."""
    world.push("good", spec=spec)
    world.al["good"] = 3.5
    world.turn()
    world.live("other", since_days=0.0)
    world.settle()
    world.settle()
    changes = [change for change in world.loop.journal.changes() if change.version == "good"]
    assert [change.stage for change in changes] == ["live", "stopped"]
    assert world.store.live()[""] == "good"


def with_days_of(seconds: float) -> AutospecPolicy:
    """Return the worlds' policy with days of so many seconds."""
    drift = POLICY.drift.model_copy(update={"day_seconds": seconds})
    return POLICY.model_copy(update={"drift": drift})
