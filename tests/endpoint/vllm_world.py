"""An endpoint of the real vLLM, with traffic, a store and a loop, and a judge of the texts."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from paceline.autospec.loop import Autospec, LoopNews, LoopSettings
from paceline.autospec.loop.observe import TraceFolder
from paceline.autospec.policy import AutospecPolicy
from paceline.autospec.serving import PacelineServing
from paceline.autospec.store import Author, DrafterStore, VersionState
from paceline.bench.load.server_process import free_port
from paceline.cli.autospec_serving import steered_client
from paceline.endpoint.envoy.routing import DRAFTER_HEADER
from paceline.endpoint.place import EndpointPlace
from paceline.engines import connect
from paceline.engines.audit.budget import Budget, Meter
from paceline.engines.audit.checks.texts import JudgedText, judge
from paceline.engines.audit.reference import Reference
from tests.endpoint.fleet import AskingThreads, comes_true
from tests.engines.first_generation import QUESTIONS, SUBJECTS, TARGET, first_generation
from tests.engines.served import VLLM_DTYPE

ME = Author("test", "pushed")
# A day of a canary in minutes: its shares and its test, with few requests and without hours.
CANARY = {
    "steps": [20.0, 50.0, 100.0], "least_requests": 12, "tuned_requests": 40, "least_hours": 0.0,
    "cycle_hours": 0.0, "guard": 0.1, "tpot": 1.0, "ttft": 1.0, "errors": 0.2,
}  # fmt: skip
APP = "subjects"
TOKENS = 32
SESSIONS = 24  # of each thread
PATIENCE = 1500.0
ROUNDING = 0.3  # nats: two steps of bfloat16 at logits from 16 to 32, and a little


@dataclass(frozen=True)
class Answered:
    session: str
    drafter: str
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    question: str


Messages = list[dict[str, str]]


def about_subjects(draw: random.Random) -> Messages:
    """Ask one of a few questions."""
    question = draw.choice(QUESTIONS).format(subject=draw.choice(SUBJECTS[:12]))
    return [{"role": "user", "content": question}]


class Traffic(AskingThreads):
    """Asks again and again, in sessions, from two threads, and keeps every answer. `asked` makes
    the messages of a request, and may be another one at any time."""

    def __init__(
        self, listen: str, asked: Callable[[random.Random], Messages] = about_subjects
    ) -> None:
        super().__init__(threads=2)
        self.answers: list[Answered] = []
        self.failures: list[str] = []
        self.asked = asked
        self._url = f"http://{listen}/v1/chat/completions"

    def _ask(self, number: int) -> None:
        draw = random.Random(number)
        with httpx.Client(trust_env=False, timeout=300) as http:
            while not self._ended.is_set():
                messages = self.asked(draw)
                session = f"session-{number}-{draw.randrange(SESSIONS)}"
                body = {
                    "model": "m", "messages": messages, "temperature": 0, "max_tokens": TOKENS,
                    "return_token_ids": True,
                }  # fmt: skip
                headers = {"X-Session-ID": session, "X-Paceline-App": APP}
                try:
                    answer = http.post(self._url, json=body, headers=headers)
                    told = answer.raise_for_status().json()
                except httpx.HTTPError as error:
                    self.failures.append(f"{time.time():.0f} {error!r}")
                    continue
                ids = tuple(told["choices"][0]["token_ids"])
                prompt = tuple(told["prompt_token_ids"])
                drafter = answer.headers[DRAFTER_HEADER]
                question = messages[-1]["content"]
                self.answers.append(Answered(session, drafter, prompt, ids, question))


def write_endpoint(folder: Path, consenting: Sequence[str] = ()) -> Path:
    """Write the file of an endpoint with two places for vLLM, a core each, and the apps whose token
    ids may be kept."""
    cores = sorted(os.sched_getaffinity(0))
    told = {
        "listen": f"127.0.0.1:{free_port()}", "engine": "vllm", "target": TARGET, "model": "m",
        "slots": [
            {"port": free_port(), "environment": {"VLLM_CPU_OMP_THREADS_BIND": str(core)}}
            for core in (cores[0], cores[-1])
        ],
        "max_model_len": 512, "max_num_seqs": 4,
        "extra": ["--dtype", VLLM_DTYPE, "--enforce-eager", "--served-model-name", "m"],
        "environment": {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2"},
        "traces": {"folder": str(folder / "traces"), "tokens": [*consenting]},
        "metrics": f"127.0.0.1:{free_port()}",
    }  # fmt: skip
    (folder / "traces").mkdir()
    path = folder / "vllm.yaml"
    path.write_text(json.dumps(told))  # JSON is YAML too
    return path


@contextmanager
def up(file: Path) -> Iterator[None]:
    """An endpoint of `paceline endpoint up`, which is ended at the end."""
    command = [sys.executable, "-m", "paceline", "endpoint", "up", str(file)]
    process = subprocess.Popen(command)
    place = EndpointPlace(file.with_suffix(""))
    try:
        assert comes_true(lambda: place.controller() is not None, 60)
        assert comes_true(lambda: Path(place.address.removeprefix("unix:")).exists(), 60)
        yield
    finally:
        process.terminate()
        process.wait(120)


def untrained(folder: Path) -> Path:
    """Return a drafter with the weights of nobody."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(first_generation(), folder)
    (weights,) = folder.glob("*.safetensors")
    tensors = {name: torch.randn_like(tensor) * 0.02 for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, metadata={"format": "pt"})
    return folder


