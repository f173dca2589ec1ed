"""Features that a program without Paceline writes, by what docs/training.md says of the folder."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paceline.core import InvalidRequest
from paceline.training.run import train
from tests.training.runs import alike, config, quiet
from tests.training.sglang_server import network_of

Compute = Callable[[list[int], dict[str, Any]], dict[str, torch.Tensor]]
PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def documented() -> Callable[..., None]:
    """Return the function `write_features` of the page."""
    text = PAGE.read_text()
    block = text[text.index("<!-- a writer of features -->") :]
    code = re.search(r"```python\n(.*?)```", block, re.DOTALL)
    assert code is not None and "paceline" not in code[1]
    names: dict[str, Any] = {}
    exec(compile(code[1], str(PAGE), "exec"), names)
    write: Callable[..., None] = names["write_features"]
    return write


class Computer:
    """Computes the target with transformers, and shows what a writer has to write of a text."""

    def __init__(self, target: Path) -> None:
        self.network = network_of(target)

    @torch.no_grad()
    def of(self, ids: list[int], source: dict[str, Any]) -> dict[str, torch.Tensor]:
        seen = self.network(torch.tensor([ids]), output_hidden_states=True)
        # 0 is the embedding, so that layer 0's output is number 1.
        outputs = [seen.hidden_states[layer + 1][0] for layer in source["layers"]]
        parts = {"features": torch.cat(outputs, -1)}
        if source["soft_tokens"]:
            top = seen.logits[0].softmax(-1).topk(source["soft_tokens"])
            parts["likely"], parts["probabilities"] = top.indices.int(), top.values.half()
        return parts


@contextmanager
def writing(folder: Path, compute: Compute) -> Iterator[None]:
    """Write beside a run what it asks for."""
    stop = threading.Event()

    def work() -> None:
        while not (folder / "texts.jsonl").exists():
            if stop.wait(0.05):
                return
        documented()(folder, compute)

    writer = threading.Thread(target=work)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


def waiting(target: Path, trainset: Path, tmp_path: Path, **changes: Any) -> Path:
    folder = {"features_folder": str(tmp_path / "features"), "features_gb": 0.0}
    settings = config(
        target, trainset, tmp_path / "waiting",
        **{"steps": 8, "target_engine": "sglang", "features_wait": True,
           "features_wait_minutes": 0.5, **folder, **changes},
    )  # fmt: skip
    result = train(settings, quiet)
    assert result.drafter is not None
    return result.drafter


@pytest.mark.parametrize(
    "options",
    [{}, {"mix": {"kl": 1.0}, "soft_tokens": 4, "target_engine": "transformers"}],
    ids=["features", "distribution"],
)
def test_a_run_reads_what_a_program_of_others_writes(options, target, trainset, tmp_path):
    """The drafter is that of a run that computes the target."""
    with writing(tmp_path / "features", Computer(target).of):
        drafter = waiting(target, trainset, tmp_path, **options)
    beside = config(target, trainset, tmp_path / "beside",
                    **{"steps": 8, **options, "target_engine": "transformers"})  # fmt: skip
    ours = train(beside, quiet).drafter
    assert ours is not None
    theirs, ours = (load_file(each / "model.safetensors") for each in (drafter, ours))
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor, msg=name)
    lines = (tmp_path / "features" / "texts.jsonl").read_text().splitlines()
    assert len(lines) == len({json.loads(line)["file"] for line in lines}) == 24


def test_what_is_written_decides(target, trainset, tmp_path):
    """The negative control of the test above: other features, another drafter."""
    computer = Computer(target)

    def changed(ids: list[int], source: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {name: part * 1.01 for name, part in computer.of(ids, source).items()}

    drafters = []
    for name, compute in (("true", computer.of), ("changed", changed)):
        with writing(tmp_path / name / "features", compute):
            drafters.append(waiting(target, trainset, tmp_path / name))
    one, other = (load_file(each / "model.safetensors") for each in drafters)
    assert not alike(one, other)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (lambda part: part[1:], r"features are \[\d+, 128\], float32; expected \[\d+, 128\]"),
        (lambda part: part[:, 1:], r"features are \[\d+, 127\], float32; expected \[\d+, 128\]"),
        (lambda part: part.bfloat16(), r"128\], bfloat16; expected \[\d+, 128\], float32"),
    ],
    ids=["tokens", "layers", "numbers"],
)
def test_a_file_of_another_form_is_not_read(fault, told, target, trainset, tmp_path, caplog):
    computer = Computer(target)

    def compute(ids: list[int], source: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {name: fault(part).contiguous() for name, part in computer.of(ids, source).items()}

    with (
        writing(tmp_path / "features", compute),
        pytest.raises(InvalidRequest, match="nothing new came for"),
    ):
        waiting(target, trainset, tmp_path, features_wait_minutes=0.03)
    assert re.search(told, caplog.text) and "cannot be used" in caplog.text
