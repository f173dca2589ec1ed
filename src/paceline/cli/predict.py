"""`paceline predict`: the gain of speculation, before anything is trained or served."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from paceline.core import InvalidRequest
from paceline.core.documents import read_json_object
from paceline.core.spec_line import parse_options

if TYPE_CHECKING:
    from paceline.roofline.scenario import Prediction
    from paceline.roofline.traffic import TrafficProfile

PRESET_HELP = "a preset (ideal, dense-tuned, hybrid-sglang) or what `paceline roofline fit` wrote"


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "predict",
        help="predict what speculation would buy for a model on a device",
        description="Speedup by draft length from the roofline model: the ceiling that no engine "
        "passes, and beside it the same with an engine's efficiency and overheads. Nothing is "
        "loaded and nothing runs.",
    )
    parser.add_argument("model", help="a listed name, a Hugging Face folder or a config.json")
    parser.add_argument(
        "--hardware", required=True, metavar="NAME|FILE", help="a listed device, or your own (JSON)"
    )
    parser.add_argument(
        "--drafter",
        action="append",
        required=True,
        metavar="SPEC",
        help="[NAME=]KIND[:COST|FOLDER][,key=value...], up to three times; kinds ideal, mtp, "
        "eagle3, draft_model, dflash, ngram, suffix; keys block, seconds, max_draft, checkpoint, "
        "and the acceptance, as alpha=0.8 or al=3.5,draft_length=7",
    )
    parser.add_argument(
        "--acceptance", metavar="SPEC", help="of drafters that state none, as alpha=0.8"
    )
    _add_workload(parser)
    _add_output(parser)
    parser.set_defaults(run=run)


def _add_workload(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload and device")
    group.add_argument("--batch", type=int, help="requests that decode together (default: 1)")
    group.add_argument("--context", type=int, help="tokens in each one's cache (default: 4096)")
    group.add_argument(
        "--traffic",
        metavar="FILE|URL",
        help="a log of requests (JSONL) or a running server: batch and context come from it, and "
        "the gain is told from end to end",
    )
    group.add_argument(
        "--traffic-seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="how long a running server is watched (default: %(default)g)",
    )
    group.add_argument(
        "--precision", metavar="SPEC", help="of the weights, as fp8, or by part: experts=fp4,kv=fp8"
    )
    group.add_argument("--tensor-parallel", type=int, default=1, metavar="N")
    group.add_argument("--data-parallel", type=int, default=1, metavar="N")
    group.add_argument("--expert-parallel", type=int, default=1, metavar="N")
    group.add_argument(
        "--correlation",
        default="uniform",
        help="experts of neighbouring tokens: uniform (default) or measured",
    )
    group.add_argument(
        "--snapshots",
        default="per-token",
        help="of recurrent states when verifying: per-token (default) or replay",
    )
    group.add_argument("--state-precision", metavar="FORMAT", help="of those states, as bf16")
    group.add_argument("--calibration", metavar="NAME|FILE", help=PRESET_HELP)
    group.add_argument(
        "--max-draft", type=int, default=16, metavar="N", help="longest draft (default: 16)"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--by-batch",
        nargs="?",
        const=(),
        type=parse_counts,
        metavar="LIST",
        help="the optimum for each batch too (default of the option alone: 1, 2, 4, … 1024)",
    )
    group.add_argument(
        "--by-context", type=parse_counts, metavar="LIST", help="the same, as 1024,16384,131072"
    )
    group.add_argument("--components", action="store_true", help="where a step's time goes")
    group.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw it (.svg or .png; needs matplotlib)"
    )
    group.add_argument("--json", type=Path, metavar="FILE", help="write every number")


def parse_counts(text: str) -> tuple[int, ...]:
    """Read 1,8,64."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        message = f"{text!r} is no list of whole numbers; write it like 1,8,64"
        raise argparse.ArgumentTypeError(message) from None


