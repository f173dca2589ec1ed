"""llama.cpp in this process, through its C library."""

from __future__ import annotations

import ctypes
import os
from typing import Any

CONTEXT = 8192


class LlamaLibrary:
    """One sequence at a time over a GGUF file. `library` is the folder of the built library."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        os.environ["LLAMA_CPP_LIB_PATH"] = options["library"]
        import llama_cpp

        self._api = llama_cpp
        llama_cpp.llama_backend_init()
        loaded = llama_cpp.llama_model_load_from_file(
            model.encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = CONTEXT, 1
        params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
        self._context = llama_cpp.llama_init_from_model(loaded, params)
        self._batch = llama_cpp.llama_n_batch(self._context)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(loaded))

    def generate(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """Answer each prompt alone, past ends of the text."""
        return [self._one(prompt, max_tokens) for prompt in prompts]

    def _one(self, prompt: list[int], max_tokens: int) -> list[int]:
        api = self._api
        api.llama_memory_clear(api.llama_get_memory(self._context), False)
        for start in range(0, len(prompt), self._batch):
            self._decode(prompt[start : start + self._batch])
        tokens = [self._likeliest()]
        while len(tokens) < max_tokens:
            self._decode(tokens[-1:])
            tokens.append(self._likeliest())
        return tokens

    def _decode(self, ids: list[int]) -> None:
        given = (ctypes.c_int32 * len(ids))(*ids)
        code = self._api.llama_decode(self._context, self._api.llama_batch_get_one(given, len(ids)))
        if code:
            raise RuntimeError(f"llama_decode gave {code}")

    def _likeliest(self) -> int:
        import numpy as np

        logits = self._api.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())
