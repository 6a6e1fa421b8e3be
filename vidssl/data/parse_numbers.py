"""Numbers as lists write them: without the forms that only Python reads, such as `1_0` and other digits than 0-9."""

import re

_MAX_DIGITS = 4000  # int() refuses more than 4,300
# pandas writes 0.0 in a column that has or had missing values.
_WHOLE = re.compile(rf"([+-]?[0-9]{{1,{_MAX_DIGITS}}})(?:\.0+)?")


def whole_number(text: str) -> int:
    """Read `12`, `-1` or `12.0`; anything else is a ValueError."""
    if len(text) <= _MAX_DIGITS and text.isdecimal() and text.isascii():  # most numbers, in a quarter of the time
        return int(text)
    match = _WHOLE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(match[1])


def decimal_number(text: str) -> float:
    """Read a number with decimals or an exponent; anything else is a ValueError."""
    try:
        if "_" not in text and text.isascii():
            return float(text)
    except ValueError:
        pass
    raise ValueError(f"{text[:40]!r} is not a number")