class World:
    """A store and its loop over the endpoint, taken a turn every two seconds."""

    def __init__(self, folder: Path, file: Path) -> None:
        self.store = DrafterStore(folder / "store", create=True)
        self.serving = PacelineServing(steered_client(None, str(file)))
        traces = TraceFolder(folder / "traces")
        policy = AutospecPolicy.read({"canary": CANARY})
        self.loop = Autospec(self.store, traces, self.serving, LoopSettings(policy))
        self._news = LoopNews(self.loop.journal)

    def turn(self) -> None:
        self.loop.tick()
        for line in self._news.lines():
            print(time.strftime("%H:%M:%S"), line, flush=True)

    def push(self, name: str, spec: str, parent: str) -> None:
        self.store.register(name, ME, spec=spec, parent=parent)
        self.store.promote(name, ME, VersionState.CANARY)

    def settle(self) -> None:
        """Take turns until nothing is under way."""
        end = time.monotonic() + PATIENCE
        for turn in itertools.count():
            self.turn()
            if turn and not self.loop.journal.active():
                return
            assert time.monotonic() < end, self.loop.journal.active()
            time.sleep(2)
        raise AssertionError


def check_sticky(answers: list[Answered]) -> None:
    """A session's drafter may change where its share grows, and never back."""
    drafters = defaultdict(list)
    for answer in answers:
        drafters[answer.session].append(answer.drafter)
    for seen in drafters.values():
        changes = [one for one, _ in itertools.groupby(seen)]
        assert changes in (["v1"], ["v2"], ["v1", "v2"]), changes


def check_texts(answers: list[Answered], url: str) -> None:
    """Every token of every text is the likeliest by a vLLM without drafts, up to rounding."""
    texts = {(answer.prompt, answer.ids): answer.question for answer in answers}
    reference = Reference(
        connect(url), Meter(Budget(requests=5000, tokens=2_000_000, seconds=PATIENCE)),
        is_server=True, asks=True,
    )  # fmt: skip
    judged = JudgedText()
    for (prompt, ids), question in texts.items():
        judge(judged, question, reference.score(prompt, ids), ROUNDING)
    prompts = {prompt for prompt, _ in texts}
    print(
        f"{len(answers)} answers to {len(prompts)} prompts, {len(texts)} texts: {judged.tokens} "
        f"tokens, {len(judged.ties)} ties, {len(judged.wrong)} wrong, worst {judged.worst:.3f} nats"
    )
    assert not judged.wrong
    assert len(judged.ties) < 0.02 * judged.tokens, "that many ties are no rounding"


def world_url(folder: Path, name: str) -> str:
    """Return where a replica listens."""
    return EndpointPlace(folder / "vllm").status().replicas[name].url
