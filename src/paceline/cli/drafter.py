"""`paceline drafter`: inspect a DFlash checkpoint, find its faults, convert it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Strict
from rich.table import Table

from paceline.cli import show
from paceline.cli.option import Only
from paceline.cli.options import DEFAULTS, MODEL_HELP, POSITIONAL, PROMPTS_HELP, File, Positional
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between, OneOf
from paceline.engine.config import EngineConfig

if TYPE_CHECKING:
    from paceline.evaluate.doctor import Report
    from paceline.models.dflash.checkpoint import DFlashCheckpoint
    from paceline.models.dflash.config import DFlashConfig

MARKS = {True: "[green]ok[/]", False: "[red]WRONG[/]", None: "unknown"}


@checked
class InspectCommand:
    """Print what a checkpoint is."""

    drafter: Positional = about(
        "folder or hub id, or the name of a model that a drafter is shipped for"
    )
    json: bool = about("print it as JSON", False)

    def run(self) -> int:
        from paceline.drafters.shipped import drafter_folder
        from paceline.models.dflash.checkpoint import load_checkpoint

        rows = description(load_checkpoint(drafter_folder(self.drafter)))
        if self.json:
            print(json.dumps(dict(rows), indent=2, default=str))
            return 0
        table = Table(show_header=False, box=None)
        for label, value in rows:
            table.add_row(label, _in_words(value))
        show.report_console().print(table)
        return 0


@checked
class DoctorCommand:
    """Find out why acceptance is low.

    Serves sample prompts with a drafter and says in one sentence what is wrong. Exit code 1 when
    something is.
    """

    model: Positional = about(f"the target: {MODEL_HELP}")
    drafter: Positional = about(
        "folder or hub id, or the name of a model that a drafter is shipped for, with options as "
        "--drafter takes them"
    )
    prompts: str = about(PROMPTS_HELP, "demo")
    max_tokens: Annotated[int, Between(8)] = about("tokens of each answer", 96)
    json: bool = about("print the report as JSON", False)
    engine: Annotated[EngineConfig, Only(("dtype", "device", "draft_window"))] = DEFAULTS

    def run(self) -> int:
        from paceline.bench.prompts import load_prompts
        from paceline.evaluate.doctor import examine

        report = examine(
            self.model,
            self.drafter,
            [prompt.messages for prompt in load_prompts(self.prompts)],
            self.max_tokens,
            dtype=self.engine.dtype,
            device=self.engine.device,
            draft_window=self.engine.draft_window,
        )
        if self.json:
            print(json.dumps(report.as_json(), indent=2))
        else:
            _print_report(report)
        return 0 if report.healthy else 1


@checked
class ConvertCommand:
    """Write a checkpoint in z-lab's format, which SGLang and vLLM read.

    Reads a checkpoint of either format and writes it in z-lab's.
    """

    drafter: Positional = about(
        "folder or hub id, or the name of a model that a drafter is shipped for"
    )
    out: Annotated[Path, Strict(False), POSITIONAL] = about("a folder that does not exist yet")
    dtype: Annotated[str, OneOf(("bfloat16", "float32"))] | None = about("of the weights", None)
    head_ids: File | None = about("JSON list of token ids to cut the head to", None)
    num_target_layers: int | None = about(
        "layers of the target, which speculators' config does not say and z-lab's must", None
    )

    def run(self) -> int:
        import torch

        from paceline.drafters.shipped import drafter_folder
        from paceline.models.dflash.checkpoint import load_checkpoint, save_checkpoint

        if self.out.exists():
            raise InvalidRequest("out", str(self.out), "a folder that does not exist yet")
        checkpoint = load_checkpoint(drafter_folder(self.drafter))
        weights, config_json = checkpoint.weights, dict(checkpoint.config_json)
        dtype: torch.dtype | None = getattr(torch, self.dtype) if self.dtype else None
        if self.dtype:
            config_json["dtype"] = self.dtype
        config_json.pop("auto_map", None)  # names a file of code, which is not part of a checkpoint
        if self.num_target_layers is not None:
            config_json["num_target_layers"] = self.num_target_layers
        elif checkpoint.config.num_target_layers is None:
            raise InvalidRequest("num_target_layers", None, "the number of the target's layers")
        head_ids = None if checkpoint.head_ids is None else checkpoint.head_ids.tolist()
        if self.head_ids is not None:
            head_ids = _read_ids(self.head_ids)
        try:
            save_checkpoint(
                self.out,
                config_json,
                {name: weights[name].to(dtype or weights[name].dtype) for name in weights},
                mask_embedding=checkpoint.mask_embedding,
                head_ids=head_ids,
                provenance=_provenance(checkpoint),
            )
        except BaseException:
            shutil.rmtree(self.out, ignore_errors=True)
            raise
        print(self.out)
        return 0


def description(checkpoint: DFlashCheckpoint) -> list[tuple[str, object]]:
    """Return rows of (label, value)."""
    import torch

    from paceline.drafters.dflash import window_for
    from paceline.models.weights import stored_bytes

    config, weights, head_ids = checkpoint.config, checkpoint.weights, checkpoint.head_ids
    shape = config.layers
    parameters = sum(torch.Size(size).numel() for size in weights.shapes.values())
    per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    kv_heads = f"{shape.num_kv_heads} of keys and values"
    window, why = window_for(None, checkpoint.provenance)
    rows: list[tuple[str, object]] = [
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
        ("heads", f"{shape.num_heads}, {kv_heads}, {shape.head_dim} wide"),
        ("RoPE", f"theta {shape.rope.theta:g}, {shape.rope.type}"),
        ("positions", shape.max_context),
        ("window", f"{'all' if window is None else window} tokens of context: {why}"),
        ("vocabulary", shape.vocab_size),
        ("head", "the target's" if head_ids is None else f"may be cut to {len(head_ids)} tokens"),
        ("draft KV", f"{per_token * 2} bytes per token in bfloat16"),
        ("trained for", _provenance(checkpoint) or "the checkpoint does not say"),
    ]
    if config.second is not None:
        second = dataclasses.asdict(config.second)
        rows.append(("second generation", ", ".join(f"{k} {v}" for k, v in second.items())))
    return rows


def _in_words(value: object) -> str:
    """Return a value of `description` as a person reads it."""
    if isinstance(value, dict):
        return "\n".join(
            f"{name.replace('_', ' ')}: {_in_words(each)}" for name, each in value.items()
        )
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _attention(config: DFlashConfig) -> str:
    """Return the attention of each layer in words, or of all layers where they are alike."""
    kinds = [
        f"{'full' if kind.window is None else f'sliding, {kind.window} tokens'}"
        f" ({'causal' if kind.causal else 'bidirectional'} in the block)"
        for kind in config.attention
    ]
    return "; ".join(kinds if len(set(kinds)) > 1 else kinds[:1])


def _provenance(checkpoint: DFlashCheckpoint) -> dict[str, object]:
    """Return what a checkpoint says of its making."""
    return checkpoint.provenance.model_dump(exclude_none=True)


def _print_report(report: Report) -> None:
    console = show.report_console()
    table = Table(show_header=False, box=None)
    for check in report.checks:
        table.add_row(MARKS[check.ok], check.name, check.detail)
    console.print(table)
    if report.acceptance:
        shares = " ".join(f"{share:.2f}" for share in report.acceptance)
        console.print(f"\naccepted by position, over {report.rounds} rounds: {shares}")
    console.print(f"\n{report.verdict}", style="bold", soft_wrap=True)


def _read_ids(path: Path) -> list[int]:
    try:
        ids = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidRequest("head_ids", str(path), f"a JSON file ({error})") from error
    if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
        raise InvalidRequest("head_ids", str(path), "a JSON list of token ids")
    return ids
