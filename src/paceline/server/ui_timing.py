"""What the timing pane plays: from speeds that somebody wants to feel, from a prediction, or from a
recorded run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.core import InvalidRequest
from paceline.core.errors import check_integer, check_number
from paceline.roofline.acceptance import acceptance_of
from paceline.roofline.recorded import ARRIVALS, EVALUATION, arrival_events, evaluated_events
from paceline.roofline.timing import LONGEST_STEP, MOST_TOKENS, as_json, two_panes
from paceline.server.ui_measured import MALFORMED, run_name

SPEEDS = (
    "tokens", "ttft_ms", "seed", "ar_tokens_per_second", "tokens_per_second",
    "acceptance", "draft_length", "commits",
)  # fmt: skip
LONGEST_DRAFT = 64
FASTEST = 1e6  # tokens per second


def timing(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Events of both panes as plain JSON. One of four forms is stated:

    * speeds: `tokens` of the answer, `ar_tokens_per_second` and `tokens_per_second` of one request,
      and how bursts come: `commits`, or `acceptance` (as a scenario has it) and `draft_length`;
      `ttft_ms` and `seed` default to 0
    * `evaluation`: what `paceline evaluate` wrote, and the number of a `row` in it (default 0)
    * `recorded`: the lines that `paceline bench --record` wrote, as a list, and the number of a
      `row`: a prompt's run without speculation beside the same one with it
    * `arrivals_ms`: {"ar": […], "speculative": […]}, the arrival of each token since the request

    The answer: "ar" and "speculative", lists of events; "acceptance_length" incl. bonus, null where
    it is not known; "rows", names of an evaluation's rows, else []. Raises InvalidRequest.
    """
    if "evaluation" in stated:
        return _evaluated(stated)
    if "recorded" in stated:
        return _recorded(stated)
    if "arrivals_ms" in stated:
        return _arrived(stated["arrivals_ms"], stated, ("arrivals_ms",))
    return _at_speeds(stated)


def _at_speeds(stated: Mapping[str, Any]) -> dict[str, Any]:
    _only(stated, SPEEDS)
    plain, drafted = (
        _positive(stated, key) for key in ("ar_tokens_per_second", "tokens_per_second")
    )
    commits = stated["commits"] if "commits" in stated else _commits(stated)
    panes = {
        "tokens": stated.get("tokens"),
        "ttft_ms": stated.get("ttft_ms", 0.0),
        "seed": stated.get("seed", 0),
        "ar_step_ms": 1e3 / plain,
        "commits": commits,
    }
    # a first look with any step: `commits` is checked before it is added up
    two_panes({**panes, "tokens": 1, "step_ms": 1.0})
    length = sum(count * share for count, share in enumerate(commits, 1))
    check_integer("tokens", panes["tokens"], 1, MOST_TOKENS, f"a number up to {MOST_TOKENS}")
    answer = two_panes({**panes, "step_ms": 1e3 * length / drafted})
    return {**answer, "acceptance_length": length, "rows": []}


def _commits(stated: Mapping[str, Any]) -> list[float]:
    acceptance, draft_length = stated.get("acceptance"), stated.get("draft_length")
    if not isinstance(acceptance, Mapping):
        raise InvalidRequest("acceptance", acceptance, 'an object such as {"al": 3.5, …}')
    expected = f"a whole number of tokens from 0 to {LONGEST_DRAFT}"
    check_integer("draft_length", draft_length, 0, LONGEST_DRAFT, expected)
    assert isinstance(draft_length, int)
    return [float(share) for share in acceptance_of(acceptance).commit_probabilities(draft_length)]


def _evaluated(stated: Mapping[str, Any]) -> dict[str, Any]:
    _only(stated, ("evaluation", "row"))
    result, number = stated["evaluation"], stated.get("row", 0)
    if not isinstance(result, Mapping) or result.get("format") != EVALUATION:
        found = result.get("format") if isinstance(result, Mapping) else type(result).__name__
        raise InvalidRequest("evaluation", found, f"what `paceline evaluate` writes ({EVALUATION})")
    try:
        rows, names = [], []
        for index, one in enumerate(result["results"]):
            run = run_name(f"evaluation.results[{index}]", one)
            rows += one["rows"]
            names += [f"{run}: {row['prompt']}" for row in one["rows"]]
        check_integer("row", number, 0, len(rows) - 1, f"a row from 0 to {len(rows) - 1}")
        plain, drafted = evaluated_events(rows[number])
    except InvalidRequest:
        raise
    except MALFORMED as error:
        expected = f"the whole of what `paceline evaluate` writes ({error!r} is missing or wrong)"
        raise InvalidRequest("evaluation", "its results", expected) from error
    rounds = drafted[1:]
    length = sum(event.tokens for event in rounds) / len(rounds) if rounds else None
    return {**as_json(plain, drafted), "acceptance_length": length, "rows": names}


def _recorded(stated: Mapping[str, Any]) -> dict[str, Any]:
    expected = f"the lines that `paceline bench --record` wrote ({ARRIVALS})"
    lines, number = stated["recorded"], stated.get("row", 0)
    if not isinstance(lines, list):
        raise InvalidRequest("recorded", lines, expected)
    runs: dict[tuple[Any, Any], dict[str, Any]] = {}
    for index, line in enumerate(lines):
        if not isinstance(line, Mapping) or line.get("format") != ARRIVALS:
            raise InvalidRequest(f"recorded[{index}]", line, expected)
        run = runs.setdefault((str(line.get("prompt")), str(line.get("run"))), {})
        run[str(line.get("speculation"))] = line.get("arrivals_ms")
    whole = {key: run for key, run in runs.items() if run.keys() >= {"off", "on"}}
    if not whole:
        raise InvalidRequest("recorded", len(lines), f"{expected}, off and on of one run")
    check_integer("row", number, 0, len(whole) - 1, f"a row from 0 to {len(whole) - 1}")
    run = list(whole.values())[number]
    given = {"ar": run["off"], "speculative": run["on"]}
    names = [f"{prompt}, run {count}" for prompt, count in whole]
    return {**_arrived(given, stated, ("recorded", "row")), "rows": names}


def _arrived(given: Any, stated: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    _only(stated, known)
    expected = '{"ar": [ms, …], "speculative": [ms, …]}, times since the request that never fall'
    if not isinstance(given, Mapping) or set(given) != {"ar", "speculative"}:
        raise InvalidRequest("arrivals_ms", given, expected)
    for name, times in given.items():
        field = f"arrivals_ms.{name}"
        if not isinstance(times, Sequence) or isinstance(times, str) or not times:
            raise InvalidRequest(field, times, expected)
        if len(times) > MOST_TOKENS:
            raise InvalidRequest(field, len(times), f"at most {MOST_TOKENS} tokens")
        for before, at in zip([0, *times], times, strict=False):
            check_number(field, at, before, LONGEST_STEP, expected)
    events = as_json(arrival_events(given["ar"]), arrival_events(given["speculative"]))
    return {**events, "acceptance_length": None, "rows": []}


def _positive(stated: Mapping[str, Any], field: str) -> float:
    expected = f"tokens per second of one request, above 0 and up to {FASTEST:g}"
    value = stated.get(field)
    check_number(field, value, 0, FASTEST, expected)
    if not value:
        raise InvalidRequest(field, value, expected)
    return float(value)


def _only(stated: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in stated:
        if key not in known:
            raise InvalidRequest(key, stated[key], "one of " + ", ".join(known))
