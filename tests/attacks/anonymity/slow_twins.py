"""The same measures, slow and obvious: dictionaries, loops, definitions."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence


def groups_of(rows: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], list[int]]:
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        found[row].append(place)
    return dict(found)


def entropy_l(values: Sequence[str]) -> float:
    shares = [count / len(values) for count in Counter(values).values()]
    return math.exp(-sum(share * math.log(share) for share in shares))


def category_distance(part: Sequence[str], whole: Sequence[str]) -> float:
    inside, outside = Counter(part), Counter(whole)
    return 0.5 * sum(
        abs(inside[value] / len(part) - outside[value] / len(whole)) for value in outside
    )


def rank_distance(part: Sequence[float], whole: Sequence[float]) -> float:
    values = sorted(set(whole))
    if len(values) == 1:
        return 0.0
    total = 0.0
    for value in values[:-1]:
        p = sum(each <= value for each in part) / len(part)
        q = sum(each <= value for each in whole) / len(whole)
        total += abs(p - q)
    return total / (len(values) - 1)


def candidates(
    row: Mapping[str, object],
    register: Sequence[Mapping[str, object]],
    keys: Sequence[str],
    tolerance: Mapping[str, float],
) -> list[int]:
    found = []
    for place, other in enumerate(register):
        same = True
        for key in keys:
            mine, theirs = row[key], other[key]
            if mine in ("", None) or theirs in ("", None):
                same = False
            elif key in tolerance:
                width = tolerance[key]
                same = same and float(mine) - width <= float(theirs) <= float(mine) + width  # type: ignore[arg-type]
            else:
                same = same and str(mine) == str(theirs)
        if same:
            found.append(place)
    return found
