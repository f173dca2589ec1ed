"""`paceline tune`: which draft length a running engine should have."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import httpx
from rich.console import Console

from paceline.bench.report.words import number, with_interval
from paceline.cli.engine import ADDRESS, URL, drafter_of
from paceline.cli.options import PROMPTS_HELP, Count, Positional
from paceline.cli.show import plain_table, progress, stderr_console
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between

if TYPE_CHECKING:
    from paceline.engines import EngineClient
    from paceline.engines.kind import EngineLaunch, LaunchPlan, Program
    from paceline.engines.tune import Advice, Gain


@checked
class TuneCommand:
    """Find the draft length that a running engine should have, by how many requests it serves.

    Asks a few dozen answers, so the engine should serve nobody else meanwhile. Prints, by the
    number of requests at once, the best draft length with its gain over no speculation and over the
    present setting, when to leave speculation off, and the launch line. A setting that is known to
    be broken on the engine is refused.
    """

    url: Positional = about(ADDRESS, URL)
    api_key: str | None = about("the engine's API key", None)
    prompts: str = about(PROMPTS_HELP + "; best are some of your own traffic", "demo")
    at_once: Annotated[int, Between(1, 64)] = about("most requests at once that are tried", 8)
    requests: Count | None = about(
        "requests at once that you serve: the line is for that", None, "any, by a table if it can"
    )
    tokens: Annotated[int, Between(16, 4096)] = about("most tokens of an answer", 64)
    seconds: Annotated[float, Between(5, 3600)] = about("most seconds, about", 60.0)
    target: str | None = about("the target in the launch line", None, "as the engine names it")
    drafter: str | None = about("the drafter in the launch line: folder or hub id", None)
    python: str | None = about("the engine's interpreter, for the launch line", None)
    json: bool = about("print it as JSON", False)

    def run(self) -> int:
        from paceline.bench.prompts import load_prompts
        from paceline.engines import connect
        from paceline.engines.tune import TuneSettings, tune

        prompts = [prompt.messages for prompt in load_prompts(self.prompts)]
        client = connect(self.url, self.api_key)
        plan = self._plan(client)
        if plan is not None:
            client.kind.launch(plan)  # refuses what is known to be broken before anything is asked
        console = stderr_console()
        console.print(
            f"asking {client.model} at {client.url}: answers of up to {self.tokens} tokens, up to "
            f"{self.at_once} at once, for about {self.seconds:.0f} s at most",
            soft_wrap=True,
            markup=False,
        )
        with progress() as bars:
            bars.add_task("measuring", total=None)
            advice = tune(client, prompts, TuneSettings(self.at_once, self.tokens, self.seconds))
        line, notes = None, list(advice.notes)
        if plan is not None:
            line, refused = recommended(client, plan, advice, self.requests)
            notes += refused
        command = None if line is None else shlex.join(line.command)
        if self.json:
            whole = {"engine": client.description.kind, **advice.as_json()}
            print(json.dumps({**whole, "launch": command, "notes": notes}, indent=1))
            return 0
        self._print(Console(highlight=False), advice, command, notes)
        return 0

    def _plan(self, client: EngineClient) -> LaunchPlan | None:
        """Return the plan of what runs; None where nobody says which drafter that is."""
        from paceline.engines.kind import LaunchPlan

        told = client.description
        named = self.drafter or told.drafter
        if named is None:
            return None
        address = httpx.URL(client.url)
        path = drafter_of(named) if self.drafter or "/" in named else None
        kind = None if path else _kind_of(named)
        if path is None and kind is None:
            return None  # a name on our own server does not say what stands behind it
        return LaunchPlan(
            target=self.target or told.model,
            drafter=path,
            kind=kind,
            draft_len=told.draft_len,
            host=address.host or "127.0.0.1",
            port=address.port or 8000,
            max_model_len=told.max_model_len,
            program=self._program(client),
        )

    def _program(self, client: EngineClient) -> Program | None:
        from paceline.engines.programs import find_program

        told = client.description
        if told.kind == "paceline":
            return None
        try:
            program = find_program(told.kind, self.python)
        except InvalidRequest:
            if self.python is not None:
                raise
            return None
        return replace(program, version=told.version or program.version)

    def _print(
        self, console: Console, advice: Advice, command: str | None, notes: list[str]
    ) -> None:
        print_advice(console, advice, self.requests)
        if command is not None:
            console.print("\nlaunch line:", style="bold")
            console.print(command, markup=False, soft_wrap=True)
        else:
            hint = "\nWith --drafter FOLDER the launch line is printed too."
            console.print(hint, style="dim", soft_wrap=True)
        for note in notes:
            console.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)


def recommended(
    client: EngineClient, plan: LaunchPlan, advice: Advice, requests: int | None
) -> tuple[EngineLaunch, list[str]]:
    """Return the line of the advice, and notes on what was left out of it because the engine lacks
    it or is known to be broken with it. `requests` None: for any number of them."""
    if requests is None and advice.pays and len(advice.table) > 1:
        most = max(length for _, _, length in advice.table)
        try:
            whole = replace(plan, draft_len=most, draft_lens=tuple(advice.table))
            line = client.kind.launch(whole)
        except InvalidRequest as refused:
            line = _single(client, plan, advice, advice.settings[0].requests)
            return line, [f"one draft length for all batch sizes: {refused}", *line.notes]
        return line, [*line.notes]
    line = _single(client, plan, advice, requests or advice.settings[0].requests)
    return line, [*line.notes]


def _single(client: EngineClient, plan: LaunchPlan, advice: Advice, requests: int) -> EngineLaunch:
    """Return the line with one draft length, or without a drafter, for so many requests."""
    length = advice.setting_for(requests).draft_len
    if not length:
        return client.kind.launch(replace(plan, drafter=None, kind=None, draft_len=None))
    return client.kind.launch(replace(plan, draft_len=length))


def print_advice(console: Console, advice: Advice, requests: int | None) -> None:
    """Print the settings by the number of requests, and what follows from them."""
    table = plain_table("at once", "draft length", "AL incl. bonus", "over AR", "over today's")
    for setting in advice.settings:
        table.add_row(
            str(setting.requests),
            str(setting.draft_len or "off"),
            number(setting.acceptance_length),
            _gain(setting.over_ar),
            _gain(setting.over_present),
        )
    console.print(table)
    for line in advice_lines(advice, requests):
        console.print(line, markup=False, soft_wrap=True)


def advice_lines(advice: Advice, requests: int | None) -> list[str]:
    """Say in sentences what the numbers mean."""
    accepted = ", ".join(f"{100 * share:.0f}%" for share in advice.survival)
    today = advice.present_draft_len
    lines = [
        f"{advice.rounds} rounds accepted positions 1 to {today}: {accepted}.",
        f"Measured in {advice.seconds:.0f} s, {advice.asked} answers. Draft lengths beyond today's "
        f"{today} are not judged.",
    ]
    if not advice.pays:
        lines.append("Speculation does not pay for any of these: leave it off.")
    elif advice.off_from is not None:
        lines.append(f"Leave speculation off from {advice.off_from} requests at once on.")
    if all(setting.over_present.low <= 1 for setting in advice.settings):
        lines.append("Today's setting may be as good: no gain over it is certain (95%).")
    if requests is not None:
        setting = advice.setting_for(requests)
        length = setting.draft_len or "off"
        lines.append(f"For {requests} at once: {length}, as measured for {setting.requests}.")
    for share in advice.contexts if advice.window is not None else ():
        interval = (share.low, share.high)
        shown = with_interval(share.acceptance_length, interval)
        lines.append(f"AL incl. bonus after {share.start} tokens and more: {shown}.")
    if advice.window is not None:
        lines.append(
            f"The drafter accepts less from {advice.window} tokens of context on: try a window of "
            f"{advice.window} (Paceline: --draft-window {advice.window}), or train on longer texts."
        )
    return lines


def _gain(gain: Gain) -> str:
    return with_interval(gain.mean, (gain.low, gain.high), "×")


def _kind_of(name: str) -> str | None:
    """Return a drafter's name where it is a kind that needs no folder."""
    return name if name in ("ngram", "suffix", "mtp") else None
