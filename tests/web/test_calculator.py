"""The calculator, used as a person would: sliders, pasted configs, links, wrong input."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from paceline.roofline.architecture import model_config
from paceline.roofline.scenario import predict

Open = Callable[..., Any]
DFLASH = {"kind": "dflash", "name": "DFlash", "cost": 0.1, "block": 15,
          "acceptance": {"alpha": 0.89}}  # fmt: skip
MTP = {"kind": "mtp", "name": "MTP", "cost": 0.1, "acceptance": {"alpha": 0.75}}
FIRST = {"model": "Qwen3.5-27B", "hardware": "B200", "drafters": [DFLASH, MTP]}


def opened(open_page: Open, url: str, place: str = "", **options: Any) -> Any:
    page = open_page(f"{url}/#calculator{place}", **options)
    settled(page)
    return page


def settled(page: Any) -> None:
    """The whole answer is there: the CSV may be had."""
    page.wait_for_selector("#calculator-csv:enabled")


def shown(page: Any) -> list[str]:
    return [card.inner_text() for card in page.query_selector_all(".result-card .big")]


def expected(**changes: Any) -> list[str]:
    answer = predict({**FIRST, **changes})
    rates = [
        each["optimum"]["calibrated"]["tokens_per_second_per_request"]
        for each in answer["drafters"]
    ]
    return [f"{three_digits(value)} tok/s a request" for value in rates]


def three_digits(value: float) -> str:
    """The number as the page writes it: 1,037; 386; 66.4; 7.5."""
    places = max(2 - math.floor(math.log10(value)), 0)
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if places else text


def changed(page: Any, act: Callable[[], Any]) -> None:
    """Does something, and waits until its answer is drawn."""
    before = page.inner_text(".summary")
    act()
    if before:
        page.wait_for_selector(f".summary:not(:text-is({json.dumps(before)}))")
    page.wait_for_selector(".result-card")
    page.wait_for_timeout(200)  # the brief answer has come; the whole one is asked after a rest
    settled(page)


def test_it_opens_with_an_answer_of_the_model(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    assert shown(page) == expected()
    assert page.query_selector_all(".plot canvas")
    card = page.inner_text(".result-card >> nth=0")
    assert "γ*" in card and "at most, by the roofline" in card
    answer = predict(FIRST)
    told = page.inner_text(".notes")
    for drafter in answer["drafters"]:
        alike = drafter["evidence"] == answer["evidence"]
        assert drafter["evidence"]["text"] in told
        assert alike or drafter["name"] in told.partition("Band of ")[2]


def test_a_slider_moved_by_keys_asks_again(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    page.focus("#calculator-batch-range")

    def to_the_right() -> None:
        for _ in range(5):
            page.keyboard.press("ArrowRight")

    changed(page, to_the_right)
    assert page.input_value("#calculator-batch") == "8"
    assert page.get_attribute("#calculator-batch-range", "aria-valuetext") == "8 requests"
    assert shown(page) == expected(batch=8)


def test_a_link_brings_back_what_was_set(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    changed(page, lambda: page.fill("#calculator-context", "20000"))
    changed(page, lambda: page.select_option("#calculator-hardware", "H200"))
    changed(page, lambda: page.fill("#drafter-1-alpha", "0.6"))
    page.click("#calculator-add")
    page.wait_for_selector("#drafter-2-name")
    settled(page)
    page.wait_for_timeout(300)
    page.fill("#drafter-1-name", "a~b:c, 50%")  # what a link separates its parts with
    page.wait_for_selector(".summary h2:text-is('a~b:c, 50%')")
    settled(page)
    page.wait_for_timeout(300)
    link, before = page.evaluate("location.href"), page.inner_text(".summary")
    assert "context=20000" in link and "H200" in link
    page.goto("about:blank")
    page.goto(link)
    settled(page)
    assert page.inner_text(".summary") == before
    assert page.input_value("#drafter-1-name") == "a~b:c, 50%"
    assert page.input_value("#drafter-1-alpha") == "0.6"


def test_a_pasted_config_is_computed_and_survives_in_the_link(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    config = model_config("Qwen3-8B")
    open_page.expect("400")  # type: ignore[attr-defined]
    page.select_option("#calculator-model", "paste")
    changed(page, lambda: page.fill("#calculator-config", json.dumps(config)))
    assert shown(page) == expected(model={"config": config})
    page.wait_for_timeout(300)
    page.reload()
    settled(page)
    assert shown(page) == expected(model={"config": config})
    assert json.loads(page.input_value("#calculator-config")) == config


def test_other_drafters_and_other_ways_to_say_how_good_they_are(url: str, open_page: Open) -> None:
    open_page.expect("400")  # type: ignore[attr-defined]
    page = opened(open_page, url)
    page.select_option("#drafter-0-form", "al")
    changed(page, lambda: page.fill("#drafter-0-al", "4.4"))
    page.select_option("#drafter-1-kind", "ngram")
    page.select_option("#drafter-1-form", "conditional")
    changed(page, lambda: page.fill("#drafter-1-rates", "0.6, 0.5 0.5"))
    rated = {"kind": "ngram", "name": "MTP", "seconds": 20e-6,
             "acceptance": {"conditional": [0.6, 0.5, 0.5]}}  # fmt: skip
    measured = {**DFLASH, "acceptance": {"al": 4.4, "draft_length": 7}}
    assert shown(page) == expected(drafters=[measured, rated])


BAD = [
    # what is filled in, with what, what its error says, what makes it right again
    ("#calculator-batch", "-3", "Got -3; expected", "1"),
    ("#calculator-batch", "60000", "Got 60000; expected at most", "1"),
    ("#calculator-context", "", "Got null; expected", "4096"),
    ("#calculator-tp", "0", "Got 0; expected", "1"),
    ("#drafter-0-block", "0", "Got 0; expected", "15"),
    ("#drafter-1-cost", "-1", "Got -0.01; expected", "10"),
    ("#drafter-1-alpha", "1.5", "Got 1.5; expected a prob", "0.75"),
]


def test_wrong_input_is_said_at_its_field_and_has_no_curve(url: str, open_page: Open) -> None:
    open_page.expect("400")  # type: ignore[attr-defined]
    page = opened(open_page, url)
    for field, value, said, right in BAD:
        page.fill(field, value)
        error = page.locator(f".field:has({field}) > .error")
        error.wait_for(state="visible")
        assert said in error.inner_text()
        assert page.get_attribute(field, "aria-invalid") == "true"
        assert said not in page.inner_text(".notice")  # it is said once
        assert not page.query_selector_all(".result-card, .plot canvas")
        assert page.is_disabled("#calculator-csv")
        page.fill(field, right)
        settled(page)
        assert not error.is_visible()
        assert page.query_selector_all(".plot canvas") and shown(page) == expected()


def test_a_draft_longer_than_its_block_is_refused(url: str, open_page: Open) -> None:
    open_page.expect("400")  # type: ignore[attr-defined]
    page = opened(open_page, url)
    page.select_option("#drafter-0-form", "al")
    page.fill("#drafter-0-measured", "20")
    error = page.locator(".field:has(#drafter-0-measured) > .error")
    error.wait_for(state="visible")
    assert "drafts of at most 15, its block" in error.inner_text()
    assert not page.query_selector_all(".plot canvas")


UNKNOWN = [
    ('{"model_type": "gpt2"}', "does not know the family 'gpt2'"),
    ('{"model_type": "llama", "hidden_size": -3}', "hidden_size is -3"),
    ("no json", "no JSON"),
    ("[1, 2]", "Got [1, 2]"),
]


def test_a_config_that_is_not_known_is_refused_by_name(url: str, open_page: Open) -> None:
    open_page.expect("400")  # type: ignore[attr-defined]
    page = opened(open_page, url)
    page.select_option("#calculator-model", "paste")
    for config, said in UNKNOWN:
        page.fill("#calculator-config", config)
        page.wait_for_selector(f"#calculator-form .error:visible:has-text({json.dumps(said)})")
        assert not page.query_selector_all(".plot canvas")


def test_an_answer_to_older_input_does_not_hide_what_is_wrong_now(
    url: str, open_page: Open
) -> None:
    page = opened(open_page, url)
    page.select_option("#calculator-model", "paste")
    held: list[Any] = []
    page.route("**/ui/predict", lambda route: route.continue_() if held else held.append(route))
    page.fill("#calculator-config", json.dumps(model_config("Qwen3-8B")))
    while not held:
        page.wait_for_timeout(20)
    page.fill("#calculator-config", "no json")
    page.wait_for_timeout(1000)  # the sliders rest, and nothing is asked any more
    with page.expect_response("**/ui/predict"):
        held[0].continue_()
    page.wait_for_selector('#calculator-form .error:visible:has-text("no JSON")')
    page.wait_for_timeout(300)
    assert page.is_visible('#calculator-form .error:has-text("no JSON")')


def test_the_heat_map_is_read_with_arrow_keys(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    page.locator(".heat").scroll_into_view_if_needed()
    page.wait_for_selector(".ramp")
    page.focus(".heat")
    for key in ("ArrowRight", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    map_ = predict(FIRST)["drafters"][0]["heat_map"]
    value = map_["calibrated"][1][2]
    assert page.inner_text(".readout") == f"batch {map_['batch'][1]}, γ = 2: {value:.2f}×"


def test_a_draft_that_does_not_fit_has_no_speedup(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    map_ = predict(FIRST)["drafters"][0]["heat_map"]
    column = next(i for i, row in enumerate(map_["calibrated"]) if None in row)
    row = map_["calibrated"][column].index(None)
    page.locator(".heat").scroll_into_view_if_needed()
    page.wait_for_selector(".ramp")
    page.focus(".heat")
    for key in ["ArrowRight"] * column + ["ArrowUp"] * row:
        page.keyboard.press(key)
    told = f"batch {map_['batch'][column]}, γ = {row}: does not fit the memory"
    assert page.inner_text(".readout") == told
    assert "does not fit the memory" in page.inner_text(".heat-scale")
    colours = page.evaluate(CELL_COLOURS, [column, row])
    assert len(colours) > 1  # hatched
    assert max(max(channels) - min(channels) for channels in colours) < 50  # greys: not "slower"


CELL_COLOURS = """([x, y]) => {
  const canvas = document.querySelector(".heat canvas");
  const over = document.querySelector(".heat .u-over").getBoundingClientRect();
  const box = canvas.getBoundingClientRect(), ratio = canvas.width / box.width;
  const [wide, high] = [over.width / 11, over.height / 17];
  const left = (over.left - box.left + (x + .25) * wide) * ratio;
  const top = (over.bottom - box.top - (y + .75) * high) * ratio;
  const { data } = canvas.getContext("2d").getImageData(left, top, wide / 2, high / 2);
  const found = new Set();
  for (let i = 0; i < data.length; i += 4) found.add([data[i], data[i + 1], data[i + 2]].join());
  return [...found].map((text) => text.split(",").map(Number));
}"""


def test_where_no_draft_fits_nothing_is_painted_as_speculation_off(
    url: str, open_page: Open
) -> None:
    page = opened(open_page, url, "?model=Qwen3.5-35B-A3B&batch=512")
    assert shown(page) == ["No draft fits", "No draft fits"]
    assert "1.00×" not in page.inner_text(".summary") + page.inner_text(".glance")
    page.click("figure:has-text('Best speedup by batch') .numbers summary")
    table = page.inner_text("figure:has-text('Best speedup by batch') .numbers table")
    last = [line.split("\t") for line in table.splitlines() if line.startswith("512")]
    assert last == [["512", *["does not fit"] * 4]]
    with page.expect_download() as download:
        page.click("#calculator-csv")
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text("utf-8"))))
    best = {row["batch"]: row for row in rows if row["view"] == "optimum_by_batch"}
    assert (best["256"]["fits"], best["512"]["fits"]) == ("yes", "no draft fits")
    assert best["1024"]["fits"] == "does not fit" and best["512"]["speedup"] == ""


def test_a_link_to_another_server_s_model_is_refused_in_plain_words(
    url: str, open_page: Open
) -> None:
    page = open_page(f"{url}/#calculator?model=served")
    page.wait_for_selector("#calculator-form .error:visible")
    assert "This link is of a page that serves a model" in page.inner_text("#calculator-form")


def test_a_model_that_needs_several_devices_gets_them(url: str, open_page: Open) -> None:
    page = opened(open_page, url, "?model=Qwen3.5-27B")
    changed(page, lambda: page.select_option("#calculator-model", "DeepSeek-V3"))
    assert "DeepSeek-V3 on 8 × B200" in page.inner_text(".facts")
    assert "8 devices share each layer" in page.inner_text(".notes")
    assert page.get_attribute("#calculator-tp", "placeholder") == "8, chosen"
    assert "does not serve the family deepseek_v3" in page.inner_text(".flags")
    assert "has no such drafter" not in page.inner_text(".flags")


def test_the_heat_map_is_read_with_the_pointer(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    page.locator(".heat").scroll_into_view_if_needed()
    page.wait_for_selector(".ramp")
    area = page.locator(".heat .u-over").bounding_box()
    page.mouse.move(area["x"] + 2, area["y"] + area["height"] - 2)
    value = predict(FIRST)["drafters"][0]["heat_map"]["calibrated"][0][0]
    assert page.inner_text(".readout") == f"batch 1, γ = 0: {value:.2f}×"
    page.mouse.move(0, 0)
    page.wait_for_function("document.querySelector('.readout').textContent === ''")


def test_measured_points_are_read_and_wrong_ones_refused(url: str, open_page: Open) -> None:
    open_page.expect("400")  # type: ignore[attr-defined]
    page = opened(open_page, url)
    points = [{"acceptance_length": 3, "speedup": 2, "draft_length": 7, "batch": 1},
              {"acceptance_length": 2, "speedup": 1.5}]  # fmt: skip
    page.fill("#calculator-measured", json.dumps({"points": points}))
    page.click("#calculator-measured-show")
    page.wait_for_selector("text=2 points: all in")
    points[1]["acceptance_length"] = 0.5
    page.fill("#calculator-measured", json.dumps({"points": points}))
    page.click("#calculator-measured-show")
    error = page.locator(".field:has(#calculator-measured) > .error")
    error.wait_for(state="visible")
    assert "measured.points[1].acceptance_length: got 0.5" in error.inner_text()


def test_the_csv_has_every_curve(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    with page.expect_download() as download:
        page.click("#calculator-csv")
    text = download.value.path().read_text("utf-8")
    rows = list(csv.DictReader(io.StringIO(text)))
    answer = predict(FIRST)
    found = [
        float(row["speedup"])
        for row in rows
        if (row["view"], row["drafter"], row["tier"]) == ("by_draft_length", "MTP", "roofline")
    ]
    assert found == pytest.approx(answer["drafters"][1]["curve"]["roofline"]["speedup"])
    assert {row["view"] for row in rows} == {
        "ar", "by_draft_length", "optimum_by_batch", "optimum_by_context",
    }  # fmt: skip
    contexts = {row["context"] for row in rows if row["view"] == "optimum_by_context"}
    assert {"1024", "4096", "131072"} <= contexts


def test_feel_it_plays_the_predicted_bursts(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    page.click(".result-card .feel >> nth=1")
    page.wait_for_selector("#timing-play:enabled")
    best = predict(FIRST)["drafters"][1]["optimum"]["calibrated"]
    speed = float(page.input_value("#timing-spec"))
    assert speed == pytest.approx(best["tokens_per_second_per_request"], rel=1e-3)
    assert "for MTP" in page.inner_text(".given") and page.is_disabled("#timing-al")
    page.go_back()
    settled(page)
    assert shown(page) == expected()


def test_the_numbers_of_a_chart_are_there_as_a_table(url: str, open_page: Open) -> None:
    page = opened(open_page, url)
    page.click(".numbers summary >> nth=0")
    cells = page.inner_text(".numbers table >> nth=0").split()
    assert "DFlash," in cells and "16" in cells


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("predict", {**FIRST, "batch": -1}, "batch"),
        ("predict", {**FIRST, "model": "/etc/passwd"}, "model"),
        ("predict", {**FIRST, "model": {"config": {"model_type": "gpt2"}}}, "model.config"),
        ("predict", {**FIRST, "colour": "red"}, "colour"),
        ("measured", {"format": "other/1"}, "measured.format"),
        ("measured", {"format": "paceline-mock/1"}, "measured"),
        ("measured", {"points": []}, "measured"),
    ],
)
def test_a_wrong_body_is_refused_by_name(url: str, path: str, body: Any, field: str) -> None:
    answer = httpx.post(f"{url}/ui/{path}", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"text"', b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(url: str, content: bytes) -> None:
    answer = httpx.post(
        f"{url}/ui/predict", content=content, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "bad_json"
