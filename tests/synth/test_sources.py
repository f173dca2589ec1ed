"""Prompts out of files, folders, packages and phrases: all of them, and nothing else."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.synth.app import read_app
from paceline.synth.prompts import make_prompt, normalised
from paceline.synth.sources import Source, read_sources, selected
from paceline.synth.texts import docstrings, functions, paragraphs, signatures


def read(folder: Path, *specs: dict[str, Any], seed: int = 0) -> list[Source]:
    named = [{"name": f"s{i}", **spec} for i, spec in enumerate(specs)]
    return read_sources(read_app({"name": "t", "sources": named}, folder).sources, seed)


def texts(source: Source) -> set[str]:
    return {prompt.text for prompt in source.prompts}


def jsonl(folder: Path, *records: Any, name: str = "p.jsonl") -> dict[str, Any]:
    (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    return {"kind": "jsonl", "path": name}


def test_jsonl_by_a_way_into_the_record(tmp_path: Path) -> None:
    spec = jsonl(
        tmp_path,
        {"turns": [{"q": "one"}, {"q": "two"}]},
        {"turns": [{"q": "One "}]},
        {"other": 1},
        {"turns": [{"q": 5}]},
        {"turns": [{"q": " "}]},
    )
    (source,) = read(tmp_path, {**spec, "field": "turns.*.q"})
    assert texts(source) == {"one", "two"} and source.found == 5
    assert source.dropped == {"duplicate_prompt": 1, "no_field": 1, "no_text": 2}
    assert {p.place for p in source.prompts} == {"0", "1"}
    (first,) = read(tmp_path, {**spec, "field": "turns.0.q"})
    assert texts(first) == {"one"}


def test_selected_takes_names_places_and_stars() -> None:
    record = {"a": [[1, 2], [3]], "b": {"x": 4, "y": 5}}
    assert list(selected(record, ["a", "*", "0"])) == [1, 3]
    assert list(selected(record, ["a", "1", "7"])) == []
    assert list(selected(record, ["b", "*"])) == [4, 5]
    assert list(selected(record, ["b", "x", "deeper"])) == []
    assert list(selected(record, [])) == [record]


def test_conversations_end_with_the_user(tmp_path: Path) -> None:
    talk = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": "second"},
        {"role": "assistant", "content": "not to be seen"},
    ]
    (source,) = read(tmp_path, {**jsonl(tmp_path, {"messages": talk}), "field": "messages"})
    (prompt,) = source.prompts
    assert [m["content"] for m in prompt.messages] == ["first", "answer", "second"]
    assert make_prompt([{"role": "robot", "content": "x"}], "0") is None
    assert make_prompt([{"role": "assistant", "content": "x"}], "0") is None
    assert make_prompt("half a pair: \ud83d", "0") is None


def test_equal_prompts_have_equal_keys_and_others_do_not() -> None:
    key = lambda text: make_prompt(text, "0").key  # type: ignore[union-attr]  # noqa: E731
    assert key("Where is  it?\n") == key("where is it?") == key("ＷHERE is it?")
    assert len({key("where is it?"), key("where is it"), key("where was it?")}) == 3
    assert normalised("Straße") == "strasse"


@pytest.mark.parametrize(
    ("format_", "text"),
    [
        ("json", '{"q": ["hi there", "and now"]}'),
        ("yaml", "q:\n- hi there\n- and now\n"),
        ("jsonl", '{"q": ["hi there"]}\n\n{"q": ["and now"]}\n'),
        ("csv", "q,r\nhi there,1\nand now,2\n"),
    ],
)
def test_packages_by_format(
    format_: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "some_corpus-1.0.dist-info"
    (tmp_path / "some_corpus").mkdir()
    about.mkdir()
    (tmp_path / "some_corpus" / "data.x").write_text(text)
    (tmp_path / "some_corpus" / "code.py").write_text("no data")
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: some-corpus\nVersion: 1.0\n"
        "Classifier: License :: OSI Approved :: MIT License\n"
    )
    (about / "RECORD").write_text("some_corpus/data.x,,\nsome_corpus/code.py,,\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    spec = {
        "kind": "package",
        "package": "some-corpus",
        "files": "some_corpus/*.x",
        "format": format_,
        "field": "q" if format_ == "csv" else "q.*",
    }
    (source,) = read(tmp_path, spec)
    assert texts(source) == {"hi there", "and now"} and source.licence == "MIT License"
    with pytest.raises(InvalidRequest, match="at least one file of the package") as caught:
        read(tmp_path, {**spec, "files": "*.none"})
    assert caught.value.field == "sources[0].files"
    with pytest.raises(InvalidRequest, match="'json', 'jsonl', 'yaml' or 'csv'") as caught:
        read(tmp_path, {**spec, "format": "pickle"})
    assert caught.value.field == "sources[0].format"


def test_packages_that_are_not_installed_are_named_together(tmp_path: Path) -> None:
    spec = {"kind": "package", "files": "*.x", "format": "json"}
    there = {**spec, "package": "pytest"}
    first, second = ({**spec, "package": f"no-such-{name}"} for name in ("corpus", "chats"))
    names = "pip install --no-deps no-such-corpus no-such-chats$"
    with pytest.raises(InvalidRequest, match=names) as caught:
        read(tmp_path, there, first, second, first)
    assert (caught.value.field, caught.value.value) == ("sources[1].package", "no-such-corpus")


def test_a_broken_record_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    with pytest.raises(InvalidRequest, match=r"valid jsonl; p\.jsonl, line 2"):
        read(tmp_path, {"kind": "jsonl", "path": "p.jsonl"})
    (tmp_path / "p.jsonl").write_bytes(b'{"prompt": "\xff"}\n')
    with pytest.raises(InvalidRequest, match="readable UTF-8"):
        read(tmp_path, {"kind": "jsonl", "path": "p.jsonl"})


def test_empty_sources_are_refused_with_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="at least one file") as caught:
        read(tmp_path, {"kind": "jsonl", "path": "*.jsonl"})
    assert caught.value.field == "sources[0].path"
    spec = jsonl(tmp_path, {"prompt": "short"}, {"text": "x"})
    with pytest.raises(InvalidRequest, match=r"1 found \(.*1 length"):
        read(tmp_path, {**spec, "length": [10, 20]})


def test_users_data_needs_to_be_asked_for(tmp_path: Path) -> None:
    given = {"name": "s", **jsonl(tmp_path, {"prompt": "a"}), "user_data": True}
    (spec,) = read_app({"name": "t", "sources": [given]}, tmp_path).sources
    with pytest.raises(InvalidRequest, match="--user-data") as caught:
        read_sources([spec], 0)
    assert caught.value.field == "sources[0].user_data"
    assert len(read_sources([spec], 0, user_data=True)[0].prompts) == 1


def test_the_order_is_the_seeds_and_count_takes_from_its_front(tmp_path: Path) -> None:
    spec = jsonl(tmp_path, *({"prompt": f"q{i}"} for i in range(50)))
    orders = [[p.text for p in read(tmp_path, spec, seed=seed)[0].prompts] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[0]) == sorted(orders[2])
    (some,) = read(tmp_path, {**spec, "count": 7}, seed=1)
    assert [p.text for p in some.prompts] == orders[0][:7]


def test_text_is_cut_into_paragraphs_and_functions(tmp_path: Path) -> None:
    text = "short\n\nlonger words here\n\n" + "word " * 30
    pieces = list(paragraphs(text, 10, 40))
    assert pieces[0] == "short\n\nlonger words here"
    assert all(len(piece) <= 40 for piece in pieces)
    assert " ".join(" ".join(pieces).split()) == " ".join(text.split())
    assert list(paragraphs("x" * 25, 5, 10)) == ["x" * 10, "x" * 10, "x" * 5]
    code = (
        "class A:\n    @property\n    def b(self):\n        return 1\n\nasync def c():\n    pass\n"
    )
    assert set(functions(code)) == {
        "@property\ndef b(self):\n    return 1",
        "async def c():\n    pass",
    }
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.py").write_text(code)
    (tmp_path / "lib" / "broken.py").write_text("def (")
    (tmp_path / "lib" / "latin.py").write_bytes(b"# caf\xe9\ndef f(): pass\n")
    spec = {"kind": "text", "path": "lib", "unit": "function", "length": [5, 100]}
    (source,) = read(tmp_path, spec)
    assert len(source.prompts) == 2 and source.dropped["unreadable_file"] == 2
    assert {p.place for p in source.prompts} == {"a.py:0", "a.py:1"}


def test_signatures_end_with_the_docstring_and_docstrings_stand_alone(tmp_path: Path) -> None:
    code = (
        '"""The module."""\n\n@cache\ndef add(a: int,\n        b: int) -> int:\n'
        '    """Return the sum.\n\n    >>> add(1, 2)\n    """\n    return a + b\n\n'
        'def bare():\n    pass\n\nclass A:\n    """A class."""\n    def m(self):\n'
        '        """A method."""\n'
    )
    assert list(signatures(code)) == [
        "def add(a: int,\n        b: int) -> int:\n"
        '    """Return the sum.\n\n    >>> add(1, 2)\n    """'
    ]
    assert [text.split("\n")[0] for text in docstrings(code) if text] == [
        "The module.",
        "Return the sum.",
        "A class.",
        "A method.",
    ]
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.py").write_text(code)
    (tmp_path / "lib" / "notes.md").write_text("no code")
    spec = {"kind": "text", "path": "lib", "length": [5, 100]}
    (source,) = read(tmp_path, {**spec, "unit": "signature"})
    assert [prompt.text for prompt in source.prompts] == list(signatures(code))
    (source,) = read(tmp_path, {**spec, "unit": "docstring"})
    assert len(source.prompts) == 4 and "unreadable_file" not in source.dropped


def test_definitions_are_found_in_every_kind_of_statement() -> None:
    names = "abcdefghi"
    a, b, c, d, e, f, g, h, i = (f"def {name}(): pass" for name in names)
    code = (
        f"if x:\n {a}\nelse:\n {b}\ntry:\n {c}\nexcept E:\n {d}\nfinally:\n {e}\n"
        f"with x:\n {f}\nfor y in x:\n {g}\nmatch x:\n case 1:\n  {h}\n"
        f"class C:\n def o(self):\n  {i}\n"
    )
    found = {text.split("(")[0].removeprefix("def ") for text in functions(code)}
    assert found == {*names, "o"}


def test_the_folder_of_an_installed_package_is_at_hand(tmp_path: Path) -> None:
    spec = {"kind": "text", "path": "{json}/decoder.py", "unit": "docstring", "length": [20, 2000]}
    (source,) = read(tmp_path, spec)
    assert any("Simple JSON" in prompt.text for prompt in source.prompts)
    with pytest.raises(InvalidRequest, match="not_there"):
        read(tmp_path, {**spec, "path": "{not_there}/*.py"})


def test_records_bring_their_tools(tmp_path: Path) -> None:
    function = {"name": "refund", "parameters": {"type": "object"}}
    spec = jsonl(
        tmp_path,
        {"prompt": "one", "functions": [function]},
        {"prompt": "two", "functions": [{"type": "function", "function": function}]},
        {"prompt": "three", "functions": "refund"},
        {"prompt": "four"},
    )
    (source,) = read(tmp_path, {**spec, "tools": "functions"})
    assert {prompt.text: prompt.tools for prompt in source.prompts} == dict.fromkeys(
        ("one", "two"), ({"type": "function", "function": function},)
    )
    assert source.dropped == {"no_tools": 2}
    typed = {"kind": "noisy", "of": "s0"}
    assert all(
        prompt.tools for prompt in read(tmp_path, {**spec, "tools": "functions"}, typed)[1].prompts
    )
    grammar = {"kind": "choice", "value": ["yes", "no"]}
    own = {"name": "s", **spec, "tools": "functions"}
    with pytest.raises(InvalidRequest, match=r"sources\[0\].tools"):
        read_app({"name": "t", "grammar": grammar, "sources": [own]}, tmp_path)


def test_phrases_may_be_conversations(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        'phrases: ["Buy a {thing}.", ["A {thing}?", "Yes, a {thing}.", "How much is a {thing}?"]]\n'
        "slots: {thing: [lamp, cup, pen]}\n"
    )
    (source,) = read(tmp_path, {"kind": "phrases", "path": "p.yaml", "count": 40})
    talks = [prompt for prompt in source.prompts if len(prompt.messages) > 1]
    assert len(talks) == 3 and {talk.origin for talk in talks} == {"A {thing}?"}
    for talk in talks:
        assert [m["role"] for m in talk.messages] == ["user", "assistant", "user"]
        (thing,) = {re.search("(lamp|cup|pen)", m["content"])[0] for m in talk.messages}  # type: ignore[index]
        assert talk.text == f"How much is a {thing}?"
    (tmp_path / "p.yaml").write_text('phrases: [["A question?", "An answer."]]\n')
    with pytest.raises(InvalidRequest, match="the user's last"):
        read(tmp_path, {"kind": "phrases", "path": "p.yaml"})


def test_the_standard_library_is_at_hand(tmp_path: Path) -> None:
    spec = {"kind": "text", "path": "{stdlib}/textwrap.py", "unit": "function"}
    (source,) = read(tmp_path, {**spec, "length": [10, 5000]})
    assert any("def dedent" in text for text in texts(source))


def test_phrases_are_filled_and_stay_the_same(tmp_path: Path) -> None:
    given = {
        "phrases": ["where is {order}?", "I want {item} and {item}"],
        "slots": {"order": ["AB-####"], "item": ["tea", "milk", "bread"]},
    }
    (tmp_path / "p.yaml").write_text(json.dumps(given))
    spec = {"kind": "phrases", "path": "p.yaml", "count": 200}
    (source,) = read(tmp_path, spec)
    (again,) = read(tmp_path, spec)
    assert [p.text for p in source.prompts] == [p.text for p in again.prompts]
    orders = {text for text in texts(source) if text.startswith("where")}
    assert len(orders) > 90 and all(text[12:16].isdecimal() for text in orders)
    assert {t for t in texts(source) if "want" in t} == {
        f"I want {x} and {x}" for x in ("tea", "milk", "bread")
    }
    for wrong in (
        {"phrases": ["{order}"]},
        {**given, "slots": {**given["slots"], "more": ["x"]}},
        {**given, "slots": {**given["slots"], "order": []}},
        {**given, "slots": {**given["slots"], "order": [1]}},
    ):
        (tmp_path / "p.yaml").write_text(json.dumps(wrong))
        with pytest.raises(InvalidRequest, match="texts for each") as caught:
            read(tmp_path, spec)
        assert caught.value.field.startswith("sources[0].path.slots.")
