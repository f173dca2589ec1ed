"""A small HTTP server that answers chats as servers of several makes do, and fails as they do."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from paceline.synth.prompts import keyed

from .tiny import TEMPLATE, tokenizer


@dataclass
class Behaviour:
    """What a server does. `failures` are statuses that its next answers have."""

    token_ids: bool = True
    knows_token_ids: bool = True  # refuses return_token_ids where it does not
    with_end: bool = True
    text: str | None = None
    extra_prompt: int = 0
    usage: bool = True
    calls: bool = False
    template: str = TEMPLATE
    takes_variables: bool = True
    reasoning: dict[str, str | None] = field(default_factory=dict)  # beside content, under its name
    failures: list[int] = field(default_factory=list)
    refuse: str = ""  # a word in the last message that is answered with 400
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    seconds: float = 0.002  # that an answer takes
    most: int = 0  # requests that it had at once
    now: int = 0


class Handler(BaseHTTPRequestHandler):
    behaviour: Behaviour
    lock: threading.Lock

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._send(200, {"object": "list", "data": [{"id": "served-name"}]})

    def do_POST(self) -> None:
        mine = self.behaviour
        length = int(self.headers["Content-Length"])
        data = self.rfile.read(length)
        if len(data) < length:
            return  # the client has left, its set complete
        body = json.loads(data)
        with self.lock:
            mine.bodies.append(body)
            mine.keys.append(self.headers.get("Authorization"))
            failure = mine.failures.pop(0) if mine.failures else 0
            mine.now += 1
            mine.most = max(mine.most, mine.now)
        time.sleep(mine.seconds)
        try:
            if failure:
                self._send(failure, {"error": "busy"})
            elif "return_token_ids" in body and not mine.knows_token_ids:
                self._send(400, {"error": "unknown field return_token_ids"})
            elif mine.refuse and mine.refuse in body["messages"][-1]["content"]:
                self._send(400, {"error": "not this one"})
            else:
                self._send(200, answer(mine, body))
        finally:
            with self.lock:
                mine.now -= 1

    def _send(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 429:
            self.send_header("Retry-After", "0")
        with contextlib.suppress(ConnectionError):  # who has left gets no answer
            self.end_headers()
            self.wfile.write(data)


def answer(mine: Behaviour, body: dict[str, Any]) -> dict[str, Any]:
    words = tokenizer(mine.template)
    variables = body.get("chat_template_kwargs", {}) if mine.takes_variables else {}
    prompt = words.apply_chat_template(
        body["messages"],
        tools=body.get("tools"),
        add_generation_prompt=True,
        tokenize=False,
        **variables,
    )
    prompt_ids = words(prompt, add_special_tokens=False)["input_ids"] + [5] * mine.extra_prompt
    draw = random.Random(keyed(prompt, body["seed"]))
    text = mine.text
    if text is None:
        text = "".join(draw.choice("abcde fgh") for _ in range(draw.randrange(3, 20)))
    ids = words(text, add_special_tokens=False)["input_ids"]
    ids += [words.eos_token_id] if mine.with_end else []
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if mine.calls:
        function = {"name": "refund", "arguments": "{}"}
        call = {"id": "c", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    message |= mine.reasoning
    reason = "tool_calls" if mine.calls else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    whole: dict[str, Any] = {"choices": [choice]}
    if mine.usage:
        whole["usage"] = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(ids)}
    if mine.token_ids and body.get("return_token_ids"):
        choice["token_ids"], whole["prompt_token_ids"] = ids, prompt_ids
    return whole


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[str]:
    handler = type("Bound", (Handler,), {"behaviour": behaviour, "lock": threading.Lock()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
