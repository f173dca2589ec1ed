"""`paceline drafter`: inspect a DFlash checkpoint, find its faults, convert it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from paceline.cli import options
from paceline.core import InvalidRequest

if TYPE_CHECKING:
    from paceline.evaluate.doctor import Report
    from paceline.models.dflash.checkpoint import DFlashCheckpoint
    from paceline.models.dflash.config import DFlashConfig

MARKS = {True: "[green]ok[/]", False: "[red]WRONG[/]", None: "unknown"}


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "drafter",
        help="inspect, examine or convert a DFlash drafter",
        description="Works on DFlash checkpoints: folders or hub ids, z-lab's or speculators'.",
    )
    jobs = parser.add_subparsers(title="jobs", metavar="JOB", required=True)
    _add_inspect(jobs)
    _add_doctor(jobs)
    _add_convert(jobs)


def _add_inspect(jobs: Any) -> None:
    parser = jobs.add_parser(
        "inspect", help="print what a checkpoint is", description="Prints what a checkpoint is."
    )
    parser.add_argument("drafter", help="folder or hub id")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(run=inspect)


def _add_doctor(jobs: Any) -> None:
    parser = jobs.add_parser(
        "doctor",
        help="find out why acceptance is low",
        description="Serves sample prompts with a drafter and says in one sentence what is wrong. "
        "Exit code 1 when something is.",
    )
    parser.add_argument("model", help="the target: catalogue name, folder, GGUF file or hub id")
    parser.add_argument("drafter", help="folder or hub id, with options as --drafter takes them")
    parser.add_argument(
        "--prompts", default="demo", help="a shipped set or a JSON file, as bench's"
    )
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens of each answer")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_draft_window_option(parser)
    parser.set_defaults(run=doctor)


def _add_convert(jobs: Any) -> None:
    parser = jobs.add_parser(
        "convert",
        help="write a checkpoint in z-lab's format, which SGLang and vLLM read",
        description="Reads a checkpoint of either format and writes it in z-lab's.",
    )
    parser.add_argument("drafter", help="folder or hub id")
    parser.add_argument("out", type=Path, help="a folder that does not exist yet")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), help="of the weights")
    parser.add_argument(
        "--head-ids", type=Path, metavar="FILE", help="JSON list of token ids to cut the head to"
    )
    parser.add_argument(
        "--num-target-layers",
        type=int,
        metavar="N",
        help="layers of the target, which speculators' config does not say and z-lab's must",
    )
    parser.set_defaults(run=convert)


def inspect(args: argparse.Namespace) -> int:
    from paceline.models.dflash.checkpoint import load_checkpoint

    rows = description(load_checkpoint(args.drafter))
    if args.json:
        print(json.dumps(dict(rows), indent=2, default=str))
        return 0
    table = Table(show_header=False, box=None)
    for label, value in rows:
        table.add_row(label, str(value))
    Console(highlight=False).print(table)
    return 0


def description(checkpoint: DFlashCheckpoint) -> list[tuple[str, Any]]:
    """Return rows of (label, value)."""
    import torch

    from paceline.models.weights import stored_bytes

    config, weights = checkpoint.config, checkpoint.weights
    shape = config.layers
    parameters = sum(torch.Size(size).numel() for size in weights.shapes.values())
    per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    head_ids = checkpoint.head_ids
    rows: list[tuple[str, Any]] = [
        ("kind", f"{config.generation}, {checkpoint.format} format"),
        ("version", checkpoint.version),
        ("parameters", f"{parameters / 1e6:.1f} M, {stored_bytes(weights) / 2**20:.1f} MiB"),
        ("block", f"{config.block_size}: the anchor and up to {config.max_draft_len} draft tokens"),
        ("mask token", config.mask_token_id),
        ("mask embedding", "its own" if checkpoint.mask_embedding is not None else "the target's"),
        ("target layers", f"{list(config.target_layer_ids)} of {config.num_target_layers or '?'}"),
        ("layers", shape.num_layers),
        ("attention", _attention(config)),
        ("hidden size", f"{shape.hidden_size}, feed-forward {shape.intermediate_size}"),
        (
            "heads",
            f"{shape.num_heads}, {shape.num_kv_heads} of keys and values, {shape.head_dim} wide",
        ),
        ("RoPE", f"theta {shape.rope.theta:g}, {shape.rope.type}"),
        ("positions", shape.max_context),
        ("vocabulary", shape.vocab_size),
        ("head", "the target's" if head_ids is None else f"may be cut to {len(head_ids)} tokens"),
        ("draft KV", f"{per_token * 2} bytes per token in bfloat16"),
        ("trained for", _provenance(checkpoint) or "the checkpoint does not say"),
    ]
    if config.second is not None:
        second = dataclasses.asdict(config.second)
        rows.append(("second generation", ", ".join(f"{k} {v}" for k, v in second.items())))
    return rows


def _attention(config: DFlashConfig) -> str:
    """Return the attention of each layer in words, or of all layers where they are alike."""
    kinds = [
        f"{'full' if kind.window is None else f'sliding, {kind.window} tokens'}"
        f" ({'causal' if kind.causal else 'bidirectional'} in the block)"
        for kind in config.attention
    ]
    return "; ".join(kinds if len(set(kinds)) > 1 else kinds[:1])


def _provenance(checkpoint: DFlashCheckpoint) -> dict[str, Any]:
    """Return what a checkpoint says of its making."""
    return checkpoint.provenance.model_dump(exclude_none=True)


def doctor(args: argparse.Namespace) -> int:
    if args.max_tokens < 8:
        raise InvalidRequest("max_tokens", args.max_tokens, "at least 8")

    from paceline.bench.prompts import load_prompts
    from paceline.evaluate.doctor import examine

    conversations = [prompt.messages for prompt in load_prompts(args.prompts)]
    report = examine(
        args.model,
        args.drafter,
        conversations,
        args.max_tokens,
        dtype=args.dtype,
        device=args.device,
        draft_window=args.draft_window,
    )
    if args.json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        _print_report(report)
    return 0 if report.healthy else 1


def _print_report(report: Report) -> None:
    console = Console(highlight=False)
    table = Table(show_header=False, box=None)
    for check in report.checks:
        table.add_row(MARKS[check.ok], check.name, check.detail)
    console.print(table)
    if report.acceptance:
        shares = " ".join(f"{share:.2f}" for share in report.acceptance)
        console.print(f"\naccepted by position, over {report.rounds} rounds: {shares}")
    console.print(f"\n{report.verdict}", style="bold", soft_wrap=True)


def convert(args: argparse.Namespace) -> int:
    import torch

    from paceline.models.dflash.checkpoint import load_checkpoint, save_checkpoint

    if args.out.exists():
        raise InvalidRequest("out", str(args.out), "a folder that does not exist yet")
    checkpoint = load_checkpoint(args.drafter)
    weights, config_json = checkpoint.weights, dict(checkpoint.config_json)
    dtype = getattr(torch, args.dtype) if args.dtype else None
    if args.dtype:
        config_json["dtype"] = args.dtype
    config_json.pop("auto_map", None)  # names a file of code, which is not part of a checkpoint
    if args.num_target_layers is not None:
        config_json["num_target_layers"] = args.num_target_layers
    elif checkpoint.config.num_target_layers is None:
        raise InvalidRequest("num_target_layers", None, "the number of the target's layers")
    head_ids = None if checkpoint.head_ids is None else checkpoint.head_ids.tolist()
    if args.head_ids is not None:
        head_ids = _read_ids(args.head_ids)
    try:
        save_checkpoint(
            args.out,
            config_json,
            {name: weights[name].to(dtype or weights[name].dtype) for name in weights},
            mask_embedding=checkpoint.mask_embedding,
            head_ids=head_ids,
            provenance=_provenance(checkpoint),
        )
    except BaseException:
        shutil.rmtree(args.out, ignore_errors=True)
        raise
    print(args.out)
    return 0


def _read_ids(path: Path) -> list[int]:
    try:
        ids = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidRequest("head_ids", str(path), f"a JSON file ({error})") from error
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        raise InvalidRequest("head_ids", str(path), "a JSON list of token ids")
    return ids
