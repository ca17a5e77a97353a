"""Mechanisms on show: broken ones that an audit must refute, and right ones that it must not.

Beside every fault stands a right way to do the same. They are objects of study: none
of them is for use on data. The event search was developed on these specimens and
their inputs were found by trial, so what is shown here is no estimate of how often
faults of other kinds are found.
"""

from discreet.audit.zoo.additive import ADDITIVE
from discreet.audit.zoo.choices import CHOICES
from discreet.audit.zoo.specimen import Specimen
from discreet.audit.zoo.thresholds import THRESHOLDS

__all__ = ["SPECIMENS", "Specimen"]

SPECIMENS: dict[str, Specimen] = {
    specimen.name: specimen for specimen in (*ADDITIVE, *THRESHOLDS, *CHOICES)
}
