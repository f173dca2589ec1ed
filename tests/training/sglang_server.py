"""A stand-in for SGLang 0.5.23 that shows outputs of inner layers, as its source says it does.

SGLang itself needs a GPU. What it answers was read in its wheel: `hidden_states` of an answer has
an entry for each forward, and that of the prompt has a row for each token that the forward read. A
prefix that was in the cache, and all chunks but the last, have no rows. A row has the outputs of
the layers in ascending order, whatever order they were named in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.engines.listening import listening

DISABLED = (
    "The server is not configured to return hidden states. Please set `--return-hidden-states-mode "
    "last`, `--return-hidden-states-mode full`, or the legacy `--enable-return-hidden-states` flag."
)


def network_of(target: Path) -> Any:
    """The target as transformers loads it; tiny ones do not say their `model_type`."""
    architecture = json.loads((target / "config.json").read_text())["architectures"][0]
    return getattr(transformers, architecture).from_pretrained(target, dtype=torch.float32).eval()


class SGLangServer:
    """Computes with transformers. `info` is what /server_info says of the options that it was
    started with, `key` an API key that it asks for; `asked` counts requests of texts."""

    def __init__(self, target: Path, layers: list[int], **options: Any) -> None:
        self.info: dict[str, Any] = {
            "version": "0.5.23", "dtype": "float32", "disable_radix_cache": True,
            "chunked_prefill_size": -1, "enable_return_hidden_states": False,
            "return_hidden_states_mode": "full", "enable_return_aux_hidden_states": True,
            "aux_hidden_state_capture": "dflash", "return_aux_hidden_state_layer_ids": layers,
        } | options  # fmt: skip
        self.network = network_of(target)
        architectures = [type(self.network).__name__]
        self.model: dict[str, Any] = {"model_path": "org/served", "architectures": architectures}
        self.key: str | None = None
        self.asked = 0
        self._cache: list[list[int]] = []

    def answer(self, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        if path == "/server_info":
            return 200, self.info
        if path == "/model_info":
            return 200, self.model
        assert path == "/generate" and body is not None
        self.asked += 1
        assert body["sampling_params"]["max_new_tokens"] == 1
        if body.get("return_hidden_states") and not self.info["return_hidden_states_mode"]:
            return 400, {"error": {"message": DISABLED}}
        ids: list[int] = body["input_ids"]
        cached = 0 if self.info["disable_radix_cache"] else self._match(ids)
        self._cache.append(ids)
        first, chunk = cached, self.info["chunked_prefill_size"]
        while chunk > 0 and len(ids) - first > chunk:
            first += chunk
        meta: dict[str, Any] = {"prompt_tokens": len(ids), "cached_tokens": cached}
        if body.get("return_hidden_states"):
            meta["hidden_states"] = [self._rows(ids)[first:]]
        return 200, {"text": "", "output_ids": [5], "meta_info": meta}

    def _match(self, ids: list[int]) -> int:
        """Return the tokens of the longest start of `ids` that is cached; one is always read."""
        longest = 0
        for other in self._cache:
            same = 0
            while same < min(len(other), len(ids) - 1) and other[same] == ids[same]:
                same += 1
            longest = max(longest, same)
        return longest

    @torch.no_grad()
    def _rows(self, ids: list[int]) -> list[list[float]]:
        states = self.network(torch.tensor([ids]), output_hidden_states=True).hidden_states
        shown = sorted(self.info["return_aux_hidden_state_layer_ids"] or ())
        if not shown:
            return states[-1][0].tolist()  # type: ignore[no-any-return]
        outputs = [states[layer + 1][0] for layer in shown]  # 0 is the embedding
        return torch.cat(outputs, -1).tolist()  # type: ignore[no-any-return]


@contextmanager
def serving(server: SGLangServer) -> Iterator[str]:
    """Serve over HTTP; give the address."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self, body: dict[str, Any] | None) -> None:
            status, answer = 401, {"error": "Unauthorized"}
            if server.key is None or self.headers["Authorization"] == f"Bearer {server.key}":
                status, answer = server.answer(self.path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def log_message(self, *_: object) -> None:
            pass

    with listening(Handler) as url:
        yield url
