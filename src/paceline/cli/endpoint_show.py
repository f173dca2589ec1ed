"""What `paceline endpoint status` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from paceline.cli.show import plain_table

if TYPE_CHECKING:
    from paceline.endpoint.place import EndpointStatus
    from paceline.engine.routes import Routes

REPLICAS = ("replica", "state", "requests", "address", "drafter")
ROUTES = ("route", "requests", "drafter")


def print_status(status: EndpointStatus) -> None:
    """Print an endpoint: what it is, its replicas, and who gets which."""
    console = Console(highlight=False)
    endpoint = status.endpoint
    facts = Table(show_header=False, box=None)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("endpoint", f"http://{endpoint.listen}: {endpoint.engine}, {endpoint.target}")
    facts.add_row("envoy", "serves" if status.envoy else "does not run")
    facts.add_row("steered by", _steered(status))
    facts.add_row("spare slots", f"{status.spare} of {len(endpoint.slots)}")
    console.print(facts)
    if status.replicas:
        table = plain_table(*REPLICAS, left=REPLICAS)
        for each in status.replicas.values():
            table.add_row(each.name, each.state, str(each.requests), each.url, each.spec)
        console.print(table)
    if status.routes is not None:
        table = plain_table(*ROUTES, left=ROUTES)
        for row in route_rows(status.routes):
            table.add_row(*row)
        console.print(table)


def route_rows(routes: Routes) -> list[tuple[str, str, str]]:
    """Return each rule by its name, with the requests that it is for, and their shares."""
    rows = []
    for index, rule in enumerate(routes.cohorts):
        parts = rule.match.parts
        where = ", ".join(f"{part}={value}" for part, value in parts.items()) or "all"
        shares = ", ".join(f"{name} {share:.0%}" for name, share in rule.shares.items())
        rows.append((f"route {index}", where, shares))
    return [*rows, ("default", "all others" if rows else "all", routes.default or "nobody")]


def _steered(status: EndpointStatus) -> str:
    if status.controller is not None:
        return f"process {status.controller}"
    alone = status.endpoint.times.alone
    if not status.envoy:
        return "nobody"
    ends = "" if alone is None else f"; it ends {alone:g} s after its controller has"
    return f"nobody{ends}; `paceline endpoint up` steers it again"
