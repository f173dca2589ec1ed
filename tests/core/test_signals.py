"""The first SIGTERM or Ctrl-C asks, the second one acts as usual."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from paceline.core.signals import ending_on_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_acts_as_usual(number: int) -> None:
    usual = signal.signal(number, signal.default_int_handler)
    asked: list[str] = []
    try:
        with pytest.raises(KeyboardInterrupt), ending_on_signals(lambda: asked.append("end")):
            os.kill(os.getpid(), number)
            assert asked == ["end"]
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, usual)


def test_another_thread_than_the_main_one_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def work() -> None:
        with ending_on_signals(lambda: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
