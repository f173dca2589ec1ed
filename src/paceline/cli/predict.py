"""`paceline predict`: the gain of speculation, before anything is trained or served."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from paceline.cli.option import Argument
from paceline.cli.options import POSITIONAL, Counts, OutputFile, Strings
from paceline.core.document_help import about
from paceline.core.documents import checked, read_json_object
from paceline.core.names import find_name, local_path
from paceline.core.spec_line import parse_options

if TYPE_CHECKING:
    from paceline.models.described import DescribedModel
    from paceline.roofline.architecture import Architecture
    from paceline.roofline.architecture.config import Precision
    from paceline.roofline.device import Hardware
    from paceline.roofline.scenario import Prediction
    from paceline.roofline.traffic import TrafficProfile, Worth

KEPT = ("int4", "int4-g32", "int8", "bf16", "fp32")  # formats that weights of GGUF files are like
Named = Annotated[str, Argument(metavar="NAME|FILE")]
Spec = Annotated[str, Argument(metavar="SPEC")]
DESCRIBED = "a listed name, a hub id, a Hugging Face folder, config.json or GGUF file"
CALIBRATION = (
    "a preset (ideal, sglang-b200, dense-tuned, hybrid-sglang) or what `paceline roofline fit` "
    "wrote; default sglang-b200 for GPUs"
)


@checked
class PredictWorkload:
    """The requests, and the devices that serve them."""

    batch: int | None = about("requests that decode together", None, "1")
    context: int | None = about("tokens in each one's cache", None, "4096")
    traffic: Annotated[str, Argument(metavar="FILE|URL")] | None = about(
        "a log of requests (JSONL) or a server, for batch, context, and the gain end to end", None
    )
    traffic_seconds: float = about("how long a running server is watched", 10.0)
    precision: Spec | None = about("of the weights, as fp8, or by part: experts=fp4,kv=fp8", None)
    tensor_parallel: int | None = about(
        "devices that share each layer", None, "the fewest that hold the model and a request"
    )
    data_parallel: int = about("groups of such devices that divide the batch", 1)
    expert_parallel: int = about("devices that divide the experts", 1)
    correlation: str = about("experts of neighbouring tokens: uniform or measured", "uniform")
    snapshots: str = about("of recurrent states when verifying: per-token or replay", "per-token")
    state_precision: str | None = about("format of recurrent states, as bf16", None)
    calibration: Named | None = about(CALIBRATION, None)
    max_draft: int = about("longest draft", 16)

    def read_traffic(self) -> TrafficProfile | None:
        from paceline.roofline.traffic import read_log, watch

        if self.traffic is None:
            return None
        if self.traffic.startswith(("http://", "https://")):
            return watch(self.traffic, self.traffic_seconds)
        return read_log(local_path(self.traffic, "traffic"))

    def stated(self, traffic: TrafficProfile | None) -> dict[str, object]:
        """Return its part of a scenario; `traffic` gives the sizes that no option does."""
        sizes = {"batch": self.batch, "context": self.context}
        measured = {name: round(getattr(traffic, name)) for name in sizes if traffic is not None}
        return {
            **measured,
            **{name: size for name, size in sizes.items() if size is not None},
            **{name: getattr(self, name) for name in STATED},
            "precision": read_precision(self.precision),
            "calibration": self.calibration and read_named(self.calibration, "calibration"),
        }


STATED = ("tensor_parallel", "data_parallel", "expert_parallel", "correlation", "snapshots",
          "state_precision", "max_draft")  # fmt: skip


@checked
class PredictOutput:
    """Choose the tables to print and the files to write."""

    by_batch: Annotated[Counts, Argument(metavar="LIST", bare=())] | None = about(
        "the optimum for each batch too (default of the option alone: 1, 2, 4, … 1024)", None
    )
    by_context: Counts | None = about(
        "the optimum for each context too, as 1024,16384,131072", None
    )
    components: bool = about("where a step's time goes", False)
    plot: OutputFile | None = about("draw it (.svg or .png; needs matplotlib)", None)
    json: OutputFile | None = about("write every number", None)

    def write(self, console: Console, prediction: Prediction, result: dict[str, object]) -> None:
        if self.json is not None:
            self.json.write_text(json.dumps(result) + "\n", encoding="utf-8")
            console.print(str(self.json), markup=False, soft_wrap=True)
        if self.plot is not None:
            from paceline.cli.predict_show import draw

            draw(prediction, self.plot)
            console.print(str(self.plot), markup=False, soft_wrap=True)


@checked
class PredictCommand:
    """Predict what speculation would buy for a model on a device.

    Tokens per second and speedup by draft length: by the roofline, whose tokens per second no
    engine passes, and with an engine's efficiency and overheads. Nothing is loaded or runs: of a
    model on the hub only the config is fetched.
    """

    model: Annotated[str, POSITIONAL] = about(DESCRIBED)
    hardware: Named = about("a listed device, or your own (JSON)")
    drafter: Annotated[Strings, Argument(metavar="SPEC")] = about(
        "[NAME=]KIND[:COST|FOLDER][,key=value...], up to three times; kinds ideal, mtp, eagle3, "
        "draft_model, dflash, ngram, suffix; keys block, seconds, max_draft, checkpoint, and the "
        "acceptance, as alpha=0.8 or al=3.5,draft_length=7"
    )
    acceptance: Spec | None = about("of drafters that state none, as alpha=0.8", None)
    workload: PredictWorkload = PredictWorkload()
    output: PredictOutput = PredictOutput()

    def run(self) -> int:
        from paceline.cli import predict_show
        from paceline.models.described import describe
        from paceline.roofline.scenario import predict

        output, console = self.output, Console(highlight=False)
        if output.plot is not None:
            predict_show.check_chart(output.plot)
        traffic = self.workload.read_traffic()
        model = describe(self.model)
        prediction = predict(self._scenario(model, traffic))
        if model.stored_bits is not None and self.workload.precision is None:
            prediction["notes"] += precision_notes(model.name, model.stored_bits)
        result: dict[str, object] = {**prediction}
        by_batch, components = output.by_batch is not None, output.components
        for part in predict_show.tables(prediction, by_batch=by_batch, components=components):
            console.print(part)
        if traffic is not None:
            title = f"\nTraffic: {traffic.requests} requests, {traffic.source}"
            console.print(title, style="bold", markup=False)
            console.print(predict_show.traffic_table(traffic))
            worths = _judge(traffic, prediction)
            for line in predict_show.worth_lines(traffic, worths):
                console.print(line, soft_wrap=True)
            result["traffic"] = traffic.as_json()
            result["end_to_end"] = [
                {"drafter": name, **worth.as_json()} for name, worth in worths.items()
            ]
        for line in predict_show.flag_lines(prediction):
            console.print(line, markup=False, soft_wrap=True)
        output.write(console, prediction, result)
        return 0

    def _scenario(self, model: DescribedModel, traffic: TrafficProfile | None) -> dict[str, object]:
        from paceline.roofline.scenario import lines

        otherwise = None if self.acceptance is None else lines.acceptance_of_line(self.acceptance)
        batches, contexts = self.output.by_batch, self.output.by_context
        return {
            "model": stated_model(model),
            "checkpoint": model.checkpoint,
            "hardware": read_named(self.hardware, "hardware"),
            "drafters": [lines.drafter_of_line(text, otherwise) for text in self.drafter],
            **self.workload.stated(traffic),
            "batches": list(batches) if batches else None,
            "contexts": list(contexts) if contexts else None,
        }


def stated_model(model: DescribedModel) -> str | dict[str, object]:
    """Return the model as a scenario states it: a listed name, or a config with its name."""
    if model.checkpoint is None:
        return model.name
    return {"config": dict(model.config), "name": model.name}


def architecture_of(model: DescribedModel, precision: Precision | None) -> Architecture:
    """Return a model's architecture. Raises ModelError for a family that is not known."""
    from paceline.roofline.scenario.documents import StatedModel
    from paceline.roofline.scenario.scenario import read_model

    if model.checkpoint is None:
        return read_model(model.name, precision)
    return read_model(StatedModel(config=dict(model.config), name=model.name), precision)


