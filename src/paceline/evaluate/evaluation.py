"""`evaluate`: a drafter, a model and some sets become one dictionary with every number and row."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from paceline.core import Grammar, InvalidRequest, SamplingParams
from paceline.core.errors import check_integer
from paceline.drafters.spec import parse_spec
from paceline.engine.machine import cpu_name
from paceline.evaluate import numbers
from paceline.evaluate.doctor import encoded
from paceline.evaluate.measure import (
    AR,
    DRAFTER,
    FULL,
    NGRAM,
    SUFFIX,
    TIMED,
    WHO,
    Bench,
    Progress,
    grammar_digest,
)
from paceline.evaluate.sets import EvalSet, SetSpec, load_set, parse_sets
from paceline.evaluate.warm import hold
from paceline.evaluate.words import FORMAT
from paceline.llm import LLM
from paceline.models.loader import load_model, template_digest, tokenizer_digest
from paceline.version import __version__

MOST_TOKENS = 256  # longer answers of small models loop, and loops flatter
WARM_ANSWERS = 200  # of a train split
BESIDE = {NGRAM: "beside-ngram", SUFFIX: "beside-suffix"}  # as they are registered


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked, and how often. Raises InvalidRequest naming the field.

    prompts        of each set, spread evenly over it
    tokens         most new tokens of an answer, at most MOST_TOKENS
    temperatures   each evaluated by itself; 0 is argmax
    runs           paired runs of each prompt, for the speed
    seed           of the first prompt's noise; the next has the next
    warm           the drafter's look-ups remember the answers that suffix is warmed with
    """

    prompts: int = 40
    tokens: int = MOST_TOKENS
    temperatures: tuple[float, ...] = (0.0, 1.0)
    runs: int = 1
    seed: int = 0
    warm: bool = False

    def __post_init__(self) -> None:
        expected = f"from 2 to {MOST_TOKENS}: in longer answers small models loop, which flatters"
        check_integer("tokens", self.tokens, 2, MOST_TOKENS, expected)
        for name in ("prompts", "runs"):
            check_integer(name, getattr(self, name), 1, 2**31 - 1, "a whole number of at least 1")
        if not self.temperatures or len(set(self.temperatures)) < len(self.temperatures):
            expected = "at least one temperature, and each once"
            raise InvalidRequest("temperatures", list(self.temperatures), expected)
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature)
        check_integer("seed", self.seed, 0, 2**63, "a whole number of at least 0")


def evaluate(
    model: str,
    drafter: str,
    sets: Sequence[str],
    settings: Settings | None = None,
    *,
    progress: Progress = lambda what: None,
    started: Any = lambda llm, answers: None,
    **options: Any,
) -> dict[str, Any]:
    """Evaluates a drafter (a spec, folder or hub id) on SETS, as the command takes them.

    `options` are EngineConfig's. `started(llm, answers)` is called once everything is loaded and
    checked, `progress(what)` after each of so many answers. Raises InvalidRequest or ModelError
    before anything is measured when a set, an option or the drafter does not fit.
    """
    settings = settings or Settings()
    specs = parse_sets(sets)
    spec = parse_spec(drafter)
    beside = [f"{name}={kind}" for kind, name in BESIDE.items()]
    llm = LLM(model, [drafter, *beside], **{"prefix_cache": False, "max_num_seqs": 8, **options})
    chosen = [_load(llm, each, settings) for each in specs]
    bench = _bench(llm, spec.name, settings, progress)
    started(llm, len(settings.temperatures) * sum(map(bench.answers_of, chosen)))
    with _frozen():
        results = [
            _result(bench, each, temperature)
            for temperature in settings.temperatures
            for each in chosen
        ]
    return _described(llm, bench, _label(drafter), settings) | {
        "same_text": all(all(row["same_text"].values()) for r in results for row in r["rows"]),
        "results": results,
    }


def _bench(llm: LLM, drafter: str, settings: Settings, progress: Progress) -> Bench:
    memories = hold(llm.engine.drafters[BESIDE[SUFFIX]])
    if settings.warm:
        own = hold(llm.engine.drafters[drafter])
        if not own:
            expected = "a drafter that remembers answers: suffix, auto or hybrid"
            raise InvalidRequest("warm", drafter, expected)
        memories += own
    return Bench(
        engine=llm.engine,
        names={DRAFTER: drafter, **BESIDE},
        memories=memories,
        warm=settings.warm,
        tokens=settings.tokens,
        runs=settings.runs,
        seed=settings.seed,
        progress=progress,
    )


