"""Targets that an SGLang server computes: a stand-in answers, since SGLang itself needs a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paceline.core import InvalidRequest, ModelError
from paceline.training.run import prepare, train, write_features
from paceline.training.sglang_target import options_for
from paceline.training.workers import Workers
from tests.training.runs import alike, config, losses, quiet
from tests.training.sglang_server import SGLangServer, serving

LAYERS = [1, 2]  # that OPTIONS tap, of five
FLAGS = Path(__file__).parents[1] / "engines" / "recorded" / "sglang_flags.json"


def run(target: Path, trainset: Path, out: Path, url: str | None, **changes: Any) -> Path:
    options = {"steps": 4, "target_engine": "sglang", "target_url": url} | changes
    result = train(config(target, trainset, out, **options), quiet)
    assert result.drafter is not None
    return result.drafter


def weights(drafter: Path) -> dict[str, torch.Tensor]:
    return load_file(drafter / "model.safetensors")


@pytest.mark.parametrize("layers", [LAYERS, [3, 2, 0, 1]], ids=str)
def test_the_drafter_is_the_one_that_transformers_teaches(layers, target, trainset, tmp_path):
    """The server may show more layers than the drafter taps, and name them in any order."""
    server = SGLangServer(target, layers)
    with serving(server) as url:
        theirs = run(target, trainset, tmp_path / "theirs", url)
    plain = {"target_engine": "transformers", "target_url": None}
    ours = run(target, trainset, tmp_path / "ours", None, **plain)
    assert server.asked == 24  # each text once
    assert losses(tmp_path / "theirs") == losses(tmp_path / "ours")
    assert alike(weights(theirs), weights(ours))
    assert url not in (theirs / "provenance.json").read_text()


def test_a_run_goes_on_with_another_server(target, trainset, tmp_path):
    for steps in (4, 8):
        server = SGLangServer(target, LAYERS)
        with serving(server) as url:
            run(target, trainset, tmp_path / "run", url, steps=steps)
        assert server.asked
    with serving(SGLangServer(target, LAYERS)) as url:
        run(target, trainset, tmp_path / "whole", url, steps=8)
    assert losses(tmp_path / "run").keys() == losses(tmp_path / "whole").keys()


def test_the_layers_are_those_that_the_drafter_taps(target, trainset, tmp_path):
    settings = config(target, trainset, tmp_path / "run", steps=1)
    assert list(prepare(settings, Workers("cpu")).form.config.target_layer_ids) == LAYERS


def test_what_lies_on_disk_needs_no_server(target, trainset, tmp_path):
    """A server's features are written by one process and read by others, which know no server."""
    folder = {"features_folder": str(tmp_path / "features"), "features_gb": 0.0}
    settings = config(target, trainset, tmp_path / "writer", steps=4, target_engine="sglang",
                      features_only=True, **folder)  # fmt: skip
    with serving(SGLangServer(target, LAYERS)) as url:
        write_features(
            config(target, trainset, tmp_path / "writer", steps=4, target_engine="sglang",
                   target_url=url, features_only=True, **folder), quiet)  # fmt: skip
    source = json.loads((tmp_path / "features" / "features.json").read_text())
    assert (source["engine"], source["layers"]) == ("sglang", LAYERS)
    write_features(settings, quiet)  # nothing is missing
    waiting = run(target, trainset, tmp_path / "waiting", None, features_wait=True, **folder)
    beside = run(target, trainset, tmp_path / "beside", None, **folder)
    assert alike(weights(waiting), weights(beside))


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"aux_hidden_state_capture": None}, "this one shows no inner layers"),
        ({"aux_hidden_state_capture": "eagle3"}, "this one counts layers as for eagle3"),
        ({"return_aux_hidden_state_layer_ids": [1, 3]}, r"this one shows the layers \[1, 3\]"),
        ({"dtype": "bfloat16"}, "this one computes in bfloat16"),
        ({"dtype": "auto"}, "this one computes in auto"),
        ({"disable_radix_cache": False}, "this one's prefix cache leaves out tokens"),
        ({"chunked_prefill_size": 64}, "this one cuts texts into chunks of 64 tokens"),
    ],
    ids=str,
)
def test_a_server_that_does_not_show_whole_texts_is_refused_with_its_options(
    options, fault, target, trainset, tmp_path
):
    server = SGLangServer(target, LAYERS, **options)
    words = (
        "--enable-return-aux-hidden-states --speculative-algorithm DFLASH "
        "--return-aux-hidden-state-layer-ids 1 2 --dtype float32 --disable-radix-cache "
        f"--chunked-prefill-size -1; {fault}"
    )
    with serving(server) as url, pytest.raises(InvalidRequest, match=f"started with {words}") as no:
        run(target, trainset, tmp_path / "run", url)
    assert no.value.field == "target_url" and server.asked == 0


