"""Evaluate a drafter on sets of prompts: the sets and the engine, and the result as one value."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import torch

from paceline.core import InvalidRequest
from paceline.drafters.base import Remembering
from paceline.drafters.spec import BASELINES, REMEMBERING, label, parse_spec
from paceline.engine.machine import cpu_name
from paceline.evaluate.doctor import encoded
from paceline.evaluate.measure import Bench, Progress, grammar_digest
from paceline.evaluate.numbers import set_numbers
from paceline.evaluate.result import (
    DRAFTER,
    DRAFTERS,
    EvaluatedDrafter,
    Evaluation,
    EvaluationMachine,
    EvaluationSettings,
    GrammarDigest,
    SetResult,
)
from paceline.evaluate.sets import EvalSet, SetSpec, load_set, parse_sets
from paceline.llm import LLM
from paceline.models.loader import (
    Identified,
    load_model,
    template_digest,
    tokenizer_digest,
)
from paceline.version import __version__

WARM_ANSWERS = 200  # of a train split
BESIDE = {kind: f"beside-{kind}" for kind in BASELINES}  # as they are registered


def evaluate(
    model: str,
    drafter: str,
    sets: Sequence[str],
    settings: EvaluationSettings | None = None,
    *,
    progress: Progress = lambda what: None,
    started: Callable[[LLM, int], None] = lambda llm, answers: None,
    **options: Any,
) -> Evaluation:
    """Evaluate a drafter (a spec, folder or hub id) on SETS, as the command takes them.

    `options` are EngineConfig's. `started(llm, answers)` is called once everything is loaded and
    checked, `progress(what)` after each of so many answers. Raises InvalidRequest or ModelError
    before anything is measured when a set, an option or the drafter does not fit.
    """
    settings = settings or EvaluationSettings()
    specs = parse_sets(sets)
    spec = parse_spec(drafter)
    beside = [f"{name}={kind}" for kind, name in BESIDE.items()]
    llm = LLM(model, [drafter, *beside], **{"prefix_cache": False, "max_num_seqs": 8, **options})
    chosen = [_load(llm, set_spec, settings) for set_spec in specs]
    bench = _bench(llm, spec.name, settings, progress)
    started(llm, len(settings.temperatures) * sum(map(bench.answers_of, chosen)))
    with _frozen():
        results = [
            _result(bench, evaluated, temperature)
            for temperature in settings.temperatures
            for evaluated in chosen
        ]
    return _described(llm, bench, label(spec), settings, results)


def _bench(llm: LLM, drafter: str, settings: EvaluationSettings, progress: Progress) -> Bench:
    drafters = llm.engine.drafters
    if settings.warm and not isinstance(drafters[drafter], Remembering):
        expected = "a drafter that remembers answers: " + ", ".join(REMEMBERING)
        raise InvalidRequest("warm", drafter, expected)
    warmed = [drafters[name] for name in (*BESIDE.values(), *[drafter] * settings.warm)]
    memories = [memory for d in warmed if isinstance(d, Remembering) for memory in d.memories]
    return Bench(llm.engine, {DRAFTER: drafter, **BESIDE}, memories, settings, progress)


def _load(llm: LLM, spec: SetSpec, settings: EvaluationSettings) -> EvalSet:
    """Return a set whose prompts leave room for the answer, with this model's template and
    tokens."""
    loaded = load_set(
        spec,
        lambda messages: encoded(llm.tokenizer, messages),
        prompts=settings.prompts,
        fits=llm.engine.max_model_len - settings.tokens,
        answers=WARM_ANSWERS,
    )
    if loaded.target:
        check_target(load_model(llm.engine.config.model), loaded)
    if loaded.grammar is not None:
        # a grammar that does not compile is refused before anything runs
        llm.engine.grammars.compiler.compile(loaded.grammar)
    vocabulary = llm.engine.vocab_size
    for prompt in loaded.prompts:
        if not prompt.ids or max(prompt.ids) >= vocabulary:
            expected = f"prompts of token ids below {vocabulary}, this model's vocabulary"
            raise InvalidRequest("sets", f"{spec.name}, {prompt.name}", expected)
    return loaded


def check_target(target: Identified, loaded: EvalSet) -> None:
    """Refuse a set whose token ids come from another tokenizer or another template."""
    for key, part in (("template", "chat template"), ("tokenizer_sha256", "tokenizer")):
        of_set = loaded.target.get(key)
        if of_set is None:
            continue
        if key == "template":
            ours = template_digest(getattr(target.tokenizer, "chat_template", None) or "")
        else:
            ours = tokenizer_digest(target.path)
        if of_set != ours:
            expected = f"a set made with this model's {part} ({ours[:16]}, and not {of_set[:16]})"
            raise InvalidRequest("sets", loaded.spec.name, expected)


@contextmanager
def _frozen() -> Iterator[None]:
    """Keep the garbage collector from looking through all that is loaded already: as in serving, no
    answer pays for that."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _result(bench: Bench, chosen: EvalSet, temperature: float) -> SetResult:
    rows, warmed = bench.measure(chosen, temperature)
    blocks, grammar = {name: bench.block(name) for name in DRAFTERS}, chosen.grammar
    digest = GrammarDigest(kind=grammar.kind, sha256=grammar_digest(grammar)) if grammar else None
    return SetResult(
        set=chosen.spec.name,
        role=chosen.spec.role,
        choice=chosen.spec.choice,
        temperature=temperature,
        left_out=chosen.left_out,
        warmed=warmed,
        grammar=digest,
        rows=rows,
        **dict(set_numbers(rows, blocks, bench.settings.tokens)),
    )


def _described(
    llm: LLM, bench: Bench, label: str, settings: EvaluationSettings, results: list[SetResult]
) -> Evaluation:
    engine, device = llm.engine, llm.engine.config.device
    return Evaluation(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        paceline=__version__,
        model=engine.model_name,
        drafter=label,
        drafters={
            name: EvaluatedDrafter(
                version=engine.drafters[registered].version, block=bench.block(name)
            )
            for name, registered in bench.names.items()
        },
        machine=EvaluationMachine(
            name=cpu_name() if device == "cpu" else torch.cuda.get_device_name(),
            threads=torch.get_num_threads(),
            device=device,
            dtype=engine.config.dtype,
            quantize=engine.config.quantize,
            network=engine.backend,
        ),
        settings=settings,
        same_text=all(result.same_text for result in results),
        results=results,
    )
