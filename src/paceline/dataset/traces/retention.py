"""How long traces are kept: token ids expire before their rows do; what is deleted is gone."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from paceline.core import InvalidRequest
from paceline.dataset.traces.folder import (
    DAY_SECONDS,
    SUFFIX,
    TEMPORARY,
    files_of,
    metadata,
    only_one,
    partitions,
    read_part,
    replaced,
    write_part,
)
from paceline.dataset.traces.records import (
    KINDS,
    REQUESTS,
    ROUNDS,
    arrow_module,
    without_tokens,
)

log = logging.getLogger(__name__)
KEEP_DAYS, TOKEN_DAYS = 90.0, 30.0
LEFT_SECONDS = 600.0  # age of a temporary file that nobody completes any more
GRACE_SECONDS = 600.0  # that readers may still use files which a merged one replaces
MERGE_FROM = 32  # small files of a partition that are merged
MERGE_BYTES = 16 * 2**20  # size of a file that is not merged any more
MOST_MERGED = 256 * 2**20  # bytes that are merged at once


@dataclass(frozen=True, slots=True)
class Retention:
    """Days that rows are kept, and the days that their token ids are."""

    keep_days: float = KEEP_DAYS
    token_days: float = TOKEN_DAYS


@dataclass(slots=True)
class Purged:
    """What a purge did: rows of requests deleted, rows that lost their token ids, files deleted."""

    requests: int = 0
    token_rows: int = 0
    files: int = 0


def tidy(folder: Path, retention: Retention, now: float | None = None) -> Purged:
    """Delete what has expired, merge small files. Does nothing while another process does it.

    Raises OSError.
    """
    with only_one(folder) as alone:
        if not alone:
            return Purged()
        now = time.time() if now is None else now
        purged = purge_expired(folder, now, keep_days=retention.keep_days)
        for place in [place for kind in KINDS for place in partitions(folder, kind)]:
            with telling_damage():
                _merge(place)
        return purged


def purge(
    folder: Path,
    *,
    now: float | None = None,
    keep_days: float | None = None,
    tokens: bool = False,
    key: str | None = None,
) -> Purged:
    """Delete, at once: expired token ids; rows older than `keep_days`; all token ids (`tokens`);
    all rows of an API key. Waits for another process that does so. Raises OSError.
    """
    with only_one(folder, wait=True):
        now = time.time() if now is None else now
        purged = purge_expired(folder, now, keep_days=keep_days, grace=0.0, tokens=tokens)
        if key is not None:
            _purge_key(folder, key, purged)
        return purged


def purge_expired(
    folder: Path,
    now: float,
    *,
    keep_days: float | None,
    grace: float = GRACE_SECONDS,
    tokens: bool = False,
) -> Purged:
    """Delete rows past their days, token ids past their time, or all of these, and files that
    nobody needs."""
    purged = Purged()
    oldest = None if keep_days is None else now - keep_days * DAY_SECONDS
    for left in folder.rglob(f"*{TEMPORARY}"):
        with contextlib.suppress(FileNotFoundError):
            if now - left.stat().st_mtime > LEFT_SECONDS:
                left.unlink()
                purged.files += 1
    for place in [place for kind in KINDS for place in partitions(folder, kind)]:
        if oldest is not None and _day_end(place) <= oldest:
            _drop_folder(place, purged)
            continue
        with telling_damage():
            _drop_replaced(place, now, grace, purged)
        if _is_of_requests(place):
            for path in sorted(place.glob(f"*{SUFFIX}")):
                with telling_damage():
                    _expire(path, now, tokens, purged)
    return purged


@contextlib.contextmanager
def telling_damage() -> Iterator[None]:
    """Tell the log of a file that cannot be read, and go on: others are still to be dealt with."""
    try:
        yield
    except InvalidRequest as error:
        log.warning("%s: delete it", error)


def _is_of_requests(place: Path) -> bool:
    return place.parent.parent.name == REQUESTS


def _drop_replaced(place: Path, now: float, grace: float, purged: Purged) -> None:
    for path in files_of(place)[1]:
        expired = _is_of_requests(place) and _first_expiry(path) <= now
        if expired or now - path.stat().st_mtime >= grace:
            path.unlink(missing_ok=True)
            purged.files += 1


def _drop_folder(place: Path, purged: Purged) -> None:
    for path in sorted(place.glob(f"*{SUFFIX}")):
        with telling_damage():
            purged.requests += metadata(path).num_rows if _is_of_requests(place) else 0
        path.unlink(missing_ok=True)
        purged.files += 1
    for empty in (place, place.parent):
        with contextlib.suppress(OSError):  # a file has come, or another app has some of that day
            empty.rmdir()


def _day_end(place: Path) -> float:
    """Return the end of a partition's day, in seconds since the epoch."""
    day = place.parent.name.removeprefix("day=")
    try:
        return datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp() + DAY_SECONDS
    except ValueError:
        raise InvalidRequest("traces", str(place), "folders day=YYYY-MM-DD") from None


