"""Targets that vLLM computes: a stand-in for vLLM's process here, vLLM itself in the slow tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core import InvalidRequest, ModelError
from paceline.models.any_target import read_target
from paceline.training.run import prepare, train, write_features
from paceline.training.vllm_target import VLLMModel
from paceline.training.workers import Workers
from tests.training import foreign
from tests.training.foreign import save_foreign, write_random_set
from tests.training.runs import config, learn_by_heart, losses, quiet
from tests.training.twins import random_text

# Answers as in_vllm/paceline_features.py does, with features that our own engine computes.
STAND_IN = """#!{python}
import json, os, sys
import torch
from safetensors.torch import save_file
from paceline.models.any_target import read_target
from paceline.models.networks import build_network
from paceline.training.target import LocalTarget
from tests.training.twins import text_of
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
{start}
job = json.loads(sys.stdin.readline())
found = read_target(job["model"])
network, _ = build_network(found.loaded, dtype=job["dtype"], device="cpu")
target = LocalTarget(network, found.shape, job["layers"], 0)
for number, line in enumerate(sys.stdin):
    files = []
    for index, ids in enumerate(json.loads(line)):
        {fault}
        assert len(ids) <= job["longest"]
        features = target.read(text_of(ids, "x" * len(ids))).features
        states = features.view(len(ids), len(job["layers"]), -1).contiguous()
        files.append(os.path.join(job["folder"], f"{{number}}-{{index}}.safetensors"))
        save_file({{"hidden_states": states, "token_ids": torch.tensor(ids)}}, files[-1])
    print(json.dumps(files), file=answers, flush=True)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Makes an executable in place of vLLM's Python, with a fault at its start, at each text, or
    without one."""
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), str(root / "src")]))

    def python(fault: str = "pass", start: str = "pass") -> str:
        path = tmp_path / "vllm-python"
        path.write_text(STAND_IN.format(python=sys.executable, fault=fault, start=start))
        path.chmod(0o755)
        return str(path)

    return python


def run(target: Path, trainset: Path, out: Path, python: str, **changes: Any) -> Path:
    options = {"steps": 4, "target_engine": "vllm", "target_python": python} | changes
    result = train(config(target, trainset, out, **options), quiet)
    assert result.drafter is not None
    return result.drafter


def test_the_drafter_is_the_one_that_our_engine_teaches(
    target, trainset, tmp_path, stand_in, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    theirs = run(target, trainset, tmp_path / "theirs", stand_in())
    left = [*(tmp_path / "temporary").glob("paceline-*")]
    assert not left, "what users said is left behind"
    options = {"target_engine": None, "target_python": None}
    ours = run(target, trainset, tmp_path / "ours", "", **options)
    weights = [load_file(folder / "model.safetensors") for folder in (theirs, ours)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    assert losses(tmp_path / "theirs") == losses(tmp_path / "ours")
    assert "vllm-python" not in (theirs / "provenance.json").read_text()


def test_what_lies_on_disk_needs_no_vllm(target, trainset, tmp_path, stand_in):
    """Serving machines write features, trainers read them."""
    folder = {"features_folder": str(tmp_path / "features"), "features_gb": 0.0}
    first = run(target, trainset, tmp_path / "first", stand_in(), **folder)
    later = run(target, trainset, tmp_path / "later", "/no/such/python", **folder)
    files = [load_file(each / "model.safetensors") for each in (first, later)]
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])
    with pytest.raises(InvalidRequest, match="engine 'paceline'; this one has 'vllm'"):
        settings = config(target, trainset, tmp_path / "ours", steps=1, **folder)
        prepare(settings, Workers("cpu"))


def test_a_writer_fills_the_folder_that_a_run_beside_it_reads(target, trainset, tmp_path, stand_in):
    """The writer is killed once, and goes on with what is missing."""
    folder = {"features_folder": str(tmp_path / "features"), "features_gb": 0.0, "steps": 4}
    writer: dict[str, Any] = folder | {"features_only": True, "target_engine": "vllm"}
    dies = stand_in("os._exit(9) if number == 2 else None")
    told: list[str] = []
    with pytest.raises(ModelError, match="code 9"):
        write_features(
            config(target, trainset, tmp_path / "run", target_python=dies, **writer), told.append
        )
    assert told[-1].startswith("features of 8 of ")
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "features").rglob("*.saf*")}
    assert len(written) == 8
    settings = config(target, trainset, tmp_path / "run", target_python=stand_in(), **writer)
    write_features(settings, told.append)
    assert all(path.stat().st_mtime_ns == time for path, time in written.items())
    assert not (tmp_path / "run").exists(), "that is the run's own"
    reader = run(target, trainset, tmp_path / "run", "/no/such/python", **folder)
    plain = {"target_engine": None, "target_python": None}
    ours = run(target, trainset, tmp_path / "ours", "", **plain)
    weights = [load_file(each / "model.safetensors") for each in (reader, ours)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])


def test_texts_are_written_in_the_order_in_which_a_run_asks_for_them(target, trainset, tmp_path):
    settings = config(target, trainset, tmp_path / "run", steps=40)
    trainer = prepare(settings, Workers("cpu"))
    asked: dict[int, None] = {}
    read_all = trainer.target.read_all

    def noted(texts):
        asked.update(dict.fromkeys(text.number for text in texts))
        return read_all(texts)

    trainer.target.read_all = noted
    expected = [text.number for text in trainer.texts_to_read()]
    (tmp_path / "run").mkdir()
    trainer.run(lambda step, numbers: None)
    judged = sum(len(texts) for sets in (trainer.data.held_out, trainer.data.out_of_domain,
                 trainer.data.foreign) for texts in sets.values())  # fmt: skip
    assert set(list(asked)[:judged]) == set(expected[:judged])
    per_step = settings.texts
    for at in range(judged, len(expected), per_step):  # inside a step, by length
        assert set(list(asked)[at : at + per_step]) == set(expected[at : at + per_step])


def test_a_run_reads_no_more_texts_than_its_steps_need(target, trainset, tmp_path):
    trainer = prepare(config(target, trainset, tmp_path / "run", steps=1), Workers("cpu"))
    judged = [*trainer.data.held_out.values(), *trainer.data.out_of_domain.values()]
    assert len(trainer.texts_to_read()) == sum(map(len, judged)) + trainer.config.texts


def test_a_folder_without_room_ends_the_writer(target, trainset, tmp_path):
    folder = {"features_folder": str(tmp_path / "features"), "features_folder_gb": 2e-5}
    settings = config(target, trainset, tmp_path / "run", steps=40, features_only=True, **folder)
    with pytest.raises(InvalidRequest, match=r"features_folder_gb: got 2e-05; expected room for "):
        write_features(settings, quiet)


def test_layers_come_in_the_order_of_the_drafter(target, stand_in):
    """vLLM returns them in ascending order."""
    found = read_target(str(target))
    text = random_text(9, 2, 200)
    model = VLLMModel(found, "float32", stand_in(), 16, alone=True)
    with closing(model):
        (swapped,) = model.features([text], (2, 0))
    with closing(VLLMModel(found, "float32", stand_in(), 16, alone=True)) as other:
        (straight,) = other.features([text], (0, 2))
    half = straight.shape[1] // 2
    assert torch.equal(swapped, torch.cat([straight[:, half:], straight[:, :half]], dim=1))


def test_a_run_of_several_processes_starts_no_vllm(target, stand_in):
    model = VLLMModel(read_target(str(target)), "float32", stand_in(), 16, alone=False)
    with pytest.raises(InvalidRequest, match="target_engine: got 'vllm'; expected one process"):
        model.features([random_text(9, 2, 200)], (0,))


def test_a_checkpoint_without_a_head_is_refused(target, tmp_path):
    shutil.copytree(target, tmp_path / "headless")
    path = tmp_path / "headless" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": False}))
    found = replace(read_target(str(target)), path=tmp_path / "headless")
    files = [tmp_path / "headless" / "model.safetensors"]
    tensors = {name: each for name, each in load_file(files[0]).items() if "lm_head" not in name}
    save_file(tensors, files[0])
    with pytest.raises(ModelError, match=r"the checkpoint has no tensor lm_head\.weight or"):
        VLLMModel(found, "float32", None, 16, alone=True)


def test_vllm_is_told_over_how_many_devices_it_spreads_the_target(
    target, trainset, tmp_path, stand_in
):
    """It must be told 1 where nobody says otherwise."""
    for devices, options in ((1, {}), (2, {"target_devices": 2})):
        python = stand_in(f"assert job['devices'] == {devices}, job")
        run(target, trainset, tmp_path / str(devices), python, **options)


def test_vllm_is_told_how_the_target_is_served(target, trainset, tmp_path, stand_in):
    """Features of a target that is served in another way are others."""
    served = {"quantization": "fp8", "enforce_eager": "false", "num_gpu_blocks_override": "512"}
    told = {"quantization": "fp8", "enforce_eager": False, "num_gpu_blocks_override": 512}
    folder = {"features_folder": str(tmp_path / "features"), "features_gb": 0.0}
    python = stand_in(f"assert job['options'] == {told}, job")
    run(target, trainset, tmp_path / "run", python, target_options=served, **folder)
    made = json.loads((tmp_path / "run" / "drafter" / "provenance.json").read_text())
    assert made["settings"]["target_options"] == served
    run(target, trainset, tmp_path / "plain", stand_in("assert job['options'] == {}, job"))
    with pytest.raises(InvalidRequest, match=r"options \{\}; this one has \{'quantization': 'fp8'"):
        run(target, trainset, tmp_path / "other", python, **folder)


def test_devices_that_cannot_share_a_layer_are_refused(target, tmp_path):
    found = read_target(str(target))
    shape = replace(found.shape, num_heads=12, num_kv_heads=4)
    for devices in (1, 2, 4, 12):
        VLLMModel(replace(found, shape=shape), "float32", None, 16, True, devices)
    for devices in (3, 5, 6, 8, 24):
        with pytest.raises(InvalidRequest, match=f"target_devices: got {devices}; expected a num"):
            VLLMModel(replace(found, shape=shape), "float32", None, 16, True, devices)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("raise MemoryError('no room for KV')", r"ended with code 1; .*\n(.*\n)*.*no room for KV"),
        pytest.param("os._exit(7)", "vLLM ended with code 7", marks=pytest.mark.slow),
        ("ids = ids[::-1]", "features of another text"),
        pytest.param("ids = ids[:-1]", "features of another text", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_fails_says_why(fault, told, target, trainset, tmp_path, stand_in):
    with pytest.raises(ModelError, match=told):
        run(target, trainset, tmp_path / "run", stand_in(fault))


@pytest.mark.parametrize("worker", [False, True])
def test_a_process_that_fails_at_its_start_says_why_at_once(
    worker, target, trainset, tmp_path, stand_in
):
    """Also where a worker that it forked outlives it, and holds its pipes: the worker is ended."""
    start = "sys.exit('no second NUMA node')"
    number = tmp_path / "worker"
    if worker:
        start = f"""
