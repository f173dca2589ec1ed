"""The errors that Paceline raises on purpose, and the checks that raise them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

LONGEST_SHOWN = 120  # characters of a value that an error quotes
DEEPEST_SHOWN = 20  # levels of nesting
MOST_BITS = 14_000  # of a whole number; Python writes no more than 4,300 digits


class PacelineError(Exception):
    """Base of every error that Paceline raises on purpose."""


class InvalidRequest(PacelineError, ValueError):
    """A field holds a value that cannot be honoured. Nothing that is running is affected.

    `field` is the name as the user wrote it; the message gives the value and what would be right.
    """

    def __init__(
        self, field: str, value: object, expected: str, message: str | None = None
    ) -> None:
        self.field, self.value, self.expected = field, value, expected
        super().__init__(message or f"{field}: got {shown(value)}; expected {expected}")

    def within(self, where: str) -> InvalidRequest:
        """Return the same refusal for a field that lies at the place `where` of a document."""
        if not where:
            return self
        separator = "" if self.field.startswith("[") or not self.field else "."
        place = f"{where}{separator}"
        return InvalidRequest(place + self.field, self.value, self.expected, f"{place}{self}")


def together(problems: Sequence[PacelineError]) -> PacelineError:
    """Return one refusal that tells several, a line each; a single one is returned as it is."""
    if len(problems) == 1:
        return problems[0]
    first = next((error for error in problems if isinstance(error, InvalidRequest)), None)
    field, value, expected = (first.field, first.value, first.expected) if first else ("", None, "")
    return InvalidRequest(field, value, expected, "\n".join(map(str, problems)))


class OwnWords(str):
    """Says what is expected in words of ours alone, without anything that a user wrote, so that a
    log may show it beside fields that hold users' texts."""


class Amount(str):
    """Stands for a value that is too large to be quoted: says how much it is, such as "5 items"."""


def shown(value: object) -> str:
    """The start of `repr(value)`, at most LONGEST_SHOWN characters, without building the rest.
    True, False and None are as documents write them: true, false, null."""
    text = ""
    for piece in _repr_pieces(value, 0):
        text += piece
        if len(text) > LONGEST_SHOWN:
            return text[: LONGEST_SHOWN - 3] + "..."
    return text


def _repr_pieces(value: object, depth: int) -> Iterator[str]:
    if isinstance(value, Amount):
        yield str(value)
    elif value is None or isinstance(value, bool):
        yield "null" if value is None else str(value).lower()
    elif isinstance(value, str | bytes):
        yield repr(value[: LONGEST_SHOWN + 1])
    elif isinstance(value, int) and value.bit_length() > MOST_BITS:
        yield f"a number of {value.bit_length()} bits"
    elif depth == DEEPEST_SHOWN and isinstance(value, list | tuple | Mapping):
        yield "..."
    elif isinstance(value, list | tuple | Mapping):
        brackets = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
        yield brackets[0]
        for index, item in enumerate(value):
            yield ", " if index else ""
            yield from _repr_pieces(item, depth + 1)
            if isinstance(value, Mapping):
                yield ": "
                yield from _repr_pieces(value[item], depth + 1)
        yield "," if isinstance(value, tuple) and len(value) == 1 else ""
        yield brackets[1]
    else:
        yield repr(value)


class ModelError(PacelineError, ValueError):
    """A model folder, file or config that cannot be served; the message names what and why."""


class CacheError(PacelineError):
    """The cache folder cannot be read or written; the message names it and what to do."""

    def __init__(self, message: str, folder: str = "") -> None:
        super().__init__(message)
        self.folder = folder


class QueueFull(PacelineError):
    """The engine's waiting queue is at its bound. `retry_after` is a hint in seconds."""

    def __init__(self, waiting: int, retry_after: float) -> None:
        self.waiting, self.retry_after = waiting, retry_after
        super().__init__(f"{waiting} requests are waiting already; retry in {retry_after:.0f} s")


def check_number(field: str, value: object, low: float, high: float, expected: str) -> None:
    """Raise InvalidRequest unless `value` is an int or float from `low` to `high`."""
    # no math.isfinite(): it overflows for whole numbers past 1e308; NaN fails the comparison
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InvalidRequest(field, value, expected)


def check_integer(field: str, value: object, low: int, high: int, expected: str) -> None:
    """Raise InvalidRequest unless `value` is an int from `low` to `high`."""
    if not isinstance(value, int):
        raise InvalidRequest(field, value, expected)
    check_number(field, value, low, high, expected)


def check_numbers(
    field: str, values: Collection[float], low: float, high: float, expected: str, *types: type
) -> None:
    """Raise InvalidRequest unless each value is of one of `types` and lies from `low` to `high`.

    Long lists are checked at C speed. NaN lies nowhere.
    """
    above, below = float(low).__le__, float(high).__ge__
    if set(map(type, values)) <= {*types} and all(map(above, values)) and all(map(below, values)):
        return
    for value in values:
        if isinstance(value, bool) or not isinstance(value, types) or not low <= value <= high:
            raise InvalidRequest(field, value, expected)
