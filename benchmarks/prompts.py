"""Fixed prompt sets, made from what every Python carries: nothing to download, nothing to tune on.

`copy` asks for a file back with one small change, `code` for a new function, `chat` for an answer,
`json` for a record of a few fields.
The sets named `tune_*` are others of the same kind, for choosing parameters.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

EDITS = [
    "Add a one-line comment above the return statement and give back the whole function.",
    "Rename the first parameter to `value` everywhere and give back the whole function.",
    "Add type hints to the signature and give back the whole function, otherwise unchanged.",
    "Fix nothing, only add a docstring line 'Reviewed.' and give back the whole function.",
]
COPY = [
    "textwrap:dedent", "textwrap:fill", "shutil:copytree", "shutil:copyfileobj", "shutil:move",
    "glob:iglob", "fnmatch:translate", "tempfile:mkstemp", "tempfile:mkdtemp", "textwrap:shorten",
    "heapq:merge", "heapq:nsmallest", "statistics:median", "statistics:quantiles", "random:sample",
    "calendar:monthrange", "difflib:unified_diff", "difflib:get_close_matches", "inspect:cleandoc",
    "json:dumps",
]  # fmt: skip
TUNE_COPY = ["shutil:which", "heapq:nlargest", "statistics:mode", "difflib:context_diff",
             "textwrap:indent", "contextlib:contextmanager"]  # fmt: skip
TASKS = [
    "parses a CSV line with quoted fields", "returns the n-th Fibonacci number iteratively",
    "checks whether a string is a palindrome, ignoring punctuation", "merges two sorted lists",
    "computes the edit distance of two strings", "flattens a nested list of any depth",
    "groups a list of dicts by a key", "implements binary search over a sorted list",
    "counts words in a text file and prints the ten most common", "validates an IPv4 address",
    "converts a Roman numeral to an integer", "finds all primes up to n with a sieve",
    "rotates a square matrix by 90 degrees in place", "implements an LRU cache as a class",
    "evaluates an arithmetic expression with + - * / and parentheses",
    "topologically sorts a graph",
    "downloads a URL with retries and exponential backoff",
    "implements a trie with insert and search",
    "reads an INI file into a dictionary without configparser", "transposes a list of lists",
]  # fmt: skip
TUNE_TASKS = ["reverses words in a sentence", "multiplies two matrices", "implements quicksort"]
QUESTIONS = [
    "What is the difference between a process and a thread?", "Explain photosynthesis to a child.",
    "Give me three tips for sleeping better.", "Why is the sky blue?",
    "How does a bicycle stay up?",
    "Write a short email that declines a meeting.", "What causes inflation?",
    "Describe how to make tomato soup.", "What is a black hole?", "How do vaccines work?",
    "Suggest a name for a bakery and explain it.", "What are the phases of the moon?",
    "How do I learn to play the guitar?", "What is the capital of Australia, and why not Sydney?",
    "Explain what an API is.", "Write two sentences about autumn.", "How do airplanes fly?",
    "What should I pack for a weekend hike?", "Explain compound interest.", "Who was Ada Lovelace?",
]  # fmt: skip
TUNE_QUESTIONS = ["What is gravity?", "How do magnets work?", "Name three rivers in Europe."]
RECORDS = [
    "a user account", "a book", "a weather report for a week", "an invoice with three items",
    "a recipe", "a flight booking", "a movie", "a city", "a bank account statement", "a server log",
    "a shopping cart", "a football match", "a song playlist", "a patient record", "a job posting",
    "a hotel room", "a GitHub issue", "a calendar event", "a car", "a university course",
]  # fmt: skip


def _function(name: str) -> str:
    module, attribute = name.split(":")
    return inspect.getsource(getattr(importlib.import_module(module), attribute))


def _copy(names: list[str]) -> list[str]:
    return [
        f"{EDITS[i % len(EDITS)]}\n\n```python\n{_function(name)[:2400]}```"
        for i, name in enumerate(names)
    ]


def _code(tasks: list[str]) -> list[str]:
    return [f"Write a Python function that {task}. Only code, with a docstring." for task in tasks]


def _json(records: list[str]) -> list[str]:
    ask = "Answer with a JSON object only, pretty-printed, at least eight fields: {} (made up)."
    return [ask.format(record) for record in records]


def prompt_set(name: str) -> list[str]:
    """The user messages of a set: copy, code, chat, json, or tune_ and one of the first three."""
    sets = {
        "copy": lambda: _copy(COPY),
        "code": lambda: _code(TASKS),
        "chat": lambda: QUESTIONS,
        "json": lambda: _json(RECORDS),
        "tune_copy": lambda: _copy(TUNE_COPY),
        "tune_code": lambda: _code(TUNE_TASKS),
        "tune_chat": lambda: TUNE_QUESTIONS,
    }
    return sets[name]()


def encoded(tokenizer: Any, name: str) -> list[list[int]]:
    """The set as token ids under the model's chat template."""
    texts = (
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
        )
        for text in prompt_set(name)
    )
    return [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
