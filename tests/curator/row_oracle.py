"""Terms computed on one row with Python integers: the slow and obvious twin of every engine."""

import math
import operator
from collections.abc import Mapping
from typing import Any

from discreet.data import number_in_text
from discreet.engines import Term

COMPARED = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


def evaluate_row(term: Term, row: Mapping[str, Any]) -> Any:
    """What a term is in a row, which holds the stored columns by their stored names."""
    args = term.args
    if term.op == "column":
        return row[args[0]]
    if term.op == "cases":
        *branches, otherwise = term.of
        for when, value in zip(branches[::2], branches[1::2], strict=True):
            if evaluate_row(when, row):
                return evaluate_row(value, row)
        return evaluate_row(otherwise, row)
    of = [evaluate_row(one, row) for one in term.of]
    match term.op:
        case "constant" | "truth":
            return args[0]
        case "add":
            return of[0] + of[1]
        case "subtract":
            return of[0] - of[1]
        case "multiply":
            return of[0] * of[1]
        case "least":
            return min(of)
        case "greatest":
            return max(of)
        case "shift":
            return math.floor(float(of[0]) / float(2 ** args[0]))
        case "compare":
            return COMPARED[args[0]](*of)
        case "one_of":
            return of[0] in args
        case "starts_with":
            return of[0].startswith(args[0])
        case "all_of":
            return all(of)
        case "any_of":
            return any(of)
        case "negation":
            return not of[0]
        case "quotient":
            factor, low, high, default = args
            if of[1] == 0:
                return default
            return math.floor(min(max(of[0] / of[1] * factor, float(low)), float(high)))
        case "spelled":
            factor, low, high, default = args
            number = number_in_text(of[0].encode())
            if math.isnan(number):
                return default
            return round(min(max(number, low / factor), high / factor) * factor)
    raise AssertionError(term.op)