def precision_notes(name: str, stored_bits: float) -> list[str]:
    """Return what to say of a file of so many bits a weight that is predicted in bf16."""
    from paceline.roofline.device import FORMATS

    nearest = min(KEPT, key=lambda kept: abs(8 * FORMATS[kept].bytes - stored_bits))
    if nearest == "bf16":
        return []
    return [
        f"{name} stores {stored_bits:.1f} bits a weight; predicted in bf16, as `paceline serve` "
        f"runs it; for an engine that keeps the weights as stored, --precision {nearest} is nearest"
    ]


def read_named(word: str, field: str) -> str | dict[str, object]:
    """Return a listed name as it is, or the object in one's own JSON file. A listed device goes
    before a file of that name."""
    from paceline.roofline.device import hardware_spellings

    path = local_path(word, field)
    if field == "hardware" and find_name(field, word, hardware_spellings(), whole=True):
        return word
    return read_json_object(path, field) if path.is_file() or path.suffix == ".json" else word


def read_device(word: str) -> Hardware:
    """Return a device by name, or from a JSON file."""
    from paceline.roofline.device import Hardware, hardware

    stated = read_named(word, "hardware")
    return hardware(stated) if isinstance(stated, str) else Hardware.read(stated, "hardware")


def read_precision(text: str | None) -> str | dict[str, str] | None:
    """Read one format, or formats by part: `fp8`, `experts=fp4,kv=fp8`."""
    if text is None or "=" not in text:
        return text
    return {part: name for part, (name,) in parse_options("precision", text).items()}


def _judge(traffic: TrafficProfile, prediction: Prediction) -> dict[str, Worth]:
    """Return what each drafter is worth from end to end, by its name."""
    from paceline.roofline.traffic import judge

    best = {
        d["name"]: optimum["calibrated"]
        for d in prediction["drafters"]
        if (optimum := d["optimum"]) is not None
    }
    return {
        name: judge(traffic, optimum["draft_length"], optimum["speedup"])
        for name, optimum in best.items()
    }
