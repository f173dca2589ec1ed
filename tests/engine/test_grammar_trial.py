"""Grammars that crash or never end are tried out where they harm nobody."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher

from paceline.core import Grammar, InvalidRequest
from paceline.engine import grammar as grammar_module
from paceline.engine import grammar_cache
from paceline.engine.grammar import CompiledGrammar, Compiler, GrammarFailed, GrammarState
from paceline.engine.grammar_child import (
    FRESH,
    LIMITS,
    MOST_STOPPED,
    YOUNG,
    Child,
    parser_limits,
    read_message,
)
from paceline.engine.grammar_trial import Failed, Passed, Trial, TrialBusy, Verdict
from tests.engine.tiny import EOS, VOCAB, byte_tokenizer
from tests.server import fake

SECONDS = 60.0  # a test fails past this; nothing here takes more than a few on an idle machine
GOOD = Grammar("json_schema", '{"type": "object"}', "good")
HEAVY = Grammar("json_schema", '{"type": "integer", "multipleOf": 999983}', "heavy")


@pytest.fixture
def compiler() -> Any:
    """With a child of its own: the vocabulary is one token larger than that of other tests."""
    made = Compiler(byte_tokenizer(), VOCAB + 1, {EOS})
    yield made
    made.close()


@pytest.fixture
def trial(compiler: Compiler) -> Trial:
    return compiler._tester()


def schema(value: Any) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(value))


def chain(length: int) -> dict[str, Any]:
    defs: dict[str, Any] = {
        f"d{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}}
        for i in range(length)
    }
    return {"$defs": {**defs, f"d{length}": {}}, "$ref": "#/$defs/d0"}


def gone(pid: int) -> bool:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


CRASHES = {
    "a number": schema({"enum": [-(2**63)]}),
    "references": schema(chain(1500)),
    "rules": LLMatcher.grammar_from_lark(
        "start: r0\n" + "\n".join(f'r{i}: "a" r{i + 1}' for i in range(6000)) + '\nr6000: "b"'
    ),
    "time": schema({"type": "integer", "multipleOf": 999983}),
    "memory": LLMatcher.grammar_from_regex("a{1000000}"),
}


@pytest.mark.parametrize("name", CRASHES)
def test_what_would_take_the_process_along_is_a_verdict(trial: Trial, name: str) -> None:
    """And a good grammar right behind it is served by the same child."""
    bad, good = trial.submit(CRASHES[name]), trial.submit(schema({"type": "object"}))
    verdict = bad.result(SECONDS)
    assert isinstance(verdict, Failed) and not verdict.reason
    assert isinstance(good.result(SECONDS), Passed)


def test_good_grammars_overtake_heavy_ones(trial: Trial) -> None:
    order: list[str] = []

    def note(name: str, future: Future[Verdict]) -> Future[Verdict]:
        future.add_done_callback(lambda done: order.append(name))
        return future

    trial.submit(schema({})).result(SECONDS)  # the child is ready
    futures = [
        note("heavy", trial.submit(schema({"type": "integer", "multipleOf": 999983 + i})))
        for i in range(4)
    ]
    time.sleep(0.3)  # they are being tried out
    futures += [note("good", trial.submit(schema({"const": f"text {i}"}))) for i in range(10)]
    verdicts = [future.result(SECONDS) for future in futures]
    assert all(isinstance(v, Failed) for v in verdicts[:4])
    assert all(isinstance(v, Passed) for v in verdicts[4:])
    assert "heavy" not in order[:10]


def test_a_fork_that_ends_before_it_is_set_aside_does_not_end_the_child(trial: Trial) -> None:
    """The child must forget a fork that it stopped after the fork had ended."""
    ours, theirs = Pipe()
    ours.send_bytes(b"0 " + json.dumps(trial._settings).encode())
    child = Child(theirs)
    for number, grammar in ((1, CRASHES["time"]), (2, schema({"const": "a"}))):
        child._start(number, grammar.encode())
    pipe, light = list(child._running.items())[1]
    os.waitid(os.P_PID, light.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie from here on
    for fork in child._running.values():
        fork.since -= 2 * YOUNG
    child._schedule()
    assert list(child._stopped) == [pipe], "the heavy one goes on"
    while pipe in child._running:
        child._read(pipe)
    child._schedule()
    assert ours.poll(SECONDS)
    number, report = read_message(ours)
    assert number == 2 and "seconds" in json.loads(report)
    for fork in child._running.values():
        os.kill(fork.pid, signal.SIGKILL)
    while child._running:
        child._read(next(iter(child._running)))
    ours.close()
    theirs.close()


def test_a_flood_of_heavy_grammars_takes_little_memory_and_delays_no_light_one(
    trial: Trial,
) -> None:
    heavy = [trial.submit(schema({"type": "integer", "multipleOf": 999983 + i})) for i in range(40)]
    most, end = 0, time.monotonic() + SECONDS
    while not any(future.done() for future in heavy) or most < 3:
        assert time.monotonic() < end, "no trial ended"
        children = Path(f"/proc/{trial.pid}/task/{trial.pid}/children").read_text().split()
        most = max(most, len(children))
        time.sleep(0.02)
    assert isinstance(trial.submit(schema({"const": "light"})).result(SECONDS), Passed)
    while sum(isinstance(f.exception(), TrialBusy) for f in heavy if f.done()) < 10:
        assert time.monotonic() < end, "none was told to come back"
        children = Path(f"/proc/{trial.pid}/task/{trial.pid}/children").read_text().split()
        most = max(most, len(children))
        time.sleep(0.02)
    assert most <= FRESH + 1 + MOST_STOPPED + FRESH, "forks pile up"
    trial.close()  # what still waits would take a minute


def test_a_child_that_is_killed_is_replaced_and_the_grammar_tried_again(
    compiler: Compiler, trial: Trial
) -> None:
    compiler.compile(GOOD)
    first = compiler.child_pid
    assert first is not None
    heavy = trial.submit(schema({"type": "integer", "multipleOf": 999983}))
    os.kill(first, signal.SIGKILL)
    assert isinstance(heavy.result(SECONDS), Failed)
    assert compiler.child_pid not in (None, first) and gone(first)
    compiler.compile(Grammar("regex", "after+"))


def test_closing_ends_the_child_and_the_next_grammar_starts_another(compiler: Compiler) -> None:
    compiler.compile(GOOD)
    first = compiler.child_pid
    assert first is not None
    compiler.close()
    assert gone(first) and compiler.child_pid is None
    compiler.compile(Grammar("regex", "b+"))
    assert compiler.child_pid not in (None, first)


def test_ctrl_c_is_not_for_the_child(compiler: Compiler) -> None:
    compiler.compile(GOOD)
    pid = compiler.child_pid
    assert pid is not None and os.getpgid(pid) != os.getpgid(0)
    os.kill(pid, signal.SIGINT)
    compiler.compile(Grammar("regex", "c+"))
    assert compiler.child_pid == pid


@pytest.mark.slow
def test_the_child_ends_with_a_process_that_is_killed() -> None:
    script = (
        "import os, signal\n"
        "from tests.engine.tiny import byte_tokenizer\n"
        "from paceline.core import Grammar\n"
        "from paceline.engine.grammar import Compiler\n"
        "compiler = Compiler(byte_tokenizer(), 256, {3})\n"
        "compiler.compile(Grammar('regex', 'a+'))\n"
        "print(compiler.child_pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert made.returncode == -signal.SIGKILL, made.stderr
    assert gone(int(made.stdout))


def test_a_refusal_is_kept_and_names_the_field_of_whoever_asks(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest, match=r"heavy: got .* more than (2 s of CPU|128 MiB)"):
        compiler.compile(HEAVY)
    monkeypatch.setattr(Trial, "submit", None)  # nothing is tried out again
    again = Grammar("json_schema", HEAVY.source, "elsewhere")
    with pytest.raises(InvalidRequest, match="elsewhere: got"):
        compiler.compile(again)


def test_a_compiled_grammar_outlives_the_cache(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's thread opens streams with the matcher that came with the request."""
    monkeypatch.setattr(grammar_cache, "MOST", 1)
    kept = compiler.compiled(GOOD)
    compiler.compile(Grammar("regex", "something else"))
    monkeypatch.setattr(Trial, "submit", None)
    assert isinstance(kept, CompiledGrammar) and compiler.compiled(kept) is kept