def _load(llm: LLM, spec: SetSpec, settings: Settings) -> EvalSet:
    """A set whose prompts leave room for the answer, made with this model's template and tokens."""
    found = load_set(
        spec,
        lambda messages: encoded(llm, messages),
        prompts=settings.prompts,
        fits=llm.engine.max_model_len - settings.tokens,
        answers=WARM_ANSWERS,
    )
    _check_target(llm, found)
    if found.grammar is not None:
        llm.engine.grammars.compiler.compile(found.grammar)  # or refuses it, while nothing has run
    vocabulary = llm.engine.vocab_size
    for prompt in found.prompts:
        if not prompt.ids or max(prompt.ids) >= vocabulary:
            expected = f"prompts of token ids below {vocabulary}, this model's vocabulary"
            raise InvalidRequest("sets", f"{spec.name}, {prompt.name}", expected)
    return found


def _check_target(llm: LLM, found: EvalSet) -> None:
    """Refuses a set whose token ids come from another tokenizer or another template."""
    template = getattr(llm.tokenizer, "chat_template", None) or ""
    ours: dict[str, tuple[str, Callable[[], str]]] = {
        "template": ("chat template", lambda: template_digest(template)),
        "tokenizer_sha256": (
            "tokenizer",
            lambda: tokenizer_digest(load_model(llm.engine.config.model).path),
        ),
    }
    for key, (what, of_ours) in ours.items():
        made = found.target.get(key)
        if made is not None and made != of_ours():
            told = f"{of_ours()[:16]}, and not {made[:16]}"
            expected = f"a set made with this model's {what} ({told})"
            raise InvalidRequest("sets", found.spec.name, expected)


@contextmanager
def _frozen() -> Iterator[None]:
    """Nothing that is loaded already is looked through by the garbage collector: as in serving, no
    answer pays for that."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _result(bench: Bench, chosen: EvalSet, temperature: float) -> dict[str, Any]:
    rows, warmed = bench.measure(chosen, temperature)
    blocks = {who: bench.block(who) for who in WHO}
    return {
        "set": chosen.spec.name,
        "role": chosen.spec.role,
        "choice": chosen.spec.choice,
        "temperature": temperature,
        "left_out": chosen.left_out,
        "warmed": warmed,
        "grammar": _told(chosen.grammar),
        **summary(rows, blocks, bench.tokens),
        "rows": rows,
    }


def _told(grammar: Grammar | None) -> dict[str, str] | None:
    """A grammar without its text, which is the application's own."""
    if grammar is None:
        return None
    return {"kind": grammar.kind, "sha256": grammar_digest(grammar)}


def summary(rows: Sequence[dict[str, Any]], blocks: dict[str, int], tokens: int) -> dict[str, Any]:
    """Everything that is said of a set, of its rows. `blocks` is each drafter's longest draft."""
    return {
        "requests": len(rows),
        "looping": sum(row["counted_tokens"] < row["output_tokens"] for row in rows),
        "output_tokens": sum(row["output_tokens"] for row in rows),
        "counted_tokens": sum(row["counted_tokens"] for row in rows),
        "forced_tokens": sum(row["forced_tokens"] for row in rows),
        "bound": sum(row["grammar_sha256"] is not None for row in rows),
        "same_text": all(all(row["same_text"].values()) for row in rows),
        "acceptance": {
            who: numbers.acceptance(rows, f"{who}/{FULL}", tokens=tokens, block=blocks[who])
            for who in WHO
        },
        "speed": {side: numbers.speed(rows, side, tokens=tokens) for side in TIMED if side != AR},
    }


def _described(llm: LLM, bench: Bench, label: str, settings: Settings) -> dict[str, Any]:
    engine, device = llm.engine, llm.engine.config.device
    versions = {who: engine.drafters[name].version for who, name in bench.names.items()}
    return {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "paceline": __version__,
        "model": engine.model_name,
        "drafter": label,
        "drafters": {
            who: {"version": versions[who], "block": bench.block(who)} for who in bench.names
        },
        "machine": {
            "name": cpu_name() if device == "cpu" else torch.cuda.get_device_name(),
            "threads": torch.get_num_threads(),
            "device": device,
            "dtype": engine.config.dtype,
            "quantize": engine.config.quantize,
            "network": engine.backend,
        },
        "settings": {**asdict(settings), "temperatures": list(settings.temperatures)},
    }


def _label(drafter: str) -> str:
    """What a report calls it: the name it was given, else the last part of its folder or id."""
    spec = parse_spec(drafter)
    if spec.value is None or spec.name != spec.kind or spec.kind not in ("dflash", "draft_model"):
        return spec.name
    return Path(spec.value).name
