"""The kinds of drafters that the roofline prices, one table, and the lines that launch a server
with them: ours, vLLM's and SGLang's.

Names of options as of vLLM 0.32 (`--speculative-config`, where a DFlash block's anchor is not
counted) and SGLang 0.5.23 (`--speculative-num-draft-tokens`, where the anchor row is counted, so
that γ drafted tokens are γ + 1).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.core.params import MAX_DRAFT_LEN
from paceline.roofline.architecture import Architecture
from paceline.roofline.cost import DrafterCost, Options
from paceline.roofline.cost.drafters import block, eagle, mtp, small_model

LOOK_BACK = 4  # longest n-gram that a look-up matches, in vLLM's examples
DRAFTER = "DRAFTER"  # stands for a checkpoint that the user did not name
SERVED = ("llama", "mistral", "qwen2", "qwen3")  # families that our own engine runs
BLOCK_ALGORITHMS = ("DFLASH", "NGRAM")  # without a number of steps


@dataclass(frozen=True, slots=True)
class DrafterKind:
    """A way of drafting: how its cost may be stated, and how engines call it (None: they lack it).

    costs        the fields of a drafter that state its cost, one of them
    reader       reads its cost off a config: (config, target)
    own_layer    reads its cost off the target's own draft layer, where no field states it
    drafts_block one pass drafts a whole block
    paceline     kind of `paceline serve --drafter`
    vllm         `method` of --speculative-config
    sglang       --speculative-algorithm
    """

    costs: tuple[str, ...] = ()
    reader: Callable[[Mapping[str, object], Architecture], DrafterCost] | None = None
    own_layer: Callable[[Architecture], DrafterCost] | None = None
    drafts_block: bool = False
    paceline: str | None = None
    vllm: str | None = None
    sglang: str | None = None

    @property
    def checkpoint(self) -> bool:
        """Return whether the drafter is a checkpoint of its own."""
        return self.reader is not None


EITHER = ("cost", "config")
KINDS = {
    "ideal": DrafterKind(),
    "mtp": DrafterKind(costs=("cost",), own_layer=mtp, vllm="mtp", sglang="NEXTN"),
    "eagle3": DrafterKind(costs=EITHER, reader=eagle, vllm="eagle3", sglang="EAGLE3"),
    "draft_model": DrafterKind(
        costs=EITHER,
        reader=lambda config, target: small_model(config),
        paceline="draft_model",
        vllm="draft_model",
        sglang="STANDALONE",
    ),
    "dflash": DrafterKind(
        costs=EITHER,
        reader=block,
        drafts_block=True,
        paceline="dflash",
        vllm="dflash",
        sglang="DFLASH",
    ),
    "ngram": DrafterKind(costs=("seconds",), paceline="ngram", vllm="ngram", sglang="NGRAM"),
    "suffix": DrafterKind(costs=("seconds",), paceline="suffix", vllm="suffix"),
}


def launch_flags(
    kind: str,
    draft_length: int,
    *,
    model: str,
    family: str,
    drafter: str | None = None,
    options: Options | None = None,
    experts: bool = False,
) -> dict[str, str | None]:
    """Write the command for "paceline", "vllm" and "sglang"; None where the engine cannot do that.

    At draft length 0 it is the command without speculation. Of `options`, the numbers of devices
    count; `experts` tells whether the model has experts.
    """
    method, options = KINDS[kind], options or Options()
    checkpoint = (drafter or DRAFTER) if method.checkpoint else None
    ours = family in SERVED and options.devices == 1
    words = {
        "paceline": _paceline(method, draft_length, model, checkpoint) if ours else None,
        "vllm": _vllm(method, draft_length, model, checkpoint, options),
        "sglang": _sglang(method, draft_length, model, checkpoint, options, experts),
    }
    return {engine: shlex.join(line) if line else None for engine, line in words.items()}


def lacking(kind: str, draft_length: int, *, family: str, options: Options) -> dict[str, str]:
    """Say by engine what it lacks for `launch_flags` to write its command."""
    method, plural = KINDS[kind], kind.replace("_", " ")
    own = [
        (
            family not in SERVED,
            f"Paceline does not serve the family {family} (it serves {', '.join(SERVED)})",
        ),
        (options.devices > 1, "Paceline serves on one device"),
        (draft_length and method.paceline is None, f"Paceline has no {plural} drafter"),
        (draft_length > MAX_DRAFT_LEN, f"Paceline drafts at most {MAX_DRAFT_LEN} tokens"),
    ]
    reasons = {"paceline": "; ".join(text for lacks, text in own if lacks)}
    if options.expert_parallel not in (1, options.devices):
        reasons["vllm"] = "vLLM divides experts among all devices, or among none"
    elif draft_length and method.vllm is None:
        reasons["vllm"] = f"vLLM has no {plural} drafter"
    if draft_length and method.sglang is None:
        reasons["sglang"] = f"SGLang has no {plural} drafter"
    return {engine: text for engine, text in reasons.items() if text}


Words = list[str] | None


def _paceline(method: DrafterKind, length: int, model: str, checkpoint: str | None) -> Words:
    if length and (method.paceline is None or length > MAX_DRAFT_LEN):
        return None
    value = f":{checkpoint}" if checkpoint else ""
    spec = f"{method.paceline}{value},max_draft_len={length}" if length else "none"
    return ["paceline", "serve", model, "--drafter", spec]


def _vllm(
    method: DrafterKind, length: int, model: str, checkpoint: str | None, options: Options
) -> Words:
    if options.expert_parallel not in (1, options.devices):
        return None  # vLLM deals experts to all devices, or to none
    words = ["vllm", "serve", model]
    if options.tensor_parallel > 1:
        words += ["--tensor-parallel-size", str(options.tensor_parallel)]
    if options.data_parallel > 1:
        words += ["--data-parallel-size", str(options.data_parallel)]
    if options.expert_parallel > 1:
        words.append("--enable-expert-parallel")
    if not length:
        return words
    if method.vllm is None:
        return None
    config: dict[str, str | int] = {"method": method.vllm}
    if checkpoint:
        config["model"] = checkpoint
    config["num_speculative_tokens"] = length
    if method.vllm == "ngram":
        config["prompt_lookup_max"] = LOOK_BACK
    return [*words, "--speculative-config", json.dumps(config)]


def _sglang(
    method: DrafterKind,
    length: int,
    model: str,
    checkpoint: str | None,
    options: Options,
    experts: bool,
) -> Words:
    words = ["python", "-m", "sglang.launch_server", "--model-path", model]
    # With data-parallel attention, --tp-size counts all devices; else those of one replica.
    spread = experts and options.data_parallel > 1
    devices = options.devices if spread else options.tensor_parallel
    if devices > 1:
        words += ["--tp-size", str(devices)]
    if options.data_parallel > 1:
        words += ["--dp-size", str(options.data_parallel)]
    if spread:
        words.append("--enable-dp-attention")
    if options.expert_parallel > 1:
        words += ["--ep-size", str(options.expert_parallel)]
    if not length:
        return words
    if method.sglang is None:
        return None
    words += ["--speculative-algorithm", method.sglang]
    if checkpoint:
        words += ["--speculative-draft-model-path", checkpoint]
    if method.sglang not in BLOCK_ALGORITHMS:
        words += ["--speculative-num-steps", str(length), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(length + 1)]