def run(args: argparse.Namespace) -> int:
    from paceline.cli import predict_show
    from paceline.roofline.scenario import predict

    if args.json is not None and not args.json.parent.is_dir():
        raise InvalidRequest("json", str(args.json), "a file in a folder that exists")
    if args.plot is not None:
        from paceline.cli.predict_plot import check

        check(args.plot)
    traffic = _traffic(args)
    prediction = predict(_scenario(args, traffic))
    result: dict[str, Any] = {**prediction}
    console = Console(highlight=False)
    for shown in predict_show.tables(
        prediction,
        by_batch=args.by_batch is not None,
        by_context=args.by_context is not None,
        components=args.components,
    ):
        console.print(shown)
    if traffic is not None:
        title = f"\nTraffic: {traffic.requests} requests, {traffic.source}"
        console.print(title, style="bold", markup=False)
        console.print(predict_show.traffic_table(traffic))
        worths = _judge(traffic, prediction)
        for line in predict_show.worth_lines(traffic, worths):
            console.print(line, soft_wrap=True)
        result["traffic"] = traffic.as_json()
        result["end_to_end"] = worths
    for line in predict_show.flag_lines(prediction):
        console.print(line, markup=False, soft_wrap=True)
    _write(args, prediction, result)
    return 0


RUN = ("tensor_parallel", "data_parallel", "expert_parallel", "correlation", "snapshots",
       "state_precision")  # fmt: skip


def _scenario(args: argparse.Namespace, traffic: TrafficProfile | None) -> dict[str, Any]:
    from paceline.roofline.scenario import lines

    otherwise = None if args.acceptance is None else lines.acceptance_of_line(args.acceptance)
    stated: dict[str, Any] = {
        **lines.model_of_word(args.model),
        "hardware": read_device(args.hardware),
        "drafters": [lines.drafter_of_line(text, otherwise) for text in args.drafter],
        **{name: getattr(args, name) for name in RUN},
        "max_draft": args.max_draft,
        "precision": read_precision(args.precision),
        "calibration": _calibration(args.calibration),
        "batches": list(args.by_batch) if args.by_batch else None,
        "contexts": list(args.by_context) if args.by_context else None,
    }
    for name in ("batch", "context"):
        if getattr(args, name) is not None:
            stated[name] = getattr(args, name)
        elif traffic is not None:
            stated[name] = round(getattr(traffic, name))
    return stated


def read_device(word: str) -> str | dict[str, Any]:
    """Read a device's name, or the JSON file that describes one."""
    path = Path(word).expanduser()
    return read_json_object(path, "hardware") if path.suffix == ".json" else word


def _calibration(word: str | None) -> str | dict[str, Any] | None:
    if word is None or not (Path(word).expanduser().is_file() or word.endswith(".json")):
        return word
    return read_json_object(Path(word).expanduser(), "calibration")


def read_precision(text: str | None) -> str | dict[str, str] | None:
    """Read one format, or formats by part: `fp8`, `experts=fp4,kv=fp8`."""
    if text is None or "=" not in text:
        return text
    return {part: name for part, (name,) in parse_options("precision", text).items()}


def _traffic(args: argparse.Namespace) -> TrafficProfile | None:
    if args.traffic is None:
        return None
    if args.traffic.startswith(("http://", "https://")):
        from paceline.roofline.traffic import watch

        return watch(args.traffic, args.traffic_seconds)
    from paceline.roofline.traffic import read_log

    return read_log(Path(args.traffic).expanduser())


def _judge(traffic: TrafficProfile, prediction: Prediction) -> list[dict[str, Any]]:
    from paceline.roofline.traffic import judge

    worths = []
    for drafter in prediction["drafters"]:
        best = drafter["optimum"]["calibrated"]
        worth = judge(traffic, best["draft_length"], best["speedup"])
        worths.append({"drafter": drafter["name"], **worth.as_json()})
    return worths


def _write(args: argparse.Namespace, prediction: Prediction, result: dict[str, Any]) -> None:
    console = Console(highlight=False)
    if args.json is not None:
        args.json.write_text(json.dumps(result) + "\n", encoding="utf-8")
        console.print(str(args.json), markup=False, soft_wrap=True)
    if args.plot is not None:
        from paceline.cli.predict_plot import draw

        draw(prediction, args.plot)
        console.print(str(args.plot), markup=False, soft_wrap=True)
