"""`paceline audit`: is a running server's output lossless, and is its speculation healthy?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.text import Text

from paceline.cli import options, show
from paceline.core import InvalidRequest
from paceline.core.document_help import about
from paceline.core.documents import checked
from paceline.core.field_types import Between

if TYPE_CHECKING:
    from paceline.engines.audit.findings import AuditReport
    from paceline.engines.audit.run import Audit, AuditSettings

BUDGET = ("requests", "tokens", "at_once", "seconds")
SETTINGS = ("prompts", "alpha", "context", "seed", "only")


@checked
class AuditCommand:
    """Audit a running server: lossless output, healthy speculation.

    Asks a server of Paceline or vLLM, and judges its answers by a reference without speculation.
    Prints findings with evidence, known causes and remedies; writes HTML, JSON and JUnit. Exit code
    0: nothing wrong; 1: a failure; 3: something could not be asked to its end.
    """

    url: Annotated[str, options.POSITIONAL] = about(options.SERVER_HELP)
    reference: str | None = about(
        "a server of the same model without speculation", None,
        "the server itself, with speculation off where it can do that for one request",
    )  # fmt: skip
    api_key: str | None = about("API key of the server, and of the reference", None)
    prompts: str = about(options.PROMPTS_HELP, "demo")
    requests: Annotated[int, Between(1)] = about("most requests, over both servers", 2500)
    tokens: Annotated[int, Between(1)] = about(
        "most tokens of prompts and answers, over both servers", 250_000
    )
    at_once: Annotated[int, Between(1)] = about(
        "most answers at one time; each choice of a request is one", 8
    )
    seconds: Annotated[float, Between(0, open=True)] = about(
        "no request is sent after so long", 1800.0
    )
    context: Annotated[int, Between(256)] = about("tokens of the longest prompt", 8192)
    alpha: float = about("chance of a false alarm, of all tests together", 0.001)
    seed: int = about("of the first request", 0)
    only: options.Strings = about("a check to make, by name; may be repeated", (), "all")
    plan: bool = about("print the plan and its cost, and stop", False)
    strict: bool = about("exit code 1 for warnings as well", False)
    out: options.OutputFile = about("the report", Path("audit.html"))

    def __post_init__(self) -> None:
        if self.out.suffix != ".html":
            expected = "a name that ends in .html; JSON and JUnit's XML are put beside it"
            raise InvalidRequest("out", str(self.out), expected)
        _ = self.settings

    @property
    def settings(self) -> AuditSettings:
        """What is asked, and within which budget. Raises InvalidRequest."""
        from paceline.engines.audit import AuditSettings, Budget

        budget = Budget(**{name: getattr(self, name) for name in BUDGET})
        return AuditSettings(budget=budget, **{name: getattr(self, name) for name in SETTINGS})

    def run(self) -> int:
        from paceline.engines.audit.findings import INCOMPLETE
        from paceline.engines.audit.report import plan_table
        from paceline.engines.client import EngineError

        console = Console(highlight=False)
        try:
            audit = self._open()
        except EngineError as error:
            print(f"paceline audit: error: {error}", file=sys.stderr)
            return INCOMPLETE
        console.print(plan_table(audit.plan))
        console.print(Text(f"judged by {audit.judged_by}", "dim"))
        if self.plan:
            return 0
        report = _run(audit)
        self._write(report)
        self._print(console, report)
        return report.exit_status(self.strict)

    def _open(self) -> Audit:
        """Connect to the servers, and plan."""
        from paceline.engines import connect
        from paceline.engines.audit import Audit, BudgetSpent

        server = connect(self.url, self.api_key)
        reference = None if self.reference is None else connect(self.reference, self.api_key)
        try:
            return Audit(server, reference, self.settings)
        except BudgetSpent as error:
            expected = f"enough to learn the prompts' tokens ({error})"
            raise InvalidRequest("requests", self.requests, expected) from error

    def _write(self, report: AuditReport) -> None:
        from paceline.engines.audit.report import junit, page

        self.out.write_text(page(report), encoding="utf-8")
        text = json.dumps(report.as_json(), ensure_ascii=False, indent=1) + "\n"
        self.out.with_suffix(".json").write_text(text, encoding="utf-8")
        self.out.with_suffix(".xml").write_text(junit(report), encoding="utf-8")

    def _print(self, console: Console, report: AuditReport) -> None:
        from paceline.engines.audit.report import findings_table

        console.print(findings_table(report))
        used = f"{report.requests} requests and {report.tokens} tokens in {report.seconds:.0f} s"
        console.print(Text(used, "dim"))
        beside = ", ".join(str(self.out.with_suffix(end)) for end in (".json", ".xml"))
        console.print(f"{self.out}, {beside}", markup=False, soft_wrap=True)
        style = "bold green" if report.exit_status(self.strict) == 0 else "bold red"
        console.print(Text(report.verdict, style))


def _run(audit: Audit) -> AuditReport:
    """Run an audit under a progress bar; Ctrl-C ends it with the findings so far."""
    with show.progress() as progress:
        task = progress.add_task("", total=len(audit.plan))

        def begun(name: str) -> None:
            progress.update(task, advance=1, description=name)

        try:
            return audit.run(begun)
        except KeyboardInterrupt:
            audit.interrupt("Ctrl-C")
            return audit.report()
