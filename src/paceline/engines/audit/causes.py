"""Known faults of engines, by the sign that an audit sees."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Sign(StrEnum):
    """What an audit sees of a fault."""

    GREEDY = "greedy"  # at T = 0 another text
    LAW = "law"  # sampled tokens follow another law
    SEEDS = "seeds"
    GRAMMAR = "grammar"
    LOGPROBS = "logprobs"
    PENALTIES = "penalties"
    REFUSED = "refused"  # a sampling parameter is refused or ignored
    COLLAPSE = "collapse"  # acceptance falls with context or length
    DEAD = "dead"  # and does not come back
    PREFIX_HITS = "prefix hits"
    PREFIX_TEXT = "prefix text"  # another text after a prefix hit
    LOOP = "loop"


class Cause(NamedTuple):
    """A fault with its issue; `remedy` is what users can do now."""

    engine: str
    sign: Sign
    issue: str
    words: str
    remedy: str | None = None


KNOWN = (
    Cause("vllm", Sign.LAW, "vllm #54282",
          "the draft's noise is used again for the token after a rejection "
          "(draft_sample_method=probabilistic, 0.28 and before the fix)",
          "upgrade vLLM, or set draft_sample_method=greedy"),
    Cause("vllm", Sign.GREEDY, "vllm #41758", "n-gram drafts change greedy texts"),
    Cause("vllm", Sign.GREEDY, "vllm #54282", "the 0.28 release is not lossless"),
    Cause("vllm", Sign.GRAMMAR, "vllm #36138, #44006, #52620",
          "structured output breaks under speculation"),
    Cause("vllm", Sign.LOGPROBS, "vllm #30846, #44727",
          "log-probabilities are wrong or missing under speculation"),
    Cause("vllm", Sign.REFUSED, "vllm #42744, #38202",
          "min_p and logit_bias are refused under speculation"),
    Cause("sglang", Sign.REFUSED, "sglang eagle_utils",
          "min_p is ignored, and on CPU so is the temperature, under speculation"),
    Cause("vllm", Sign.COLLAPSE, "vllm #54374, #54691",
          "the drafter loses long contexts (DFlash's attention schedule)",
          "bound the draft window, or switch speculation off for long prompts"),
    Cause("vllm", Sign.DEAD, "vllm #52873",
          "acceptance is dead on the whole engine after a prompt past position 32768, until it "
          "is started again", "restart the engine; bound --max-model-len"),
    Cause("vllm", Sign.PREFIX_HITS, "vllm #54360, #53670",
          "speculation drops matched blocks of the prefix cache"),
    Cause("vllm", Sign.PREFIX_TEXT, "vllm #43559, #53912",
          "prefix cache and MTP on hybrid models give another text",
          "switch the prefix cache or speculation off for this model"),
    Cause("vllm", Sign.LOOP, "vllm-backport #96",
          "a repetition loop shows as 99% acceptance"),
    Cause("paceline", Sign.SEEDS, "docs/server-api.md",
          "under --rule token or block a seed's text depends on the drafts"),
)  # fmt: skip


def cause_of(engine: str, sign: Sign) -> tuple[str | None, str | None]:
    """Return the known faults of an engine that show this sign, in words, and what to do."""
    faults = [cause for cause in KNOWN if cause.engine == engine and cause.sign is sign]
    words = "; ".join(f"{cause.issue}: {cause.words}" for cause in faults)
    remedies = [cause.remedy for cause in faults if cause.remedy]
    return (words or None), ("; ".join(remedies) or None)