forked = os.fork()
if not forked:
    import time; time.sleep(100)
open({str(number)!r}, "w").write(str(forked))
{start}"""
    begun = time.monotonic()
    with pytest.raises(ModelError, match=r"vLLM ended with code 1; .*\n(.*\n)*no second NUMA node"):
        run(target, trainset, tmp_path / "run", stand_in(start=start))
    assert time.monotonic() - begun < 50
    assert not worker or gone(int(number.read_text()))


# What a run starts, in a process of its own that is about to be killed.
KILLED = """
import os, subprocess, sys, time
from paceline.training.vllm_target import SCRIPT
told = [sys.executable, str(SCRIPT), str(os.getpid()), sys.argv[1]]
subprocess.Popen(told, stdin=subprocess.PIPE, start_new_session=True)
time.sleep(600)
"""


def test_vllm_ends_with_a_run_that_is_killed(tmp_path):
    """Also while it loads, when it reads nothing. Nobody else would end it, nor remove what it has
    written."""
    number, features = tmp_path / "number", tmp_path / "features"
    features.mkdir()
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text(
        f"import os, time\nopen({str(number)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", KILLED, str(features)], env=environment) as run:
        while not (number.exists() and number.read_text()):
            assert run.poll() is None
            time.sleep(0.05)
        loading = int(number.read_text())
        assert not gone(loading, seconds=2), "nothing ends it while the run goes on"
        run.kill()
    assert gone(loading) and not features.exists()


def gone(process: int, seconds: float = 10) -> bool:
    """Return whether a process ends within seconds; one that nobody waited for has ended."""
    for _ in range(round(10 * seconds)):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


def test_a_python_that_is_not_there_is_named(target, trainset, tmp_path, monkeypatch):
    with pytest.raises(InvalidRequest, match="target_python: got '/no/such/python'; expected the"):
        run(target, trainset, tmp_path / "run", "/no/such/python")
    monkeypatch.delenv("PACELINE_VLLM_PYTHON", raising=False)
    settings = config(target, trainset, tmp_path / "none", steps=1, target_engine="vllm")
    told: list[str] = []
    with pytest.raises(InvalidRequest, match="target_python: got null; expected the Python of an"):
        train(settings, told.append)
    assert told[0].startswith("vLLM computes ")


needs_vllm = pytest.mark.skipif(
    "PACELINE_VLLM_PYTHON" not in os.environ, reason="needs PACELINE_VLLM_PYTHON"
)


@pytest.fixture
def roomy(tmp_path, monkeypatch):
    """A tiny target whose heads are as wide as vLLM's kernels for CPUs need."""
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
             "intermediate_size": 256}  # fmt: skip
    monkeypatch.setattr(foreign, "BASE", foreign.BASE | sizes)
    return save_foreign(tmp_path / "target", "qwen3_moe")


