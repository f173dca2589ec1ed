"""Predictions against published measurements, cell by cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.roofline.architecture.work import Workload
from paceline.roofline.cost import Deployment, DrafterCost
from paceline.roofline.device import Calibration
from paceline.roofline.scenario.published import PublishedRow, PublishedTable, published_tables
from paceline.roofline.scenario.scenario import Scenario


@dataclass(frozen=True)
class PublishedCell:
    """One measured number, or two: tokens per second and speedup of a row at a batch."""

    table: PublishedTable
    row: PublishedRow
    batch: int
    deployment: Deployment
    cost: DrafterCost

    @property
    def name(self) -> str:
        """Return the table, the drafter with its draft length, and the batch."""
        drafter = self.row.drafter or "no drafts"
        length = f" {self.row.draft_length}" if self.row.draft_length else ""
        return f"{self.table.name}: {drafter}{length}, batch {self.batch}"

    @property
    def measured(self) -> dict[str, float]:
        """Return what was published of "tokens_per_second" (of all requests) and "speedup"."""
        place = self.table.batch.index(self.batch)
        both = {"tokens_per_second": self.row.tokens_per_second, "speedup": self.row.speedup}
        return {name: values[place] for name, values in both.items() if values is not None}

    def predicted(self, calibration: Calibration) -> dict[str, float]:
        """Return the predicted tokens per second and speedup under a calibration, where they were
        published."""
        plain = Workload(self.batch, 1, self.table.context)
        verified = Workload(self.batch, self.row.draft_length + 1, self.table.context)
        step = self.deployment.forward_time(verified, calibration).total
        step += self.cost.time(self.row.draft_length, self.deployment, plain, calibration)
        per_request = self.row.acceptance_length / step
        both = {
            "tokens_per_second": self.batch * per_request,
            "speedup": per_request * self.deployment.forward_time(plain, calibration).total,
        }
        return {name: both[name] for name in self.measured}

    def errors(self, calibration: Calibration) -> dict[str, float]:
        """Return predicted ÷ measured − 1."""
        predicted = self.predicted(calibration)
        return {name: predicted[name] / value - 1 for name, value in self.measured.items()}


def cells(*, by_set: bool = False) -> Iterator[PublishedCell]:
    """Yield the cells of all tables: averages over their sets, or each set."""
    for table in published_tables():
        for row in table.rows if by_set else table.series():
            asked = Scenario.read(table.scenario(row, table.batch[0]))
            ratios = table.speedups(row) if by_set else row.speedup
            full = row.model_copy(update={"speedup": ratios})
            for batch in table.batch:
                yield PublishedCell(table, full, batch, asked.deployment, asked.drafters[0].cost)


def wrong_blocks(calibration: Calibration) -> tuple[list[str], int]:
    """Return where the longer of two published draft lengths is predicted faster though it was
    slower, or the other way round; and the number of pairs."""
    pairs: dict[tuple[str, str, str, int], list[PublishedCell]] = {}
    for cell in cells(by_set=True):
        if cell.row.drafter is not None and cell.table.fitted:
            key = (cell.table.name, cell.row.drafter, cell.row.set, cell.batch)
            pairs.setdefault(key, []).append(cell)
    wrong = []
    for (table, drafter, text, batch), (one, other) in pairs.items():
        name = "tokens_per_second"
        faster = one.measured[name] > other.measured[name]
        if faster != (one.predicted(calibration)[name] > other.predicted(calibration)[name]):
            wrong.append(f"{table}: {drafter}, {text}, batch {batch}")
    return wrong, len(pairs)
