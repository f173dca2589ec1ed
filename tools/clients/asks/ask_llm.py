"""The command `llm`."""

import os
from pathlib import Path

from report import MODEL, SCRATCH, V1, asks, main, run

home = Path(SCRATCH) / "llm"
home.mkdir(parents=True, exist_ok=True)
(home / "extra-openai-models.yaml").write_text(
    f"- model_id: served\n  model_name: {MODEL}\n  api_base: {V1}\n  supports_schema: true\n"
    "  supports_tools: true\n"
)
os.environ |= {"LLM_USER_PATH": str(home), "OPENAI_API_KEY": "none"}
SHORT = ("-m", "served", "-o", "max_tokens", "40")


@asks("prompt, streamed")
def _():
    assert run("llm", *SHORT, "What is the capital of France?").strip()


@asks("prompt, not streamed")
def _():
    assert run("llm", *SHORT, "--no-stream", "Hi!").strip()


@asks("a conversation that goes on")
def _():
    assert run("llm", *SHORT, "-c", "And of Italy?").strip()


@asks("a schema")
def _():
    schema = '{"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}}'
    assert "{" in run("llm", *SHORT, "--schema", schema, "The capital of France?")


main()
