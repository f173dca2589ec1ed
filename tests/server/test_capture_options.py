"""The options of a capture: what is refused, and what the start says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.core import InvalidRequest
from paceline.core.packages import MissingPackage
from paceline.dataset.traces import records
from paceline.dataset.traces.records import RequestTrace
from paceline.server.capture import capture_line, check_capture
from paceline.server.settings import ServerSettings

from .test_capture import KEYS


@pytest.mark.parametrize(
    ("options", "field", "expected"),
    [
        ({"traces_tokens": True}, "traces_tokens", "--traces beside it"),
        ({"traces": "t", "traces_sample": 0.5}, "traces_sample", "--traces-tokens beside it"),
        ({"traces": "t", "traces_redact": "a:b"}, "traces_redact", "--traces-tokens beside it"),
        ({"traces": "t", "traces_ttl": 0.0}, "traces_ttl", "days"),
        ({"traces": "t", "traces_tokens": True, "traces_sample": 1.5}, "traces_sample", "0 to 1"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    options: dict[str, Any], field: str, expected: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"^{field}: .*{expected}"):
        ServerSettings(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"api_keys": ("a one", "b two tokens=no")}, "traces_tokens.*a key that consents"),
        ({"traces_redact": "no_such_module:f"}, "traces_redact.*a function that Python can import"),
        ({"traces_redact": "json:no_such"}, "traces_redact.*a function that Python can import"),
        ({"traces_redact": "json"}, "traces_redact"),
        ({"traces_redact": "json:__name__"}, "traces_redact.*a function"),
    ],
)
def test_what_could_not_work_is_refused_at_the_start(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        check_capture(ServerSettings(traces="t", traces_tokens=True, **options))


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match=r"traces: .*a folder"):
        check_capture(ServerSettings(traces=str(tmp_path / "file")))


def test_without_the_packages_the_line_that_installs_them_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(records.importlib, "import_module", absent)
    with pytest.raises(MissingPackage, match=r"pip install 'pyarrow"):
        check_capture(ServerSettings(traces="t"))


def test_the_start_says_what_is_captured() -> None:
    assert capture_line(ServerSettings()) == ""
    plain = capture_line(ServerSettings(traces="t", api_keys=KEYS))
    assert plain == "Traces go to t: counts and times of every request, no text, no token ids."
    some = ServerSettings(traces="t", api_keys=KEYS, traces_tokens=True, traces_sample=0.1)
    assert (
        "a share of 0.1 of the token ids of the keys open (shared), mine (own), for 30"
        in capture_line(some)
    )
    everyone = ServerSettings(traces="t", traces_tokens=True, traces_ttl=7.0)
    assert "; token ids of all requests, for 7 days." in capture_line(everyone)
    assert "sk-" not in capture_line(some)


def test_a_row_has_a_cohort() -> None:
    row = RequestTrace(id="a", time=0.0, model="m", app="x", language="de", region="eu")
    assert row.cohort.label == "m|x|de|eu" and row.acceptance_length is None
