"""aiperf."""

import os

from report import FOLDER, MODEL, SCRATCH, URL, asks, main, run

OPTIONS = (
    "--url", URL, "--streaming", "--concurrency", "2", "--request-count", "4",
    "--synthetic-input-tokens-mean", "32", "--output-tokens-mean", "16",
    "--tokenizer", os.path.relpath(FOLDER or "."), "--artifact-dir", SCRATCH,
)  # fmt: skip


@asks("a profile of 4 streamed chats")
def _():
    run("aiperf", "profile", "-m", MODEL, "--endpoint-type", "chat", *OPTIONS)


@asks("a profile of 4 streamed completions")
def _():
    run("aiperf", "profile", "-m", MODEL, "--endpoint-type", "completions", *OPTIONS)


main()
