"""instructor."""

from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel
from report import MODEL, V1, asks, main

client = OpenAI(base_url=V1, api_key="none", max_retries=0, timeout=300)
# The class allows further fields. At random a small model may write them until max_tokens.
GREEDY = {"temperature": 0}
ASKED = [{"role": "user", "content": "What is the capital of France?"}]


class Capital(BaseModel):
    """The capital of a country."""

    city: Literal["Paris", "Rome", "Berlin"]


def extract(**mode):
    patched = instructor.from_openai(client, **mode)
    answer = patched.chat.completions.create(
        model=MODEL, messages=ASKED, response_model=Capital, max_tokens=100, max_retries=0, **GREEDY
    )
    assert isinstance(answer, Capital)


@asks("structured output, default")
def _():
    extract()


@asks("structured output, JSON_SCHEMA")
def _():
    extract(mode=instructor.Mode.JSON_SCHEMA)


@asks("structured output, streamed")
def _():
    patched = instructor.from_openai(client)
    parts = patched.chat.completions.create_partial(
        model=MODEL, messages=ASKED, response_model=Capital, max_tokens=100, **GREEDY
    )
    assert list(parts)[-1].city in ("Paris", "Rome", "Berlin")


main()
