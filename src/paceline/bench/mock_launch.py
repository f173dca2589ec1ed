"""The same mock on vLLM and on SGLang: the lines that launch and measure them.

vLLM takes unconditional rates by position (`rejection_sample_method` "synthetic" with
`synthetic_acceptance_rates`; vllm/config/speculative.py as of 0.32), so that it draws from the very
law that we draw from, for each request. SGLang takes a mean (`SGLANG_SIMULATE_ACC_LEN`, incl.
bonus; "match-expected" makes it exact; sglang/srt/environ.py as of 0.5.23) and draws one length a
step for the whole batch. Both run the drafter, and both say nothing that means anything.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from paceline.bench.mock import Cell, Plan
from paceline.core import InvalidRequest
from paceline.core.errors import check_integer
from paceline.core.spec_line import SpecLine
from paceline.roofline.cost import Options
from paceline.roofline.scenario import KINDS as METHODS
from paceline.roofline.scenario import launch_flags

OUTPUT = 256  # tokens of each request that is asked while it is measured
TURNS = 8  # requests one after another in each place of the batch
KINDS = tuple(
    kind for kind, method in METHODS.items() if method.checkpoint or kind == "mtp"
)  # what drafts whole drafts every time; look-ups find what they find


@dataclass(frozen=True, slots=True)
class Drafter:
    """How the other engine drafts: a kind of KINDS, and its checkpoint where it has one."""

    kind: str
    checkpoint: str | None = None

    @classmethod
    def parse(cls, text: str) -> Drafter:
        """Reads KIND or KIND:CHECKPOINT. Raises InvalidRequest."""
        line = SpecLine.parse(text)
        plain = line.name is None and not line.options
        if not plain or line.kind not in KINDS or METHODS[line.kind].checkpoint != bool(line.value):
            forms = [f"{each}:CHECKPOINT" if METHODS[each].checkpoint else each for each in KINDS]
            raise InvalidRequest("drafter", text, "one of " + ", ".join(forms))
        return cls(line.kind, line.value)


def launch_lines(
    engine: str,
    plan: Plan,
    model: str,
    drafter: Drafter,
    *,
    dtype: str = "bfloat16",
    tensor_parallel: int = 1,
) -> list[str]:
    """A shell script: for AR and for each acceptance and draft length, the server with dummy
    weights; then, for each batch, what measures it. Raises InvalidRequest for an engine that is
    not in ENGINES or that has no such drafter."""
    if engine not in ENGINES:
        raise InvalidRequest("launch", engine, "one of " + ", ".join(ENGINES))
    check_integer("tensor_parallel", tensor_parallel, 1, 1024, "a whole number of devices")

    def server(cell: Cell | None) -> str:
        length = 0 if cell is None else cell.draft_length
        words = _words(engine, model, drafter, length, tensor_parallel)
        words += ["--load-format", "dummy", "--dtype", dtype]
        return ENGINES[engine](words, cell)

    lines = [
        "# Mocked acceptance: for speed alone. The output is NOT the model's and means nothing.",
        "# Start one server at a time, and measure it with the lines at the end.",
        *_remarks(plan, drafter),
        "",
        "# AR: speculation off, what the others are compared with",
        server(None),
    ]
    seen = set()
    for cell in plan.cells():
        key = (cell.draft_length, cell.rates)
        if key not in seen:  # the batch is the client's business
            seen.add(key)
            lines += ["", f"# {_describe(cell)}", server(cell)]
    lines += ["", "# measure, at each batch"]
    return lines + [CLIENTS[engine](plan, model, batch) for batch in plan.batches]


def _remarks(plan: Plan, drafter: Drafter) -> list[str]:
    """What holds for these lines and cannot be checked without the checkpoint."""
    if drafter.kind != "dflash":
        return []
    longest = max(plan.draft_lengths)
    return [
        f"# The block of {drafter.checkpoint} was not looked up: drafts must not be longer than it "
        f"(here {longest} tokens at most,",
        f"# which asks for a block_size of {longest + 1} or more in the drafter's config.json).",
    ]


def _describe(cell: Cell) -> str:
    return f"AL {cell.acceptance_length:.4g} incl. bonus, drafts of {cell.draft_length} tokens"


def _words(
    engine: str, model: str, drafter: Drafter, length: int, tensor_parallel: int
) -> list[str]:
    """The engine's command for that drafter and draft length, as a user would really serve."""
    found = launch_flags(
        drafter.kind,
        length,
        model=model,
        family="",  # tells what our own engine can serve, which is not asked
        drafter=drafter.checkpoint,
        options=Options(tensor_parallel=tensor_parallel),
    )[engine]
    if found is None:
        raise InvalidRequest("drafter", drafter.kind, f"a kind of drafter that {engine} has")
    return shlex.split(found)


def _vllm(words: list[str], cell: Cell | None) -> str:
    if cell is not None:
        at = words.index("--speculative-config") + 1
        rates = [round(float(s), 6) for s in cell.acceptance.survival(cell.draft_length)]
        mocked = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
        words[at] = json.dumps({**json.loads(words[at]), **mocked})
    return shlex.join(words)


def _sglang(words: list[str], cell: Cell | None) -> str:
    if cell is None:
        return shlex.join(words)
    mocked = {
        "SGLANG_SIMULATE_ACC_LEN": f"{cell.acceptance_length:.6g}",
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
    }
    return " ".join(f"{name}={value}" for name, value in mocked.items()) + f" {shlex.join(words)}"


def _prompt(plan: Plan) -> int:
    """So long a prompt that the middle of the output is at the plan's context."""
    return max(1, plan.context - OUTPUT // 2)


def _vllm_client(plan: Plan, model: str, batch: int) -> str:
    return shlex.join(
        [
            *("vllm", "bench", "serve", "--model", model, "--dataset-name", "random"),
            *("--random-input-len", str(_prompt(plan)), "--random-output-len", str(OUTPUT)),
            *("--ignore-eos", "--num-prompts", str(TURNS * batch)),
            *("--max-concurrency", str(batch), "--save-result"),
            *("--result-filename", f"mock-batch-{batch}.json"),
        ]
    )


def _sglang_client(plan: Plan, model: str, batch: int) -> str:
    return shlex.join(
        [
            *("python", "-m", "sglang.bench_serving", "--backend", "sglang", "--model", model),
            *("--dataset-name", "random-ids", "--random-range-ratio", "1"),
            *("--random-input-len", str(_prompt(plan)), "--random-output-len", str(OUTPUT)),
            *("--num-prompts", str(TURNS * batch), "--max-concurrency", str(batch)),
            *("--output-file", f"mock-batch-{batch}.jsonl"),
        ]
    )


ENGINES: dict[str, Callable[[list[str], Cell | None], str]] = {
    "vllm": _vllm,
    "sglang": _sglang,
}
CLIENTS: dict[str, Callable[[Plan, str, int], str]] = {
    "vllm": _vllm_client,
    "sglang": _sglang_client,
}
