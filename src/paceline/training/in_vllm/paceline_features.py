"""Features of texts, computed by vLLM, whose Python runs this: it imports nothing of Paceline.

The first line on stdin is an object: `model` (a folder), `dtype`, `layers` (ascending, from 0),
`longest` (tokens of the longest text), `devices` (that share each layer), `options` (further ones
of vLLM's LLM) and `folder` (for one file of each text). Every further line is a list of texts, each
a list of token ids; the answer on stdout is the list of their files, which hold `hidden_states`
[tokens, layers, hidden] and `token_ids`. The process ends with stdin, and removes the folder.
Everything else that is printed goes to stderr.
"""

import contextlib
import json
import os
import shutil
import sys

# The connector lives in this process, and ends with it.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
# One token is drawn behind each text, also where the text is as long as the model allows.
os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
# On a CPU vLLM would take nearly all memory for its cache, and trainers need some.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")

import torch
from safetensors.torch import save_file
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    extract_from_kv_cache,
)

# What `options` may change. Of a GPU's memory the trainer may need the rest.
DEFAULTS = {"enforce_eager": True, "gpu_memory_utilization": 0.5}


class Written:
    """Stands for a CUDA event that is over."""

    def query(self):
        return True


class FeatureWriter(ExampleHiddenStatesConnector):
    """vLLM's connector, which writes at once. Its own way needs CUDA, and ends some time later."""

    def _submit_async_write(self, pending):
        if not self._is_tp_rank_zero:
            return
        device = self._kv_cache.device
        blocks = torch.tensor(pending.block_ids, device=device)[:, None] * self._block_size
        slots = (blocks + torch.arange(self._block_size, device=device)).flatten()
        states = extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids))
        tensors = {"hidden_states": states.cpu().contiguous(), "token_ids": pending.token_ids.cpu()}
        save_file(tensors, pending.filename)
        self._req_copy_events[pending.req_id] = Written()


def load(job):
    # vLLM counts the embedding as the first output, so layer 0's is number 1.
    numbers = [layer + 1 for layer in job["layers"]]
    return LLM(
        job["model"],
        dtype=job["dtype"],
        max_model_len=job["longest"] + 1,
        tensor_parallel_size=job["devices"],
        enable_prefix_caching=False,
        disable_log_stats=True,
        speculative_config={
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": numbers}},
        },
        kv_transfer_config=KVTransferConfig(
            kv_connector=FeatureWriter.__name__,
            kv_connector_module_path="paceline_features",
            kv_role="kv_producer",
            kv_connector_extra_config={
                "shared_storage_path": job["folder"],
                "use_synchronization_lock": False,
            },
        ),
        **{**DEFAULTS, **job["options"]},
    )


def ask(llm, texts):
    """Return the files of texts, and that of one more request, of a single token: a file is written
    in the step after its request ends, so that one is not there yet."""
    params = SamplingParams(temperature=0, max_tokens=1, detokenize=False)
    asked = [{"prompt_token_ids": ids} for ids in texts]
    files = []
    for prompts in (asked, [{"prompt_token_ids": texts[0][:1]}]):
        outputs = llm.generate(prompts, params, use_tqdm=False)
        files.append([output.kv_transfer_params["hidden_states_path"] for output in outputs])
    return files[0], files[1][0]


def answer(llm, questions, answers):
    last = None
    for line in questions:
        files, spare = ask(llm, json.loads(line))
        if last is not None:
            os.unlink(last)
        last = spare
        print(json.dumps(files), file=answers, flush=True)


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    llm = load(job)
    with contextlib.suppress(BrokenPipeError):  # whoever asked has ended
        answer(llm, sys.stdin, answers)
    shutil.rmtree(job["folder"], ignore_errors=True)