def test_an_older_server_is_refused(target, trainset, tmp_path):
    server = SGLangServer(target, LAYERS, version="0.5.22")
    del server.info["aux_hidden_state_capture"]
    with serving(server) as url, pytest.raises(InvalidRequest, match=r"this one is 0\.5\.22"):
        run(target, trainset, tmp_path / "run", url)


def test_a_server_of_another_architecture_is_refused(target, trainset, tmp_path):
    server = SGLangServer(target, LAYERS)
    server.model["architectures"] = ["GptOssForCausalLM"]
    match = r"a server of tiny, \['.*'\]; this one serves \['GptOssForCausalLM'\]"
    with serving(server) as url, pytest.raises(InvalidRequest, match=match):
        run(target, trainset, tmp_path / "run", url)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"return_hidden_states_mode": None}, "refuses: 400 from .*/generate: The server is"),
        ({"chunked_prefill_size": 9}, r"SGLang showed \d of the \d+ tokens of a text; 0 were in"),
        ({"disable_radix_cache": False}, r"showed \d+ of the \d+ tokens of a text; [1-9]\d* were"),
        ({"return_aux_hidden_state_layer_ids": None}, "did not show rows of 2 layers of 64 numb"),
    ],
    ids=str,
)  # fmt: skip
def test_an_answer_without_whole_rows_ends_the_run(options, told, target, trainset, tmp_path):
    """A server may leave out tokens whatever its settings say: the rows of each answer count."""
    server = SGLangServer(target, LAYERS)
    said = dict(server.info)
    server.info |= options

    def answer(path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        return (200, said) if path == "/server_info" else SGLangServer.answer(server, path, body)

    server.answer = answer  # type: ignore[method-assign]
    with serving(server) as url, pytest.raises(ModelError, match=told):
        run(target, trainset, tmp_path / "run", url)


def test_numbers_that_are_none_end_the_run(target, trainset, tmp_path):
    """SGLang writes null for a number that is not finite."""
    server = SGLangServer(target, LAYERS)
    whole = server.answer

    def answer(path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        status, content = whole(path, body)
        if path == "/generate":
            content["meta_info"]["hidden_states"][0][3][5] = None
        return status, content

    server.answer = answer  # type: ignore[method-assign]
    with serving(server) as url, pytest.raises(ModelError, match="some are not finite"):
        run(target, trainset, tmp_path / "run", url)


def test_a_key_is_sent(target, trainset, tmp_path, monkeypatch):
    server = SGLangServer(target, LAYERS)
    server.key = "secret"
    monkeypatch.delenv("PACELINE_API_KEY", raising=False)
    with serving(server) as url:
        with pytest.raises(InvalidRequest, match="set PACELINE_API_KEY to the server's key\\)"):
            run(target, trainset, tmp_path / "run", url)
        monkeypatch.setenv("PACELINE_API_KEY", "secret")
        told: list[str] = []
        settings = config(target, trainset, tmp_path / "run", steps=1, target_engine="sglang",
                          target_url=url)  # fmt: skip
        train(settings, told.append)
    assert told[0] == "SGLang computes tiny; it is asked when the first text is needed"
    assert f"SGLang 0.5.23 at {url} serves org/served" in told


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (None, "target_url: got null; expected the address of a running SGLang server"),
        ("localhost:30000", "target_url: got 'localhost:30000'; expected the address of a running"),
        ("http://127.0.0.1:9", "target_url: got 'http://127.0.0.1:9'; expected .* refused"),
    ],
)
def test_a_server_that_is_not_there_is_refused(url, told, target, trainset, tmp_path):
    with pytest.raises(InvalidRequest, match=told):
        run(target, trainset, tmp_path / "run", url)


def test_another_server_is_refused(target, trainset, tmp_path):
    server = SGLangServer(target, LAYERS)
    server.answer = lambda path, body: (404, {"detail": "Not Found"})  # type: ignore[method-assign]
    with serving(server) as url, pytest.raises(InvalidRequest, match=r"404 from .*/server_info"):
        run(target, trainset, tmp_path / "run", url)


def test_the_options_are_those_of_its_release():
    recorded = json.loads(FLAGS.read_text())
    assert recorded["version"] == "0.5.23"
    named = {word for word in options_for([1, 2], "bfloat16") if word.startswith("--")}
    assert named <= set(recorded["flags"]) and len(named) == 6
