"""Lines that launch a server: ours, vLLM's and SGLang's, for one method at one draft length.

Names of options as of vLLM 0.32 (`--speculative-config`, where a DFlash block's anchor is not
counted) and SGLang 0.5.23 (`--speculative-num-draft-tokens`, where the anchor row is counted, so
that γ drafted tokens are γ + 1).
"""

from __future__ import annotations

import json
import shlex

from paceline.core.params import MAX_DRAFT_LEN
from paceline.roofline.cost import Options
from paceline.roofline.scenario.kinds import KINDS

LOOK_BACK = 4  # longest n-gram that a look-up matches, in vLLM's examples
DRAFTER = "DRAFTER"  # stands for a checkpoint that the user did not name


SERVED = ("llama", "mistral", "qwen2", "qwen3")  # families that our own engine runs
BLOCK_ALGORITHMS = ("DFLASH", "NGRAM")  # without a number of steps


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
    checkpoint, options = drafter or DRAFTER, options or Options()
    return {
        "paceline": _paceline(kind, draft_length, model, checkpoint)
        if family in SERVED and options.devices == 1
        else None,
        "vllm": _vllm(kind, draft_length, model, checkpoint, options),
        "sglang": _sglang(kind, draft_length, model, checkpoint, options, experts),
    }


def _paceline(kind: str, length: int, model: str, checkpoint: str) -> str | None:
    method = KINDS[kind]
    if not length:
        return _line("paceline", "serve", model, "--drafter", "none")
    if method.paceline is None or length > MAX_DRAFT_LEN:
        return None
    value = f":{checkpoint}" if method.checkpoint else ""
    spec = f"{method.paceline}{value},max_draft_len={length}"
    return _line("paceline", "serve", model, "--drafter", spec)


def _vllm(kind: str, length: int, model: str, checkpoint: str, options: Options) -> str | None:
    if options.expert_parallel not in (1, options.devices):
        return None  # vLLM deals experts to all devices, or to none
    method = KINDS[kind]
    words = ["vllm", "serve", model]
    if options.tensor_parallel > 1:
        words += ["--tensor-parallel-size", str(options.tensor_parallel)]
    if options.data_parallel > 1:
        words += ["--data-parallel-size", str(options.data_parallel)]
    if options.expert_parallel > 1:
        words.append("--enable-expert-parallel")
    if length:
        if method.vllm is None:
            return None
        config: dict[str, str | int] = {"method": method.vllm}
        if method.checkpoint:
            config["model"] = checkpoint
        config["num_speculative_tokens"] = length
        if method.vllm == "ngram":
            config["prompt_lookup_max"] = LOOK_BACK
        words += ["--speculative-config", json.dumps(config)]
    return _line(*words)


def _sglang(
    kind: str, length: int, model: str, checkpoint: str, options: Options, experts: bool
) -> str | None:
    method = KINDS[kind]
    words = ["python", "-m", "sglang.launch_server", "--model-path", model]
    # With data-parallel attention, --tp-size counts all devices; else those of one replica.
    spread = experts and options.data_parallel > 1
    devices = options.devices if spread else options.tensor_parallel
    if devices > 1:
        words += ["--tp-size", str(devices)]
    if options.data_parallel > 1:
        words += ["--dp-size", str(options.data_parallel)]
    if spread:
        words += ["--enable-dp-attention"]
    if options.expert_parallel > 1:
        words += ["--ep-size", str(options.expert_parallel)]
    if length:
        if method.sglang is None:
            return None
        words += ["--speculative-algorithm", method.sglang]
        if method.checkpoint:
            words += ["--speculative-draft-model-path", checkpoint]
        if method.sglang not in BLOCK_ALGORITHMS:
            words += ["--speculative-num-steps", str(length), "--speculative-eagle-topk", "1"]
        words += ["--speculative-num-draft-tokens", str(length + 1)]
    return _line(*words)


def _line(*words: str) -> str:
    return shlex.join(words)
