"""A target that a running SGLang server computes: any family that SGLang captures for DFlash.

SGLang 0.5.23 documents this in the help of its options: with --enable-return-aux-hidden-states a
request with `return_hidden_states` gets the outputs of the layers that
--return-aux-hidden-state-layer-ids names, side by side. It was read, not run: it needs a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import httpx
import numpy as np
import torch
from pydantic_core import from_json

from paceline.bench.load.address import KEY_VARIABLE, ServerAddress, first_key
from paceline.core import InvalidRequest, ModelError
from paceline.models.any_target import AnyTarget
from paceline.models.json_files import read_json
from paceline.training.packs import Text
from paceline.training.written_target import ends

FIELD = "target_url"
EXPECTED = "the address of a running SGLang server, as http://127.0.0.1:30000"
CAPTURE = "aux_hidden_state_capture"  # of /server_info, since 0.5.23
KEY_REMEDY = f"set {KEY_VARIABLE} to the server's key"
ANSWER_SECONDS = 600.0
Json = Mapping[str, Any]


class SGLangModel:
    """A target on a server at `url`, None where a user named none: its embedding and head,
    [vocabulary, hidden], are read from the checkpoint, and the server is asked with the first text.

    `dtype` are the numbers that it computes in, `longest` is the most tokens of a text, and `show`
    is told what it serves. The constructor raises ModelError for a checkpoint without an embedding
    or head of the usual name, and InvalidRequest for no address.
    """

    engine: Literal["sglang"] = "sglang"

    def __init__(
        self,
        target: AnyTarget,
        dtype: str,
        url: str | None,
        longest: int,
        show: Callable[[str], None] | None = None,
    ) -> None:
        self.name, self._hidden, self._path = target.name, target.shape.hidden_size, target.path
        self._dtype, self._longest, self._show = dtype, longest, show
        self._address = None if url is None else _address(url)
        self._http: httpx.Client | None = None
        self._shown: list[int] = []  # the layers of a row of the server, which are ascending
        self.embedding, self.head = ends(target, getattr(torch, dtype))

    def features(self, texts: Sequence[Text], layers: Sequence[int]) -> list[torch.Tensor]:
        """Return [tokens, layers * hidden] of each text. Raises InvalidRequest for a server that
        cannot show these layers, and ModelError where it fails or leaves out tokens."""
        if self._http is None:
            self._http = self._connect(layers)
        return [self._of_text(self._http, text, layers) for text in texts]

    def close(self) -> None:
        if self._http is not None:
            self._http.close()

    def _connect(self, layers: Sequence[int]) -> httpx.Client:
        if self._address is None:
            raise InvalidRequest(FIELD, None, EXPECTED)
        key = first_key(os.environ.get(KEY_VARIABLE, ""))
        http = httpx.Client(
            base_url=self._address.base_url,
            transport=self._address.transport(),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=10),
            trust_env=False,  # a proxy for the internet must not stand between us and the server
        )
        try:
            info, model = (self._answer(http.get(path)) for path in ("/server_info", "/model_info"))
        except (httpx.HTTPError, ModelError) as error:
            raise InvalidRequest(FIELD, self._address.shown, f"{EXPECTED} ({error})") from error
        self._check(info, model, layers)
        self._shown = sorted(info["return_aux_hidden_state_layer_ids"])
        if self._show is not None:
            served, where = model.get("model_path"), self._address.shown
            self._show(f"SGLang {info.get('version')} at {where} serves {served}")
        return http

    def _check(self, info: Json, model: Json, layers: Sequence[int]) -> None:
        """Raise InvalidRequest for a server that does not show whole texts of this target."""
        assert self._address is not None
        shown = info.get("return_aux_hidden_state_layer_ids") or ()
        counted, chunk = info.get(CAPTURE), info.get("chunked_prefill_size") or 0
        faults = {  # what a user reads of each, and whether it is there
            f"this one is {info.get('version')}": CAPTURE not in info,
            "this one shows no inner layers": counted is None,
            f"this one counts layers as for {counted}": counted != "dflash",
            f"this one shows the layers {list(shown)}": not set(layers) <= set(shown),
            f"this one computes in {info.get('dtype')}": info.get("dtype") != self._dtype,
            "this one's prefix cache leaves out tokens": not info.get("disable_radix_cache"),
            f"this one cuts texts into chunks of {chunk} tokens": 0 < chunk < self._longest,
        }
        for fault, here in faults.items():
            if here:
                options = " ".join(options_for(layers, self._dtype))
                expected = f"an SGLang server, 0.5.23 or newer, started with {options}; {fault}"
                raise InvalidRequest(FIELD, self._address.shown, expected)
        kinds = model.get("architectures"), read_json(self._path / "config.json")["architectures"]
        if kinds[0] and kinds[0] != kinds[1]:
            expected = f"a server of {self.name}, {kinds[1]}; this one serves {kinds[0]}"
            raise InvalidRequest(FIELD, self._address.shown, expected)

    def _of_text(self, http: httpx.Client, text: Text, layers: Sequence[int]) -> torch.Tensor:
        body = {
            "input_ids": text.ids.tolist(),
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_hidden_states": True,
        }
        try:
            meta = self._answer(http.post("/generate", json=body))["meta_info"]
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__  # a timeout has no text
            raise ModelError(f"{self.name}: SGLang broke off: {why}") from error
        # One entry for each forward: that of the prompt has a row for each of its tokens.
        try:
            numbers = np.array(meta["hidden_states"][0], np.float32)
            rows = numbers.reshape(len(numbers), len(self._shown), self._hidden)
            if not np.isfinite(rows).all():  # JSON has null in their place
                raise ValueError("some are not finite")
        except (KeyError, IndexError, TypeError, ValueError) as error:
            expected = f"rows of {len(self._shown)} layers of {self._hidden} numbers"
            raise ModelError(f"{self.name}: SGLang did not show {expected} ({error})") from error
        if len(rows) != len(text):
            raise ModelError(
                f"{self.name}: SGLang showed {len(rows)} of the {len(text)} tokens of a text; "
                f"{meta.get('cached_tokens', 0)} were in its prefix cache"
            )
        columns = [self._shown.index(layer) for layer in layers]
        return torch.from_numpy(rows[:, columns]).flatten(1).to(getattr(torch, self._dtype))

    def _answer(self, response: httpx.Response) -> Json:
        """Return what the server answers. Raises ModelError where it refuses."""
        assert self._address is not None
        if response.status_code != 200:
            refusal = self._address.refusal(response, KEY_REMEDY)
            raise ModelError(f"{self.name}: SGLang refuses: {refusal}")
        try:
            answer: Json = from_json(response.content)  # twice as fast as Python's for numbers
        except ValueError:
            answer = {}
        if not isinstance(answer, dict) or not answer:
            raise ModelError(f"{self.name}: {self._address.shown} does not answer as SGLang does")
        return answer


def options_for(layers: Sequence[int], dtype: str) -> tuple[str, ...]:
    """Return the options of `sglang.launch_server` that show these layers of whole texts. It loads
    no drafter: --speculative-algorithm only says how layers are counted."""
    return (
        "--enable-return-aux-hidden-states", "--speculative-algorithm", "DFLASH",
        "--return-aux-hidden-state-layer-ids", *map(str, sorted(layers)), "--dtype", dtype,
        "--disable-radix-cache", "--chunked-prefill-size", "-1",
    )  # fmt: skip


def _address(url: str) -> ServerAddress:
    try:
        return ServerAddress.parse(url)
    except InvalidRequest as error:
        raise InvalidRequest(FIELD, url, EXPECTED) from error
