"""Files of private data: an error says what was expected and shows nothing of what they hold."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from pathlib import Path

from discreet.errors import InvalidValue

__all__ = ["read_column", "read_lines", "read_scores", "split_categories"]


def read_text(argument: str, name: str) -> str:
    """Return the text of a file, or of stdin for ``-``."""
    try:
        if name == "-":
            return sys.stdin.read()
        return Path(name).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidValue(argument, name, f"a readable file ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InvalidValue(argument, name, "a text file in UTF-8") from None


def read_lines(argument: str, name: str) -> list[str]:
    """Return the lines that are not blank, without surrounding blanks."""
    lines = (line.strip() for line in read_text(argument, name).splitlines())
    return [line for line in lines if line]


def read_column(name: str, column: str) -> list[str]:
    """Return the cells of one column of a CSV file, without surrounding blanks."""
    try:
        rows = list(csv.reader(io.StringIO(read_text("file", name), newline=""), strict=True))
    except csv.Error:
        raise InvalidValue("file", name, "a CSV file") from None
    heading = [cell.strip() for cell in rows[0]] if rows else []
    if heading.count(column) != 1:
        raise InvalidValue("column", column, "one of the names in the first line of the file")
    place = heading.index(column)
    # A row that is too short has no value there: it counts for nothing, and is no error that
    # would tell of one person's record.
    return [row[place].strip() for row in rows[1:] if len(row) > place]


def read_scores(name: str) -> tuple[list[str] | None, list[float]]:
    """Return candidates, if they are named, and their scores."""
    text = read_text("scores", name)
    return _csv_scores(name, text) if name.lower().endswith(".csv") else _json_scores(name, text)


def split_categories(text: str) -> list[str]:
    """Return public categories from a list with commas.

    >>> split_categories("red, green,blue")
    ['red', 'green', 'blue']
    """
    return [part.strip() for part in text.split(",")]


def _json_scores(name: str, text: str) -> tuple[list[str] | None, list[float]]:
    expected = "a JSON object of candidates and finite scores, or a list of finite scores"
    try:
        content = json.loads(text, parse_constant=float)
    except (ValueError, RecursionError):
        raise InvalidValue("scores", name, expected) from None
    if isinstance(content, dict):
        return list(content), [_score(name, value, expected) for value in content.values()]
    if isinstance(content, list):
        return None, [_score(name, value, expected) for value in content]
    raise InvalidValue("scores", name, expected)


def _csv_scores(name: str, text: str) -> tuple[list[str] | None, list[float]]:
    expected = "a candidate and a finite score on each line"
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
        numbers = [float(score) for _, score in rows]
    except (csv.Error, ValueError):
        raise InvalidValue("scores", name, expected) from None
    scores = [_score(name, number, expected) for number in numbers]
    return [candidate.strip() for candidate, _ in rows], scores


def _score(name: str, value: object, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidValue("scores", name, expected)
    return value
