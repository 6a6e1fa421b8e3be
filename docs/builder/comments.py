"""Comments of fields: the description of a setting stands beside it in the code, or in whole lines above it."""

import io
import re
import tokenize
from functools import cache
from pathlib import Path

_TOOLS = re.compile(r"\s*(noqa|type:|fmt:).*")  # comments for tools


def describe(path: Path, first: int, last: int) -> str:
    """Return the comments of the lines `first` to `last` of a file, and of whole lines directly above them."""
    comments = _comments(path)
    parts: list[str] = []
    line = first - 1
    while comments.get(line, (False, ""))[0]:  # whole lines above
        parts.insert(0, comments[line][1])
        line -= 1
    parts += [comments[n][1] for n in range(first, last + 1) if n in comments]
    return " ".join(filter(None, parts))


@cache
def _comments(path: Path) -> dict[int, tuple[bool, str]]:
    """Return the comments of a file by line: whether it is the whole line, and its text."""
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("# ").rstrip()
            comments[token.start[0]] = (token.line.lstrip().startswith("#"), _TOOLS.sub("", text))
    return comments
