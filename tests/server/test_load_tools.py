"""What load generators send must be served as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Client


def chat(client: Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream, which aiperf asks for with these headers."""
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "User-Agent": "aiperf/1.0",
        "X-Request-ID": "8c0b2f5e-3f0e-4b43-9d2f-5b0c2d6a7e11",
        "X-Correlation-ID": "f1f9d7c6-7a1c-4b7e-8a57-0d9a3f1f2b22",
    }
    response = client.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    *blocks, done, _ = response.text.split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


@pytest.mark.parametrize("per_chunk_usage", [False, True])
@pytest.mark.parametrize("limit", ["max_completion_tokens", "max_tokens"])
def test_aiperf(client: Client, per_chunk_usage: bool, limit: str) -> None:
    """The payload of aiperf 0.13.0 for `--endpoint-type chat --streaming`, two turns in, with
    `--extra-inputs ignore_eos:true min_tokens:8 temperature:0`; then what it reads."""
    options = {"include_usage": True}
    if per_chunk_usage:
        options["continuous_usage_stats"] = True
    chunks = chat(
        client,
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": [{"type": "text", "text": "More!"}]},
            ],
            "model": "fake-model",
            "stream": True,
            limit: 8,
            "ignore_eos": True,
            "min_tokens": 8,
            "temperature": 0,
            "stream_options": options,
        },
    )
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    last = chunks[-1]
    assert last["usage"]["completion_tokens"] == 8
    assert last["metrics"]["speculative_decoding"]["num_spec_steps"] == 3
    assert any(chunk["choices"][0]["delta"].get("content") for chunk in chunks[:-1])
    assert all((chunk["usage"] is not None) == per_chunk_usage for chunk in chunks[:-1])


@pytest.mark.parametrize("name", ["", None])
def test_aiperfs_early_versions_send_a_name(client: Client, name: str | None) -> None:
    message = {"role": "user", "name": name, "content": "Hi"}
    assert chat(client, {"messages": [message], "model": "fake-model", "stream": True})
