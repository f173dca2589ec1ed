"""Options that several commands share: how the engine is built and how tokens are chosen."""

from __future__ import annotations

import argparse
import re
from typing import Any

from paceline.core import MAX_DRAFT_LEN, InvalidRequest, SamplingParams, SpeculativeParams
from paceline.engine.config import BACKENDS, DTYPES, QUANTIZE, RULES, EngineConfig

SIZES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
DEFAULTS = EngineConfig()


def parse_bytes(text: str) -> int:
    """Reads 1500000000, 1.5G (10^9) or 2GiB (2^30)."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMG]I?)?B?", text.strip().upper())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write it like 512MiB or 2GiB")
    return int(float(match[1]) * SIZES[match[2] or ""])


def parse_rates(text: str) -> tuple[float, ...]:
    """Reads acceptance rates per draft position: 0.9,0.8,0.7."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        message = f"{text!r} is no list of rates; write it like 0.9,0.8,0.7"
        raise argparse.ArgumentTypeError(message) from None


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        default=DEFAULTS.model,
        help="catalogue name, Hugging Face folder, GGUF file or hub id (default: %(default)s)",
    )


def add_model_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m",
        "--model",
        default=DEFAULTS.model,
        help="catalogue name, Hugging Face folder, GGUF file or hub id (default: %(default)s)",
    )


def add_draft_window_option(parser: Any) -> None:
    parser.add_argument(
        "--draft-window",
        type=int,
        metavar="N",
        help="most tokens of context that a DFlash drafter looks at (default: all)",
    )


def add_network_options(parser: Any, quantize: str | None = DEFAULTS.quantize) -> None:
    add_device_options(parser)
    parser.add_argument(
        "--quantize",
        choices=QUANTIZE,
        default=quantize,
        help="linear layers of target and drafters in int8, on CUDA in fp8 (default: %(default)s)",
    )


def add_device_options(parser: Any) -> None:
    parser.add_argument("--dtype", choices=DTYPES, default=DEFAULTS.dtype)
    parser.add_argument("--device", default=DEFAULTS.device, help="cpu or cuda (default: cpu)")
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default=DEFAULTS.backend,
        help="native: fused CPU kernels; torch: stock ops; auto: native where it can run",
    )
    parser.add_argument("--threads", type=int, help="CPU threads of a forward (default: all cores)")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--drafter",
        action="append",
        metavar="SPEC",
        help="[NAME=]KIND[:VALUE][,key=value...], or [NAME=] and a drafter's folder or hub id; "
        "repeat it to load several, the first is the default; `auto` is suffix + ngram, and the "
        "DFlash drafter that is shipped for the model if one is, `none` "
        "serves without (default: auto)",
    )
    add_draft_window_option(group)
    add_network_options(group)
    group.add_argument("--max-model-len", type=int, help="longest prompt + output, in tokens")
    group.add_argument(
        "--kv-memory", type=parse_bytes, metavar="SIZE", help="memory for the KV cache, as 512MiB"
    )
    group.add_argument("--max-num-seqs", type=int, default=DEFAULTS.max_num_seqs)
    group.add_argument(
        "--max-waiting", type=int, default=DEFAULTS.max_waiting, help="most requests that may queue"
    )
    group.add_argument(
        "--token-budget", type=int, default=DEFAULTS.token_budget, help="most rows in one step"
    )
    group.add_argument(
        "--max-stretch",
        type=float,
        default=DEFAULTS.max_stretch,
        help="how much longer a prompt chunk may make a step while others decode",
    )
    group.add_argument(
        "--draft-policy",
        default=DEFAULTS.draft_policy,
        metavar="POLICY",
        help="throughput: draft lengths that pay by measured cost; fixed: as long as asked for, or "
        "fixed:k; off (default: %(default)s)",
    )
    group.add_argument(
        "--holdback",
        type=float,
        default=DEFAULTS.holdback,
        metavar="SHARE",
        help="share of requests that run without speculation, to compare with, as 0.01",
    )
    group.add_argument("--rule", choices=RULES, default=DEFAULTS.rule, help="verification rule")
    group.add_argument(
        "--synthetic",
        type=parse_rates,
        default=DEFAULTS.synthetic,
        metavar="RATES",
        help="acceptance per draft position for --rule synthetic, as 0.9,0.8,0.7 (not lossless)",
    )
    group.add_argument("--no-prefix-cache", action="store_true")
    group.add_argument("--engine-seed", type=int, help="base seed of requests that bring none")


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """Raises InvalidRequest, naming the option. Needs no torch: bad input is refused at once."""
    return EngineConfig(
        model=args.model or DEFAULTS.model,
        drafter=drafter_specs(args.drafter),
        dtype=args.dtype,
        device=args.device,
        backend=args.backend,
        quantize=args.quantize,
        max_model_len=args.max_model_len,
        kv_memory=args.kv_memory,
        max_num_seqs=args.max_num_seqs,
        max_waiting=args.max_waiting,
        token_budget=args.token_budget,
        max_stretch=args.max_stretch,
        draft_policy=args.draft_policy,
        holdback=args.holdback,
        draft_window=args.draft_window,
        rule=args.rule,
        synthetic=args.synthetic,
        prefix_cache=not args.no_prefix_cache,
        seed=args.engine_seed,
        threads=args.threads,
    )


def drafter_specs(values: list[str] | None) -> str | tuple[str, ...] | None:
    if values is None:
        return DEFAULTS.drafter
    if "none" in values:
        if len(values) > 1:
            raise InvalidRequest("drafter", values, "`none` alone, or drafters without it")
        return None
    return tuple(values)


def add_sampling_options(
    parser: argparse.ArgumentParser, *, max_tokens: int, temperature: float, seed: int | None = None
) -> None:
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int, default=max_tokens)
    group.add_argument(
        "--temperature", type=float, default=temperature, help="0 is argmax (default: %(default)s)"
    )
    group.add_argument("--top-k", type=int, default=0)
    group.add_argument("--top-p", type=float, default=1.0)
    group.add_argument("--min-p", type=float, default=0.0)
    group.add_argument("--repetition-penalty", type=float, default=1.0)
    group.add_argument(
        "--seed", type=int, default=seed, help="seed of the noise; equal seeds give equal text"
    )


def sampling_params(args: argparse.Namespace, **more: Any) -> SamplingParams:
    """Raises InvalidRequest, naming the field."""
    return SamplingParams(
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        seed=args.seed,
        **more,
    )


def add_draft_length_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-draft-len",
        type=int,
        metavar="N",
        help=f"longest draft of a round, 0 to {MAX_DRAFT_LEN} (default: the drafter's own)",
    )


def add_speculation_options(parser: argparse.ArgumentParser) -> None:
    add_draft_length_option(parser)
    parser.add_argument("--off", action="store_true", help="decode without speculation (AR)")


def speculative(args: argparse.Namespace) -> Any:
    """The `speculative` value as the API takes it: None, "off" or an object.

    Raises InvalidRequest, naming the field.
    """
    if args.off:
        if args.max_draft_len is not None:
            raise InvalidRequest("max_draft_len", args.max_draft_len, "no value beside --off")
        return "off"
    wish = None if args.max_draft_len is None else {"max_draft_len": args.max_draft_len}
    SpeculativeParams.parse(wish)
    return wish
