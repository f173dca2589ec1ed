"""Engines that serve elsewhere: Paceline's own server, vLLM and SGLang, all through one protocol.

An `EngineKind` knows how one engine is launched, asked and read; `EngineClient` asks a running one
over HTTP. Audit, doctor, tune and evaluation are written against these two alone. `connect` makes
a client of a URL.
"""

from __future__ import annotations

from paceline.engines.client import EngineClient
from paceline.engines.kind import EngineKind
from paceline.engines.paceline_server import PacelineServer
from paceline.engines.sglang import Sglang
from paceline.engines.vllm import Vllm

KINDS: dict[str, EngineKind] = {kind.name: kind for kind in (PacelineServer(), Vllm(), Sglang())}


def connect(url: str, api_key: str | None = None) -> EngineClient:
    """Connect to the engine at `url`. Raises InvalidRequest and EngineError."""
    return EngineClient(url, [*KINDS.values()], api_key)


__all__ = ["KINDS", "EngineClient", "EngineKind", "connect"]
