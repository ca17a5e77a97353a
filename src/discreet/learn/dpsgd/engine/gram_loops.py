"""The loop that :mod:`.compiled_gram` compiles; it also runs as it is, slowly, on arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["weighted_gram_loop"]


def weighted_gram_loop(hint: Callable[[], object]) -> Callable[..., Any]:
    """Return the loop; ``hint`` is called where the compiler is told how to compile it."""

    def weighted_gram(rows: Any, gram: Any, squares: Any) -> Any:
        """Return ``sum_{s,t} gram[s, t] <rows_s, rows_t>`` and write ``|rows_t|^2``.

        ``gram`` is symmetric, so each pair of rows is multiplied once. Sixteen inner products at a
        time, of four rows with four, so that a number that was read is used more than once; the
        rows that are left over, one at a time.
        """
        hint()
        zero = rows.dtype.type(0)
        count = rows.shape[0]
        whole = count - count % 4
        total = 0.0
        for s in range(0, whole, 4):
            a, b, c, d = rows[s], rows[s + 1], rows[s + 2], rows[s + 3]
            for t in range(0, s + 1, 4):
                x, y, z, w = rows[t], rows[t + 1], rows[t + 2], rows[t + 3]
                ax = ay = az = aw = bx = by = bz = bw = zero
                cx = cy = cz = cw = dx = dy = dz = dw = zero
                for at in range(a.size):
                    ax += a[at] * x[at]
                    ay += a[at] * y[at]
                    az += a[at] * z[at]
                    aw += a[at] * w[at]
                    bx += b[at] * x[at]
                    by += b[at] * y[at]
                    bz += b[at] * z[at]
                    bw += b[at] * w[at]
                    cx += c[at] * x[at]
                    cy += c[at] * y[at]
                    cz += c[at] * z[at]
                    cw += c[at] * w[at]
                    dx += d[at] * x[at]
                    dy += d[at] * y[at]
                    dz += d[at] * z[at]
                    dw += d[at] * w[at]
                g, h, i, j = gram[s], gram[s + 1], gram[s + 2], gram[s + 3]
                part = np.float64(g[t]) * ax + np.float64(g[t + 1]) * ay
                part += np.float64(g[t + 2]) * az + np.float64(g[t + 3]) * aw
                part += np.float64(h[t]) * bx + np.float64(h[t + 1]) * by
                part += np.float64(h[t + 2]) * bz + np.float64(h[t + 3]) * bw
                part += np.float64(i[t]) * cx + np.float64(i[t + 1]) * cy
                part += np.float64(i[t + 2]) * cz + np.float64(i[t + 3]) * cw
                part += np.float64(j[t]) * dx + np.float64(j[t + 1]) * dy
                part += np.float64(j[t + 2]) * dz + np.float64(j[t + 3]) * dw
                if t == s:
                    total += part
                    squares[s], squares[s + 1], squares[s + 2], squares[s + 3] = ax, by, cz, dw
                else:
                    total += 2.0 * part
        for s in range(whole, count):
            a = rows[s]
            for t in range(s + 1):
                x = rows[t]
                ax = zero
                for at in range(a.size):
                    ax += a[at] * x[at]
                part = np.float64(gram[s, t]) * ax
                if t == s:
                    total += part
                    squares[s] = ax
                else:
                    total += 2.0 * part
        return total

    return weighted_gram
