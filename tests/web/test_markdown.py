"""Markdown of answers: what it makes of usual text, of text in pieces, and of hostile text."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

Open = Callable[..., Any]
# the elements that a text becomes, and of the last one whether earlier texts give the same
SHOW = """async (texts) => {
    const { MarkdownView } = await import("/web/lib/markdown.js");
    return texts.map((text) => {
        const view = new MarkdownView();
        view.show(text);
        return view.element.innerHTML;
    });
}"""
STREAM = """async (text) => {
    const { MarkdownView } = await import("/web/lib/markdown.js");
    const streamed = new MarkdownView();
    const first = [];
    for (let end = 1; end <= text.length; end += 1) {
        streamed.show(text.slice(0, end));
        first.push(streamed.element.firstElementChild);
    }
    const whole = new MarkdownView();
    whole.show(text);
    return {
        same: streamed.element.innerHTML === whole.element.innerHTML,
        kept: first.at(-1) === first[Math.floor(first.length / 2)],
    };
}"""
AGAIN = """async (text) => {
    const { MarkdownView } = await import("/web/lib/markdown.js");
    const view = new MarkdownView();
    const show = () => {
        const begun = performance.now();
        view.show(text);
        return performance.now() - begun;
    };
    return [show(), show()];
}"""
LINK = '<a href="{0}" target="_blank" rel="noopener noreferrer nofollow">{1}</a>'


def code(text: str, language: str = "code") -> str:
    return (
        f'<figure class="code"><figcaption><span>{language}</span><button type="button" '
        f'class="quiet">Copy</button></figcaption><pre tabindex="0"><code>{text}</code></pre>'
        "</figure>"
    )


CASES = {
    "plain words\nin two lines": "<p>plain words<br>in two lines</p>",
    "**bold**, *it*, __b__ _i_ ~~no~~ `a*b*`": "<p><strong>bold</strong>, <em>it</em>, "
    "<strong>b</strong> <em>i</em> <del>no</del> <code>a*b*</code></p>",
    "***both*** and **a *b* c**": "<p><strong><em>both</em></strong> and "
    "<strong>a <em>b</em> c</strong></p>",
    "snake_case_name, 2 * 3 * 4, **open": "<p>snake_case_name, 2 * 3 * 4, **open</p>",
    "`` a ` b `` and `open": "<p><code>a ` b</code> and `open</p>",
    r"\*no\* \\": r"<p>*no* \</p>",
    "# One\n### Three #\ntext": "<h4>One</h4><h6>Three</h6><p>text</p>",
    "a\n\n---\n\nb": "<p>a</p><hr><p>b</p>",
    "```python\nx = [1]\n\n# no heading\n```\nafter": code("x = [1]\n\n# no heading", "python")
    + "<p>after</p>",
    "~~~\n```\n~~~": code("```"),
    "```\nnever closed\n**x**": code("never closed\n**x**"),
    "- a\n- b\n  - c\n\n- d": "<ul><li>a</li><li><p>b</p><ul><li>c</li></ul></li><li>d</li></ul>",
    "3. a\n4. b\n\n   more\n\nnot": '<ol start="3"><li>a</li><li><p>b</p><p>more</p></li></ol>'
    "<p>not</p>",
    "1. a\n   ```sh\n   ls\n   ```\n2. b": f'<ol start="1"><li><p>a</p>{code("ls", "sh")}</li>'
    "<li>b</li></ol>",
    "> said\n> - x\nme": "<blockquote><p>said</p><ul><li>x</li></ul></blockquote><p>me</p>",
    "| a | b |\n|:--|--:|\n| 1 | `x` |": '<div class="scroll"><table><thead><tr>'
    '<th style="text-align: left;">a</th><th style="text-align: right;">b</th></tr></thead><tbody>'
    '<tr><td style="text-align: left;">1</td><td style="text-align: right;"><code>x</code></td>'
    "</tr></tbody></table></div>",
    "[name](https://a.example/x_(y)) https://b.example/c.": "<p>"
    + LINK.format("https://a.example/x_(y)", "name") + " "
    + LINK.format("https://b.example/c", "https://b.example/c") + ".</p>",
    "![a picture](https://a.example/p.png)": "<p>"
    + LINK.format("https://a.example/p.png", "a picture") + "</p>",
}  # fmt: skip
HOSTILE = {
    "<script>alert(1)</script>": "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>",
    "<img src=x onerror=alert(1)>": "<p>&lt;img src=x onerror=alert(1)&gt;</p>",
    "[x](javascript:alert(1))": "<p>[x](javascript:alert(1))</p>",
    "[x](JaVaScRiPt:alert(1)) [y](data:text/html,z)": "<p>[x](JaVaScRiPt:alert(1)) "
    "[y](data:text/html,z)</p>",
    "[x](/v1/models) [y](//b.example)": "<p>[x](/v1/models) [y](//b.example)</p>",
    '[x](https://a.example/"onmouseover="alert(1))': "<p>"
    + LINK.format("https://a.example/&quot;onmouseover=&quot;alert(1)", "x") + "</p>",
    "```<b>\n</code><script>\n": code("&lt;/code&gt;&lt;script&gt;\n", "&lt;b&gt;"),
    "[<b>**x**](https://a.example)": "<p>"
    + LINK.format("https://a.example", "&lt;b&gt;<strong>x</strong>") + "</p>",
}  # fmt: skip
PIECES = (
    "Intro with `code` and **bold**.\n\n```py\nprint('``')\n```\n\n1. one\n2. two\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\n[x](https://a.example)"
)
# each is quadratic or deeper for a careless reader
LONG = (
    "*" * 40_000,
    "`" * 20_001 + "a",
    "[" * 40_000,
    "> " * 20_000,
    "- " * 20_000,
    "~~a " * 20_000,
    "`a``b" * 8000,
    "[a](" * 10_000,
    "\n".join("  " * n + "- x" for n in range(400)),
    "|" * 20_000 + "\n" + "|-" * 10_000,
    "![" * 20_000,
    "_a*" * 20_000,
)


@pytest.fixture(scope="module")
def page(browser: Any, url: str) -> Any:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{url}/web/icon.svg")
    page.goto(f"{url}/#live")
    yield page
    context.close()


def test_markdown_becomes_elements(page: Any) -> None:
    assert dict(zip(CASES, page.evaluate(SHOW, list(CASES)), strict=True)) == CASES


def test_hostile_text_stays_text(page: Any) -> None:
    assert dict(zip(HOSTILE, page.evaluate(SHOW, list(HOSTILE)), strict=True)) == HOSTILE


def test_text_in_pieces_ends_as_the_whole_and_keeps_what_is_shown(page: Any) -> None:
    assert page.evaluate(STREAM, PIECES) == {"same": True, "kept": True}


def test_a_text_that_has_not_changed_costs_nothing(page: Any) -> None:
    """The reasoning is shown again with each frame of the answer."""
    first, again = page.evaluate(AGAIN, PIECES * 500)
    assert again < first / 50


def test_no_text_takes_long(page: Any) -> None:
    for text in LONG:
        started = time.monotonic()
        page.evaluate(SHOW, [text])
        assert time.monotonic() - started < 8, text[:20]
