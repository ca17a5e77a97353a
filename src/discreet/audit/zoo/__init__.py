"""Mechanisms on show: broken ones that an audit must refute, and right ones that it must not.

``SPECIMENS`` has, beside every fault, a right way to do the same; ``bundled()`` has the mechanisms
of this package. The specimens are objects of study: none of them is for use on data. The event
search was developed on them and their inputs were found by trial, so what is shown here is no
estimate of how often faults of other kinds are found.
"""

from discreet.audit.zoo import _synthesis  # noqa: F401 - registers its specimens
from discreet.audit.zoo._bundled import bundled
from discreet.audit.zoo._specimens import SPECIMENS, Specimen

__all__ = ["SPECIMENS", "Specimen", "bundled"]
