"""Anonymization and how it fails: uniqueness, k-anonymity, l-diversity, t-closeness, linkage (S30).

:func:`measure_anonymity` profiles a table, :func:`link_tables` links two of them, and
:func:`made_up_tables` draws an example in the spirit of zip code, birth date and sex. Results carry
counts that may be shown and row numbers that may not; ``to_json`` writes the former only.
"""

from __future__ import annotations

from discreet.attacks.anonymity.diversity import SensitiveProfile
from discreet.attacks.anonymity.generalising import Generalisation
from discreet.attacks.anonymity.linkage import KnownTruth, LinkageResult
from discreet.attacks.anonymity.linking import link_tables
from discreet.attacks.anonymity.measuring import (
    AnonymityProfile,
    AnonymityResult,
    measure_anonymity,
)
from discreet.attacks.anonymity.population import (
    MadeUpTables,
    made_up_population,
    made_up_tables,
)

__all__ = [
    "AnonymityProfile",
    "AnonymityResult",
    "Generalisation",
    "KnownTruth",
    "LinkageResult",
    "MadeUpTables",
    "SensitiveProfile",
    "link_tables",
    "made_up_population",
    "made_up_tables",
    "measure_anonymity",
]
