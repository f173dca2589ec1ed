"""One engine behind a pipe, so that several can be timed side by side in one run.

Run as `python workers.py BACKEND MODEL [JSON options]` by the interpreter that has the backend. It
answers one JSON line per request on its standard output:

    {"op": "generate", "prompts": [[ids], …], "max_tokens": n or [n, …], …}
        -> {"seconds": s, "tokens": [[ids], …]}       past ends of texts, but with ignore_eos false
    {"op": "stream", "prompt": [ids], "max_tokens": n, …}
        -> {"seconds": s, "tokens": [ids], "marks": [[seconds, tokens by then], …]}   up to the end

Every call starts with empty caches where the engine has any. An idle worker sleeps on its pipe.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

BACKENDS = {
    "paceline": "paceline_engine:Paceline",
    "paceline-server": "servers:PacelineServer",
    "transformers": "transformers_engine:Transformers",
    "vllm": "vllm_engine:Vllm",
    "openvino": "openvino_engine:OpenVino",
    "llama": "llama_engine:LlamaLibrary",
    "llama-server": "servers:LlamaServer",
    "speculators": "speculators_trainer:Speculators",
}


def main() -> None:
    # Whatever libraries print goes to standard error; the pipe carries answers only.
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Their folder alone: kernels.py, one above, is a name that transformers looks for.
    sys.path.append(str(Path(__file__).parent / "engines"))
    # However this process ends, a server that it has started ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    start = time.perf_counter()
    module, name = BACKENDS[sys.argv[1]].split(":")
    backend = getattr(importlib.import_module(module), name)(sys.argv[2], options)
    try:
        print(json.dumps({"ready": time.perf_counter() - start}), file=pipe, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            operation = getattr(backend, request.pop("op"))
            start = time.perf_counter()
            result = operation(**request)
            answer = {"seconds": time.perf_counter() - start}
            answer |= result if isinstance(result, dict) else {"tokens": result}
            print(json.dumps(answer), file=pipe, flush=True)
    finally:
        getattr(backend, "close", lambda: None)()


if __name__ == "__main__":
    main()
