"""Annotations of a document's fields that say what would be right, and documents in files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from paceline.core import InvalidRequest
from paceline.core.documents import Document
from paceline.core.field_types import Expected, OneOfTypes


class Device(Document):
    name: str
    rate: Annotated[float, Field(ge=1), Expected("bytes per second")]


class Order(Document):
    device: Annotated[str | Device, OneOfTypes((str, dict), "a name, or an object")]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"device": 3}, "device: got 3; expected a name, or an object"),
        ({"device": True}, "device: got true; expected a name, or an object"),
        ({"device": {"name": "x"}}, "device.rate: missing; it is required"),
        ({"device": {"name": "x", "rate": 0}}, "device.rate: got 0; expected bytes per second"),
        ({"device": {"name": "x", "rate": 1, "of": 2}},
         "device.of: unknown field; expected one of name, rate"),
        ({"devise": "x"}, "devise: unknown field; did you mean device?"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_would_be_right(value: Any, said: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        Order.read(value)
    assert str(error.value) == said


def test_a_document_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    path.write_text('{"name": "x", "rate": 2}')
    assert Device.from_file(path, "device") == Device(name="x", rate=2)
    for text, said in (("{", "a readable JSON file"), ("[1]", "a file with one JSON object")):
        path.write_text(text)
        with pytest.raises(InvalidRequest, match=f"device: got .*; expected {said}"):
            Device.from_file(path, "device")
