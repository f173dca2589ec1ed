"""The same mock on vLLM and on SGLang: the lines that launch and measure them.

vLLM (config/speculative.py as of 0.32) takes unconditional rates by position, and so draws from our
law for each request. SGLang (srt/environ.py as of 0.5.23) takes a mean, incl. bonus, and draws one
length a step for the whole batch. Both run the drafter. The text of both means nothing.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from functools import partial

from paceline.bench.mock.plan import Cell, MockPlan
from paceline.core import InvalidRequest
from paceline.core.errors import check_integer
from paceline.core.spec_line import SpecLine
from paceline.roofline.cost import Options
from paceline.roofline.scenario import KINDS as METHODS
from paceline.roofline.scenario import launch_flags

VLLM, SGLANG = "vllm", "sglang"
ENGINES = (VLLM, SGLANG)
OUTPUT = 256  # tokens of each request of a measurement
HEAD = (
    "# Mocked acceptance: for speed alone. The output is NOT the model's and means nothing.",
    "# Start one server at a time, and measure it with the lines at the end.",
)
TURNS = 8  # requests one after another in each place of the batch
# those that draft a whole draft every time, with a checkpoint or a layer of the target's; look-ups
# may have less
KINDS = tuple(kind for kind, method in METHODS.items() if method.checkpoint or method.own_layer)


@dataclass(frozen=True, slots=True)
class LaunchDrafter:
    """The drafter of the other engine: a kind of KINDS, and its checkpoint where it has one."""

    kind: str
    checkpoint: str | None = None

    @classmethod
    def parse(cls, text: str) -> LaunchDrafter:
        """Read KIND or KIND:CHECKPOINT. Raises InvalidRequest."""
        line = SpecLine.parse(text)
        plain = line.name is None and not line.options
        if not plain or line.kind not in KINDS or METHODS[line.kind].checkpoint != bool(line.value):
            forms = [f"{each}:CHECKPOINT" if METHODS[each].checkpoint else each for each in KINDS]
            raise InvalidRequest("drafter", text, "one of " + ", ".join(forms))
        return cls(line.kind, line.value)


def launch_lines(
    engine: str,
    plan: MockPlan,
    model: str,
    drafter: LaunchDrafter,
    *,
    dtype: str = "bfloat16",
    tensor_parallel: int = 1,
) -> list[str]:
    """Return a shell script: for AR and for each acceptance and draft length, the server with dummy
    weights; then, for each batch, the client that measures it.

    Raises InvalidRequest for an engine that is not in ENGINES or that has no such drafter.
    """
    if engine not in ENGINES:
        raise InvalidRequest("launch", engine, "one of " + ", ".join(ENGINES))
    check_integer("tensor_parallel", tensor_parallel, 1, 1024, "a whole number of devices")

    options = Options(tensor_parallel=tensor_parallel)
    server = partial(_server, engine, model, drafter, options, dtype)
    lines = [*HEAD, *_block_note(plan, drafter)]
    lines += ["", "# AR: speculation off, what the others are compared with", shlex.join(server(0))]
    cells = {(cell.draft_length, cell.rates): cell for cell in plan.cells()}  # at any batch
    for cell in cells.values():
        al, length = f"{cell.acceptance_length:.4g}", cell.draft_length
        mocked = _mocked(engine, server(length), cell)
        lines += ["", f"# AL {al} incl. bonus, drafts of {length} tokens", mocked]
    lines += ["", "# measure, at each batch"]
    return lines + [_client(engine, plan, model, batch) for batch in plan.batches]


def _block_note(plan: MockPlan, drafter: LaunchDrafter) -> list[str]:
    """Say what a drafter that drafts a block must be able to: its checkpoint is not here."""
    if not METHODS[drafter.kind].drafts_block:
        return []
    longest = max(plan.draft_lengths)
    return [
        f"# The block of {drafter.checkpoint} was not looked up: drafts must not be longer "
        f"than it (here {longest} tokens at most,",
        f"# which asks for a block_size of {longest + 1} or more in the drafter's config.json).",
    ]


def _server(
    engine: str, model: str, drafter: LaunchDrafter, options: Options, dtype: str, length: int
) -> list[str]:
    """Return the words of the command that serves dummy weights with drafts of `length` tokens."""
    command = launch_flags(
        drafter.kind,
        length,
        model=model,
        family="",  # only Paceline's own flags depend on it
        drafter=drafter.checkpoint,
        options=options,
    )[engine]
    if command is None:
        raise InvalidRequest("drafter", drafter.kind, f"a kind of drafter that {engine} has")
    return [*shlex.split(command), "--load-format", "dummy", "--dtype", dtype]


def _mocked(engine: str, words: list[str], cell: Cell) -> str:
    if engine == SGLANG:
        return (
            f"SGLANG_SIMULATE_ACC_LEN={cell.acceptance_length:.6g} "
            "SGLANG_SIMULATE_ACC_METHOD=match-expected "
            f"SGLANG_SIMULATE_ACC_TOKEN_MODE=real-draft-token {shlex.join(words)}"
        )
    at = words.index("--speculative-config") + 1
    rates = [round(float(rate), 6) for rate in cell.acceptance.survival(cell.draft_length)]
    mocked = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
    words[at] = json.dumps({**json.loads(words[at]), **mocked})
    return shlex.join(words)


def _client(engine: str, plan: MockPlan, model: str, batch: int) -> str:
    """Return the command that measures at one batch; the context is the plan's amid the output."""
    prompt = max(1, plan.context - OUTPUT // 2)
    sizes = f"--random-input-len {prompt} --random-output-len {OUTPUT}"
    load = f"--num-prompts {TURNS * batch} --max-concurrency {batch}"
    model = shlex.quote(model)
    if engine == SGLANG:
        return (
            f"python -m sglang.bench_serving --backend sglang --model {model} --dataset-name "
            f"random-ids --random-range-ratio 1 {sizes} {load} "
            f"--output-file mock-batch-{batch}.jsonl"
        )
    return (
        f"vllm bench serve --model {model} --dataset-name random {sizes} --ignore-eos {load} "
        f"--save-result --result-filename mock-batch-{batch}.json"
    )
