"""The report of an audit: a table for the terminal, HTML, and JUnit's XML for CI."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from rich.table import Table
from rich.text import Text

from paceline.bench.report.charts import ChartBar, Labels, bars
from paceline.bench.report.pages import render
from paceline.bench.report.tables import base_table
from paceline.engines.audit.check import Planned
from paceline.engines.audit.findings import (
    AuditFinding,
    AuditReport,
    CheckResult,
    CheckState,
    Series,
    Severity,
)

PACKAGE = "paceline.engines.audit"
STYLES = {
    Severity.OK: "green",
    Severity.NOTE: "cyan",
    Severity.WARNING: "bold yellow",
    Severity.FAILURE: "bold red",
}


def plan_table(planned: Sequence[Planned]) -> Table:
    """Return what will be asked and what it costs at most; what is left out says why."""
    made = base_table("Plan", ("check",), ("requests", "tokens"))
    made.add_column("asks", overflow="fold")
    for item in planned:
        if item.reason is not None:
            made.add_row(item.check.name, "–", "–", Text(f"left out: {item.reason}", "yellow"))
            continue
        cost = (str(item.cost.requests), str(item.cost.tokens))
        made.add_row(item.check.name, *cost, Text(item.check.asks))
    return made


def findings_table(report: AuditReport) -> Table:
    """Return a row for each finding: what, evidence, cause and what to do."""
    made = base_table(f"Audit of {report.engine.model} at {report.engine.url}", ("check", ""))
    made.add_column("finding", overflow="fold")
    for check in report.checks:
        for finding in check.findings:
            severity = Text(finding.severity.value, STYLES[finding.severity])
            made.add_row(check.name, severity, _finding_text(finding))
        if check.state is not CheckState.DONE:
            made.add_row(check.name, Text(check.state.value, "yellow"), Text(check.reason or ""))
    return made


def _finding_text(finding: AuditFinding) -> Text:
    text = Text(finding.title)
    if finding.evidence:
        text.append(f"\n{finding.evidence_text}", "dim")
    if finding.cause:
        text.append(f"\ncause, where known: {finding.cause}")
    if finding.remedy:
        text.append(f"\ndo: {finding.remedy}", "italic")
    return text


def page(report: AuditReport) -> str:
    """Return the report as one HTML file that loads nothing and runs no script."""
    values = {
        "title": f"Audit of {report.engine.model} at {report.engine.url}",
        "report": report,
        "ok": report.exit_status() == 0,
        "chart": _chart,
    }
    return render("audit.html", values, PACKAGE)


def _chart(series: Series) -> str:
    groups = [
        [ChartBar(value, f"{place}: {value:.2f}" if value is not None else "")]
        for place, value in zip(series.places, series.values, strict=True)
    ]
    labels = Labels(series.title, series.x_label, series.y_label)
    return bars(series.places, [series.y_label], groups, labels)


def junit(report: AuditReport) -> str:
    """Return JUnit's XML: a test case for each check."""
    suite = ElementTree.Element(
        "testsuite",
        name="paceline audit",
        tests=str(len(report.checks)),
        failures=str(sum(check.severity is Severity.FAILURE for check in report.checks)),
        errors=str(sum(check.state is CheckState.INCOMPLETE for check in report.checks)),
        skipped=str(sum(check.state is CheckState.LEFT_OUT for check in report.checks)),
        time=f"{report.seconds:.3f}",
        timestamp=report.date,
    )
    for check in report.checks:
        _add_case(suite, check)
    text: str = ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)
    return text + "\n"


def _add_case(suite: ElementTree.Element, check: CheckResult) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", classname="audit", name=check.name, time=f"{check.seconds:.3f}"
    )
    lines = [_line(finding) for finding in check.findings]
    if check.severity is Severity.FAILURE:
        wrong = [f for f in check.findings if f.severity is Severity.FAILURE]
        message = "; ".join(finding.title for finding in wrong)
        failure = ElementTree.SubElement(case, "failure", message=message)
        failure.text = "\n".join(map(_line, wrong))
    if check.state is CheckState.INCOMPLETE:
        ElementTree.SubElement(case, "error", message=check.reason or "")
    if check.state is CheckState.LEFT_OUT:
        ElementTree.SubElement(case, "skipped", message=check.reason or "")
    if lines:
        ElementTree.SubElement(case, "system-out").text = "\n".join(lines)


def _line(finding: AuditFinding) -> str:
    parts = [f"{finding.severity.value}: {finding.title}"]
    parts += [f"({finding.evidence_text})"] if finding.evidence else []
    parts += [f"cause: {finding.cause}"] if finding.cause else []
    parts += [f"do: {finding.remedy}"] if finding.remedy else []
    return " ".join(parts)
