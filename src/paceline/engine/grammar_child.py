"""A process that tries out grammars, so that one which crashes llguidance takes no server along.

It reads the vocabulary once and forks for each grammar: the fork compiles it under limits, walks a
few tokens and reports; a fork that dies costs nothing but itself. This file is run as a script and
imports nothing of paceline, because torch would make it slow to start and large.

Messages in both directions are the number of a trial, a space and a payload. The first to arrive
holds the settings as JSON; all others hold a grammar in llguidance's notation. Answers are JSON
objects with one of these keys:

seconds, bytes  it compiles: CPU time and memory that it took
error           llguidance refuses it, with its reason
gave_up         llguidance refused to go on after `steps` tokens, with its reason
slow            seconds of CPU time that one token took after `steps` tokens
died            how the fork ended: SIGSEGV, SIGPROF (CPU time), SIGABRT (memory), ...
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import selectors
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypedDict

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MIB = 1 << 20
CPU_SECONDS = 2.0  # to compile and to walk; real schemas of 100 kB take 0.3 on an idle machine
MEMORY = 128 * MIB
STACK = 8 * MIB  # to compile; real schemas need a few hundred kB
WALK_STACK = 1 * MIB  # threads that walk along with streams have at least twice as much
STEPS = 64  # tokens
STEP_SECONDS = 0.1  # most CPU time for one token; llguidance's own limits bound nearly all below it
# What llguidance may spend on one token of a stream. Hostile grammars took 10 to 40 ms of a slow,
# busy core with it; a mask over an enum of 5,000 texts takes 60,000 of the fuel.
LIMITS = {
    "step_lexer_fuel": 100_000,
    "step_max_items": 3_000,
    "max_items_in_row": 600,
    "max_lexer_states": 20_000,
}
FRESH = 2  # trials that run side by side while they are young
YOUNG = 0.1  # seconds; older trials run one at a time and give way to all others
LONGEST = 20.0  # seconds that a trial may run, whatever it does with them
MOST_STOPPED = 3  # old trials that are kept in memory until their turn comes
MOST_LATER = 16  # grammars whose trial starts anew when those are done; more are refused for now
PROBES = 16  # token ids that are tried before the mask is searched
REASON = 2000  # characters of llguidance's message that are handed on


class TrialSettings(TypedDict):
    """Settings that a server sends to its child first."""

    tokenizer: str  # the JSON of Hugging Face's tokenizers
    vocab_size: int
    eos_ids: list[int]


@dataclass(slots=True)
class TrialProcess:
    """A running trial. `since` is when it began to run, or went on."""

    number: int
    pid: int
    since: float
    grammar: bytes
    young: bool = True
    dropped: bool = False  # ended to save memory: what it reports does not count
    report: bytes = b""


class Child:
    """Forks for each grammar that arrives, and sends what the forks report."""

    def __init__(self, control: Connection) -> None:
        self._control = control
        _, payload = read_message(control)
        self._settings: TrialSettings = json.loads(payload)
        self._tokenizer = LLTokenizer(
            self._settings["tokenizer"],
            n_vocab=self._settings["vocab_size"],
            eos_token=self._settings["eos_ids"],
        )
        self._waiting: list[tuple[int, bytes]] = []  # grammars without a fork yet
        self._running: dict[int, TrialProcess] = {}  # by the pipe that its report comes through
        self._stopped: deque[int] = deque()  # pipes of old forks whose turn has not come
        self._later: deque[tuple[int, bytes]] = deque()  # old trials that were dropped
        self._events = selectors.DefaultSelector()
        self._events.register(control, selectors.EVENT_READ)

    def run(self) -> None:
        """Works until the server is gone."""
        try:
            while True:
                for key, _ in self._events.select(YOUNG / 2 if self._running else None):
                    if key.fileobj is self._control:
                        self._waiting.append(read_message(self._control))
                    else:
                        self._read(key.fd)
                self._schedule()
        except (EOFError, OSError):  # the server has ended
            for fork in self._running.values():
                os.kill(fork.pid, signal.SIGKILL)

    def _schedule(self) -> None:
        """Stops forks that are no longer young, lets the oldest of those go on, and starts the
        smallest of the grammars that wait."""
        now = time.monotonic()
        for pipe, fork in self._running.items():
            if fork.young and now - fork.since > YOUNG:
                fork.young = False
                self._set_aside(pipe, fork)
            elif not fork.young and pipe not in self._stopped and now - fork.since > LONGEST:
                os.kill(fork.pid, signal.SIGKILL)
        if self._stopped and len(self._stopped) == self._count(young=False):
            fork = self._running[self._stopped.popleft()]
            fork.since = now
            os.kill(fork.pid, signal.SIGCONT)
        elif self._later and not self._count(young=False):
            self._start(*self._later.popleft(), young=False)
        self._waiting.sort(key=lambda waiting: -len(waiting[1]))
        while self._waiting and self._count(young=True) < FRESH:
            self._start(*self._waiting.pop())

    def _set_aside(self, pipe: int, fork: TrialProcess) -> None:
        """Stops a fork that is no longer young until its turn comes. Where many are stopped, it is
        ended, and its trial starts anew later: each takes memory."""
        if len(self._stopped) < MOST_STOPPED:
            os.kill(fork.pid, signal.SIGSTOP)
            os.setpriority(os.PRIO_PROCESS, fork.pid, 10)
            self._stopped.append(pipe)
            return
        fork.dropped = True
        os.kill(fork.pid, signal.SIGKILL)
        if len(self._later) < MOST_LATER:
            self._later.append((fork.number, fork.grammar))
        else:
            self._send(fork.number, json.dumps({"busy": True}).encode())

    def _count(self, *, young: bool) -> int:
        forks = self._running.values()
        return sum(fork.young is young and not fork.dropped for fork in forks)

    def _start(self, number: int, grammar: bytes, *, young: bool = True) -> None:
        receive, send = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self._control.close()
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what a crashing library prints
                trial(self._tokenizer, self._settings, grammar.decode(), send)
            finally:
                os._exit(1)
        os.close(send)
        self._running[receive] = TrialProcess(number, pid, time.monotonic(), grammar, young)
        if not young:
            os.setpriority(os.PRIO_PROCESS, pid, 10)
        self._events.register(receive, selectors.EVENT_READ)

    def _read(self, pipe: int) -> None:
        fork = self._running[pipe]
        data = os.read(pipe, 1 << 16)
        fork.report += data
        if data:
            return
        del self._running[pipe]
        if pipe in self._stopped:  # it had ended before it was stopped
            self._stopped.remove(pipe)
        self._events.unregister(pipe)
        os.close(pipe)
        _, status = os.waitpid(fork.pid, 0)
        if fork.dropped:
            return
        if os.WIFSIGNALED(status):
            fork.report = json.dumps({"died": signal.Signals(os.WTERMSIG(status)).name}).encode()
        report = fork.report or json.dumps({"died": "an exception"}).encode()
        self._send(fork.number, report)

    def _send(self, number: int, report: bytes) -> None:
        self._control.send_bytes(b"%d %s" % (number, report))


def parser_limits(limits: dict[str, int] = LIMITS) -> LLParserLimits:
    """Limits on the cost of one token. `verbose_errors` would quote the whole grammar."""
    return LLParserLimits(
        step_lexer_fuel=limits["step_lexer_fuel"],
        step_max_items=limits["step_max_items"],
        max_items_in_row=limits["max_items_in_row"],
        max_lexer_states=limits["max_lexer_states"],
        verbose_errors=False,
    )


def read_message(connection: Connection) -> tuple[int, bytes]:
    """Raises EOFError or OSError when the other side is gone."""
    number, _, payload = connection.recv_bytes().partition(b" ")
    return int(number), payload


def trial(tokenizer: LLTokenizer, settings: TrialSettings, grammar: str, report: int) -> None:
    """Compiles and walks one grammar in this process, which may die of it."""
    data = 1024 * _status("VmData") + MEMORY + STACK + WALK_STACK
    resource.setrlimit(resource.RLIMIT_DATA, (data, data))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process
    held = _status("RssAnon")
    matchers: list[LLMatcher] = []
    answer: dict[str, object] = {}

    def compile_it() -> None:
        matchers.append(LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits()))
        if matchers[0].is_error():
            answer["error"] = matchers[0].get_error()[:REASON]

    _on_stack(STACK, compile_it)
    if not answer:
        _on_stack(WALK_STACK, lambda: answer.update(walk(matchers[0], settings)))
    if not answer:
        answer = {"seconds": time.process_time(), "bytes": 1024 * (_status("RssAnon") - held)}
    os.write(report, json.dumps(answer).encode())
    os._exit(0)


def walk(matcher: LLMatcher, settings: TrialSettings) -> dict[str, object]:
    """Walks a random text as the engine walks streams, and says what went wrong, if anything."""
    chance = random.Random(0)
    for step in range(STEPS):
        start = time.thread_time()
        ahead = matcher.deep_copy()
        tokens = ahead.compute_ff_tokens()[:1]
        if not tokens and not matcher.is_stopped():
            mask = matcher.compute_bitmask()
            tokens = [_choose(mask, settings, chance)]
        ended = not tokens or tokens[0] in settings["eos_ids"]
        if not ended and not matcher.is_error():
            ahead.validate_tokens(tokens)
            matcher.consume_token(tokens[0])
        seconds = time.thread_time() - start
        if matcher.is_error() or ahead.is_error():
            reason = matcher.get_error() or ahead.get_error()
            return {"gave_up": reason[:REASON], "steps": step}
        if seconds > STEP_SECONDS:
            return {"slow": seconds, "steps": step}
        if ended:
            break
    return {}


def _choose(mask: bytes, settings: TrialSettings, chance: random.Random) -> int:
    """A token that the mask allows, if there is one none that ends the text."""
    last, ends = settings["vocab_size"] - 1, settings["eos_ids"]
    for _ in range(PROBES):
        token = chance.randint(0, last)
        if mask[token >> 3] >> (token & 7) & 1 and token not in ends:
            return token
    allowed = (
        8 * at + bit for at, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1
    )
    others = [token for token in allowed if token <= last and token not in ends]
    return chance.choice(others or ends)


def _on_stack(size: int, job: Callable[[], None]) -> None:
    """Runs `job` on a thread with a stack of `size` bytes; an exception in it ends the process."""

    def run() -> None:
        try:
            job()
        except BaseException:  # llguidance's panics are none of Exception
            os._exit(1)

    threading.stack_size(size)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def _status(name: str) -> int:
    """A figure of this process in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(name + ":")), 0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # where memory runs out, this process goes first
        Path("/proc/self/oom_score_adj").write_text("1000")
    with contextlib.suppress(EOFError, OSError):  # the server ended before this process had begun
        Child(Connection(int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
