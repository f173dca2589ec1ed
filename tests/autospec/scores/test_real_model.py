"""SmolLM2 and its shipped drafter: scores are what the engine measures on the same texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline import LLM, SamplingParams
from paceline.autospec.corpus import build_corpus
from paceline.autospec.scores.candidates import CandidateDrafters
from paceline.autospec.scores.matrix import ratio_estimate
from paceline.autospec.scores.run import score
from paceline.bench.prompts import load_prompts
from paceline.core import SpeculationStats, SpeculativeParams
from paceline.drafters import shipped
from paceline.drafters.corpus import corpus_target
from paceline.drafters.corpus_folder import CorpusAnswer
from paceline.models.loader import load_model
from tests.engine.test_real_model import TALKS

pytestmark = [pytest.mark.model, pytest.mark.slow]

MODEL = "smollm2-135m"
TOKENS = 64


def test_scores_are_what_the_engine_accepts(tmp_path: Path) -> None:
    plain = LLM(MODEL, None, max_model_len=1024)
    talks = [*TALKS, *(prompt.messages for prompt in load_prompts("demo"))]
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    results = plain.generate([plain.encode_chat(talk) for talk in talks], params)
    answers = [
        CorpusAnswer(1000.0 + n, f"{MODEL}|chat|en|none", "", r.prompt_ids, r.token_ids)
        for n, r in enumerate(results)
    ]
    asked_before = plain.generate([r.prompt_ids[:-8] + r.prompt_ids[-5:] for r in results], params)
    earlier = [
        CorpusAnswer(n, f"{MODEL}|chat|en|none", "", r.prompt_ids, r.token_ids)
        for n, r in enumerate(asked_before, 1)
    ]
    corpus = build_corpus(tmp_path, earlier, corpus_target(load_model(MODEL)))
    drafter = shipped.FOLDERS / MODEL
    specs = {
        "s": "suffix",
        "sc": f"suffix,corpus={corpus}",
        "d": f"dflash:{drafter}",
        "h": f"hybrid:{drafter}",
        "hc": f"hybrid:{drafter},corpus={corpus}",
    }
    named = [f"{name}={spec}" for name, spec in specs.items()]
    matrix = score(CandidateDrafters.load(MODEL, named, max_model_len=1024), answers)
    llm = LLM(MODEL, named, max_model_len=1024, draft_policy="fixed", prefix_cache=False)
    for name in specs:
        tops, bottoms, rounds = [], [], 0
        for number, answer in enumerate(answers):
            requests = llm.engine.make_requests(
                list(answer.prompt_ids), params, SpeculativeParams(drafter=name),
                request_id=f"{name}{number}", share_answers=False,
            )  # fmt: skip
            deltas = list(llm.driver.run(requests))
            assert [t for d in deltas for t in d.token_ids] == list(answer.output_ids)
            stats = SpeculationStats.of(d.round for d in deltas if d.round)
            tops.append(stats.draft_rounds + stats.accepted_tokens)
            bottoms.append(stats.draft_rounds)
            rounds += stats.draft_rounds
        served, cell = ratio_estimate(tops, bottoms), matrix.cell(name)
        assert served.value > 1.2, "hardly anything was accepted"
        assert abs(cell.al.value - served.value) < 2 * served.error
        assert cell.al.value == pytest.approx(served.value, rel=0.01), "rows are the same bits"
        assert abs(cell.draft_rounds - rounds) <= 0.01 * rounds
    assert matrix.cell("sc").tokens_per_round.value > matrix.cell("s").tokens_per_round.value
    assert matrix.cell("hc").tokens_per_round.value > matrix.cell("h").tokens_per_round.value