@pytest.mark.slow
@needs_vllm
@pytest.mark.parametrize("devices", [None, 2])
def test_features_of_vllm_are_those_of_transformers(devices, roomy, tmp_path, monkeypatch):
    """In float32, where another layer than the one that was asked for would show at once. For two
    devices vLLM wants two NUMA nodes on a CPU, or is told that there are."""
    if devices is not None:
        monkeypatch.setenv("VLLM_CPU_SIM_MULTI_NUMA", "1")
    dataset = write_random_set(tmp_path / "set", roomy)
    targets = []
    for engine, options in (("transformers", {}), ("vllm", {"target_devices": devices})):
        settings = config(
            roomy, dataset, tmp_path / engine, steps=1, target_engine=engine, **options
        )
        targets.append(prepare(settings, Workers("cpu")))
    texts = targets[0].data.train[:5]
    with closing(targets[1].target) as vllm:
        ours, theirs = targets[0].target.read_all(texts), vllm.read_all(texts)
        pairs = [(a.features, b.features) for a, b in zip(ours, theirs, strict=True)]
        for theirs, of_vllm in pairs:
            torch.testing.assert_close(of_vllm, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@needs_vllm
def test_a_drafter_learns_by_heart_what_vllm_shows(roomy, tmp_path):
    dataset = write_random_set(tmp_path / "set", roomy)
    options: dict[str, Any] = {"steps": 400, "anchors": 40, "texts": 2, "weights": "uniform"}
    settings = config(roomy, dataset, tmp_path / "run", target_engine="vllm", **options)
    right, counts = learn_by_heart(settings)
    assert torch.equal(right, counts) and counts.sum() > 50