def _first_expiry(path: Path) -> float:
    """Return the time at which the first token ids of a file expire; infinity without any."""
    footer = metadata(path)
    first = inf
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for chunk in map(group.column, range(group.num_columns)):
            stated = chunk.statistics if chunk.path_in_schema == "expires" else None
            if stated is not None and stated.has_min_max:
                first = min(first, stated.min)
    return first


def _expire(path: Path, now: float, tokens: bool, purged: Purged) -> None:
    """Write a file anew without the token ids that have expired, or without any (`tokens`)."""
    first = _first_expiry(path)
    if first == inf or (first > now and not tokens):
        return
    import pyarrow.compute as compute

    table = read_part(path)
    expires = table["expires"]
    gone = compute.is_valid(expires) if tokens else compute.less_equal(expires, now)
    purged.token_rows += compute.sum(gone).as_py() or 0
    write_part(path.parent, without_tokens(table, gone), name=path.name)


def _purge_key(folder: Path, key: str, purged: Purged) -> None:
    """Delete all rows of an API key: those of requests, then those of their rounds."""
    import pyarrow.compute as compute

    arrow = arrow_module()
    for place in list(partitions(folder, REQUESTS)):
        names: set[str] = set()
        for path in files_of(place)[0]:
            table = read_part(path)
            theirs = compute.equal(table["key"], key)
            ids = table.filter(theirs)["id"].to_pylist()
            if ids:
                names |= set(ids)
                _rewrite(path, table.filter(compute.invert(theirs)), purged)
        purged.requests += len(names)
        rounds = folder / ROUNDS / place.parent.name / place.name
        if names:
            values = arrow.array(sorted(names))
            for path in files_of(rounds)[0]:
                table = read_part(path)
                theirs = compute.is_in(table["request"], value_set=values)
                if compute.any(theirs).as_py():
                    _rewrite(path, table.filter(compute.invert(theirs)), purged)


def _rewrite(path: Path, table: Any, purged: Purged) -> None:
    if table.num_rows:
        write_part(path.parent, table, name=path.name)
    else:
        path.unlink(missing_ok=True)
        purged.files += 1


def _merge(place: Path) -> None:
    """Merge the small files of a partition into one, which replaces them."""
    small = [path for path in files_of(place)[0] if path.stat().st_size < MERGE_BYTES]
    if len(small) < MERGE_FROM:
        return
    taken: list[Path] = []
    size = 0
    for path in small:
        size += path.stat().st_size
        if size > MOST_MERGED:
            break
        taken.append(path)
    arrow = arrow_module()
    tables = [read_part(path) for path in taken]
    merged = arrow.concat_tables(tables, promote_options="default")
    names = {name for path in taken for name in (path.name, *replaced(path))}
    write_part(place, merged, replaces=[name for name in names if (place / name).exists()])
