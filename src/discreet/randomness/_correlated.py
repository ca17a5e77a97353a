"""Gaussian noise that is correlated over steps: the rows of C^-1 Z, one after the other.

Z has independent normals in every row, those of row i from a key that belongs to step i, so the
same row can be made again. C is a lower triangular Toeplitz matrix of some bands, and row i of
W = C^-1 Z is (Z_i - c_1 W_(i-1) - ... - c_(p-1) W_(i-p+1)) / c_0; if the bands are those of C^-1,
it is b_0 Z_i + ... + b_(p-1) Z_(i-p+1). Either way p - 1 past vectors are held, however many steps
there are.

**Rounding.** What is released is G + W, that is C^-1 (C G + Z), so the loss is that of independent
noise Z on C G. In floating point W is computed from the noise alone, before any data are added,
and each row rounds a sum of p products: C W = Z + E, where E_i is some last digits of the numbers
in that sum. So it is as if Z had been rounded, by no more than independent noise in the same
arithmetic, and errors do not build up over the steps, because E_i enters row i of C W alone. What
is said of rounding in :mod:`discreet.randomness._normals` holds of Z + E.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.randomness._normals import NormalStream
from discreet.randomness._sources import KeyedSource

if TYPE_CHECKING:
    from numpy.typing import NDArray


@final
class CorrelatedStream:
    """The noise of the steps or rounds of a run, one row after the other.

    Parameters
    ----------
    coefficients : sequence of float
        The bands of C, or of its inverse; the first is above 0.
    inverse : bool
        Whether they are those of C^-1.
    keys : sequence of (int, KeyedSource)
        From which step on each key makes the rows of Z; the first from step 0 on. A run that is
        resumed goes on with a new key, so that two copies of it do not add the same noise, and
        needs the earlier ones for the rows that were used.

    Examples
    --------
    >>> from discreet.randomness import KeyedSource, source
    >>> key = KeyedSource(source().read(32), provenance=source().provenance)
    >>> noise = CorrelatedStream([0.8, 0.6], keys=[(0, key)])
    >>> rows = [noise.array(step, 4) for step in range(3)]
    >>> again = CorrelatedStream([0.8, 0.6], keys=[(0, key)])
    >>> bool((again.array(2, 4) == rows[2]).all())
    True
    """

    def __init__(
        self,
        coefficients: Sequence[float],
        *,
        inverse: bool = False,
        keys: Sequence[tuple[int, KeyedSource]],
    ) -> None:
        given = [_validate.real("coefficients", one) for one in coefficients]
        if not given or given[0] <= 0:
            raise InvalidValue("coefficients", given[:3], "numbers, the first above 0")
        self._first, self._rest = given[0], np.array(given[1:])
        self._inverse = inverse
        starts = [step for step, _ in keys]
        if not keys or starts[0] != 0 or starts != sorted(starts):
            raise InvalidValue("keys", starts, "keys from step 0 on, in the order of the steps")
        self._keys = list(keys)
        self._next = 0
        self._past: list[NDArray[Any]] | None = None
        self._lock = threading.Lock()

    @property
    def provenance(self) -> dict[str, str]:
        """What a run must record about its noise."""
        stream = NormalStream(source=self._keys[-1][1]).provenance["stream"]
        bands = f"{len(self._rest) + 1} bands{' of the inverse' if self._inverse else ''}"
        return {**self._keys[-1][1].provenance, "stream": f"{stream}, correlated, {bands}"}

    def array(
        self, step: int, size: int, *, stddev: float = 1.0, dtype: type[np.floating] = np.float64
    ) -> NDArray[Any]:
        """Return one row of the noise; see :meth:`fill`."""
        target = np.empty(_validate.integer("size", size, at_least=0), dtype=dtype)
        self.fill(step, [target], stddev=stddev)
        return target

    def fill(self, step: int, targets: Sequence[NDArray[Any]], *, stddev: float = 1.0) -> None:
        """Overwrite arrays with the noise of a step.

        Parameters
        ----------
        step : int
            Its number from 0, larger than at the last call. Rows between are made and thrown
            away; the first call of a resumed run makes all rows that the noise depends on.
        targets : sequence of arrays
            Contiguous, of float32 or float64, of the same lengths and types in every call.
        stddev : float
            That of the normals in Z. All steps of a run must agree in it, in units of what one
            record may add.

        Raises
        ------
        InvalidValue
            If the step was made already, or the arrays are others than before.
        """
        with self._lock:
            wanted = _validate.integer("step", step, at_least=0)
            if wanted < self._next:
                raise InvalidValue("step", step, f"at least {self._next}: noise is used once")
            flat = [target.reshape(-1) for target in targets]
            reach = len(self._rest)
            if self._past is None:
                self._past = [np.zeros((reach, one.size), dtype=one.dtype) for one in flat]
                if self._inverse:
                    self._next = max(0, wanted - reach)
            known = [(past.shape[1], past.dtype) for past in self._past]
            if [(one.size, one.dtype) for one in flat] != known:
                raise InvalidValue("targets", len(flat), "arrays of the same lengths and types")
            while self._next <= wanted:
                self._make_row(flat)
            for one in flat:
                one *= one.dtype.type(stddev)

    def _make_row(self, targets: list[NDArray[Any]]) -> None:
        """Put the next row at unit noise into the targets, and into the past."""
        step, reach = self._next, len(self._rest)
        key = next(source for start, source in reversed(self._keys) if start <= step)
        stream = NormalStream(source=key.derive("step", step))
        assert self._past is not None
        # Slot j of the past holds the row of the last step that is j modulo ``reach``.
        weights = np.empty(reach)
        weights[(step - 1 - np.arange(reach)) % max(1, reach)] = self._rest
        for target, past in zip(targets, self._past, strict=True):
            stream.fill(target)
            kind = target.dtype.type
            before = weights.astype(target.dtype) @ past if reach else kind(0)
            if self._inverse:
                if reach:
                    past[step % reach] = target
                target *= kind(self._first)
                target += before
            else:
                target -= before
                target /= kind(self._first)
                if reach:
                    past[step % reach] = target
        self._next = step + 1

    def __reduce__(self) -> NoReturn:
        raise NotApplicable("noise cannot be copied: the copy would add the same noise twice")