def test_equal_grammars_at_once_are_tried_out_once(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, tried = Trial.submit, []

    def count(self: Trial, text: str) -> Future[Verdict]:
        tried.append(text)
        return submit(self, text)

    monkeypatch.setattr(Trial, "submit", count)
    matchers: list[LLMatcher] = []
    threads = [
        threading.Thread(target=lambda: matchers.append(compiler.compile(GOOD))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert len(matchers) == 8 and len(set(map(id, matchers))) == 1 and len(tried) == 1


def test_the_compiling_thread_has_more_stack_than_the_trial() -> None:
    assert grammar_module.COMPILE_STACK >= 4 * grammar_module.STACK


def test_a_mask_that_ran_out_of_fuel_is_no_end_of_the_text() -> None:
    """llguidance allows nothing but the end of the text then, complete or not."""
    words = fake.compiler()
    grammar = LLMatcher.grammar_from_lark('start: s "."\ns: s s | "a" | s s s')
    limits = {**LIMITS, "step_max_items": 90}
    start = LLMatcher(words._vocabulary(), grammar, limits=parser_limits(limits))
    end, letter = fake.byte_tokenizer().eos_token_id, fake.byte_tokenizer()("a")["input_ids"][0]
    walker = GrammarState(start, end)
    mask = np.zeros((9, -(-words.vocab_size // 32)), dtype=np.uint32)
    for _ in range(200):
        walker.fill(mask, [letter] * 8)
        for row in range(9):
            try:
                walker.check_row(row)
            except GrammarFailed as error:
                assert "Too many items" in str(error)
                assert mask[row, end >> 5] >> (end & 31) & 1, "the end of the text is allowed"
                return
        walker.advance(letter)
    pytest.fail("the fuel never ends")


def a_schema(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """A random valid schema, as tools have them."""
    kinds = ["string", "integer", "number", "boolean", "enum", "const"]
    kind = chance.choice([*kinds, *(["object", "array", "anyOf"] if depth < 3 else [])])
    if kind == "object":
        names = chance.sample(["name", "unit", "$ref", "enum", "größe", "a b", "minimum"], 3)
        required = chance.sample(names, chance.randrange(4))
        properties = {name: a_schema(chance, depth + 1) for name in names}
        return {"type": "object", "properties": properties, "required": required,
                "additionalProperties": False}  # fmt: skip
    if kind == "array":
        return {"type": "array", "items": a_schema(chance, depth + 1), "maxItems": 3}
    if kind == "anyOf":
        return {"anyOf": [a_schema(chance, depth + 1) for _ in range(chance.randrange(1, 4))]}
    low = chance.choice([-(2**53), -10, 0, 7])
    return {
        "string": {"type": "string", "maxLength": chance.randrange(1, 9)},
        "integer": {"type": "integer", "minimum": low, "maximum": low + chance.randrange(1000)},
        "number": {"type": "number", "minimum": -1, "maximum": chance.randrange(9)},
        "boolean": {"type": "boolean"},
        "enum": {"enum": [None, True, "a", 2**53, -(2**63) + 2048, 0.25, ["b"], {"c": 1}]},
        "const": {"const": chance.choice([2**63 - 1, "x" * 50, -1, 10**20, []])},
    }[kind]


@pytest.mark.parametrize("seed", range(40))
def test_random_valid_schemas_pass_and_are_adhered_to(seed: int) -> None:
    """With a tokenizer whose end of text is no letter of other texts."""
    value, chance = a_schema(random.Random(seed)), random.Random(seed)
    end, words = fake.byte_tokenizer().eos_token_id, fake.compiler()
    walker = GrammarState(words.compile(Grammar("json_schema", json.dumps(value))), end)
    mask = np.zeros((1, -(-words.vocab_size // 32)), dtype=np.uint32)
    said: list[int] = []
    while len(said) < 600:
        walker.fill(mask, [])
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        token = int(chance.choice(np.flatnonzero(bits).tolist()))
        walker.check_row(0)
        if token == end:
            text = fake.byte_tokenizer().decode(said)
            jsonschema.validate(json.loads(text), value)
            return
        walker.advance(token)
        said.append(token)
