"""The page has every setting, as the command takes it."""

from __future__ import annotations

from paceline.distil.config import DistilConfig
from tests.docs.tables import check_page, field_table


def test_the_page_has_every_setting() -> None:
    check_page("distilling.md", field_table(DistilConfig, values=True))
