"""The loops that :mod:`.compiled_stack` compiles: they also run as they are, slowly, on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "add_squared_norms",
    "at_most",
    "back_through",
    "gradients_and_norms",
    "linear",
    "rectify",
    "weigh",
]


def linear(inputs: Any, weight: Any, bias: Any, outputs: Any) -> None:
    """Write ``weight x + bias`` for each row x of the inputs.

    Ten sums at a time, of two rows and five outputs, so that a number that was read is used more
    than once. Beyond the end the last row and the last output are computed again.
    """
    rows, classes = outputs.shape
    zero = outputs.dtype.type(0)
    for row in range(0, rows, 2):
        next_row = min(row + 1, rows - 1)
        x, y = inputs[row], inputs[next_row]
        for first in range(0, classes, 5):
            last = classes - 1
            b, c, d, e = (
                min(first + 1, last),
                min(first + 2, last),
                min(first + 3, last),
                min(first + 4, last),
            )
            wa, wb, wc, wd, we = weight[first], weight[b], weight[c], weight[d], weight[e]
            xa = xb = xc = xd = xe = ya = yb = yc = yd = ye = zero
            for at in range(x.size):
                xa += x[at] * wa[at]
                xb += x[at] * wb[at]
                xc += x[at] * wc[at]
                xd += x[at] * wd[at]
                xe += x[at] * we[at]
                ya += y[at] * wa[at]
                yb += y[at] * wb[at]
                yc += y[at] * wc[at]
                yd += y[at] * wd[at]
                ye += y[at] * we[at]
            outputs[row, first], outputs[next_row, first] = xa + bias[first], ya + bias[first]
            outputs[row, b], outputs[next_row, b] = xb + bias[b], yb + bias[b]
            outputs[row, c], outputs[next_row, c] = xc + bias[c], yc + bias[c]
            outputs[row, d], outputs[next_row, d] = xd + bias[d], yd + bias[d]
            outputs[row, e], outputs[next_row, e] = xe + bias[e], ye + bias[e]


def gradients_and_norms(outputs: Any, targets: Any, inputs: Any, least: Any, norms: Any) -> bool:
    """Turn outputs into gradients of cross-entropies, and write the parameters' squared norms.

    Returns no, and has written nothing, if a target is not a class.
    """
    zero, one = norms.dtype.type(0), norms.dtype.type(1)
    rows, classes = outputs.shape
    for row in range(rows):
        if targets[row] < 0 or targets[row] >= classes:
            return False
    for row in range(rows):
        most = outputs[row, 0]
        for at in range(1, classes):
            most = max(most, outputs[row, at])
        total = zero
        for at in range(classes):
            outputs[row, at] = np.exp(outputs[row, at] - most)
            total += outputs[row, at]
        for at in range(classes):
            outputs[row, at] /= total
        outputs[row, targets[row]] -= one
        left = zero
        for at in range(classes):
            left += outputs[row, at] * outputs[row, at]
        right = zero
        for at in range(inputs.shape[1]):
            right += inputs[row, at] * inputs[row, at]
        # |left|^2 |right|^2 for the weight and |left|^2 for its bias.
        norms[row] = (right + one) * (left + least)
    return True


def back_through(gradients: Any, weight: Any, below: Any) -> None:
    """Write ``gradients weight``, the gradients of a layer's inputs; three outputs at a time."""
    rows, classes = gradients.shape
    alone = (classes - 1) % 3 + 1
    for row in range(rows):
        found = below[row]
        found[:] = 0
        for place in range(alone):
            x, wx = gradients[row, place], weight[place]
            for at in range(found.size):
                found[at] += x * wx[at]
        for place in range(alone, classes, 3):
            x, y, z = gradients[row, place], gradients[row, place + 1], gradients[row, place + 2]
            wx, wy, wz = weight[place], weight[place + 1], weight[place + 2]
            for at in range(found.size):
                found[at] += x * wx[at] + y * wy[at] + z * wz[at]


def rectify(gradients: Any, results: Any) -> None:
    """Nothing comes back through what a ReLU has set to 0."""
    zero = gradients.dtype.type(0)
    for row in range(gradients.shape[0]):
        for at in range(gradients.shape[1]):
            if results[row, at] <= zero:
                gradients[row, at] = zero


def weigh(gradients: Any, weights: Any, factor: Any, total: Any, start: int, end: int) -> None:
    """Weight each row in place, and add all of them to ``total``, from one column to another.

    Four rows at a time, so that a total that was read is used more than once.
    """
    rows = gradients.shape[0]
    whole = rows - rows % 4
    sums = total[start:end]
    for row in range(0, whole, 4):
        a, b = weights[row] * factor, weights[row + 1] * factor
        c, d = weights[row + 2] * factor, weights[row + 3] * factor
        x, y = gradients[row, start:end], gradients[row + 1, start:end]
        z, u = gradients[row + 2, start:end], gradients[row + 3, start:end]
        for at in range(sums.size):
            x[at] *= a
            y[at] *= b
            z[at] *= c
            u[at] *= d
            sums[at] += (x[at] + y[at]) + (z[at] + u[at])
    for row in range(whole, rows):
        a, x = weights[row] * factor, gradients[row, start:end]
        for at in range(sums.size):
            x[at] *= a
            sums[at] += x[at]


def add_squared_norms(left: Any, right: Any, least: Any, totals: Any) -> None:
    """Add ``(|left_i|^2 + least) (|right_i|^2 + 1)``, a weight with its bias, to each total."""
    zero, one = totals.dtype.type(0), totals.dtype.type(1)
    for row in range(left.shape[0]):
        first = zero
        for at in range(left.shape[1]):
            first += left[row, at] * left[row, at]
        second = zero
        for at in range(right.shape[1]):
            second += right[row, at] * right[row, at]
        totals[row] += (first + least) * (second + one)


def at_most(squared_norms: Any, bound: Any, most: Any, weights: Any) -> None:
    """``min(most, bound / norm)``, and 0 where a square is infinite, negative or not a number."""
    zero = weights.dtype.type(0)
    for at in range(weights.size):
        square = squared_norms[at]
        if square > zero:
            weights[at] = min(most, bound / np.sqrt(square))
        else:
            weights[at] = most if square == zero else zero
