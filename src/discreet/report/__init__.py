"""Reports for people: one HTML file that needs nothing else, not even a network.

Pages hold their pictures, their script and their style; a content security policy inside the file
forbids the browser to fetch anything. Every figure that a picture shows is also in a table. Pages
that point at single people say INTERNAL on top and cannot be made without saying so.

A certificate (:mod:`discreet.certificate`) has no place for anything that was computed from
private records outside of a mechanism; :func:`write_certificate` draws its page and records its
publication. :func:`internal_annex` makes the part that stays in the house, from
:class:`InternalFacts`. :func:`verify_certificate` computes again what a certificate says.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discreet.report.annex import internal_annex
    from discreet.report.anonymity import anonymity_page
    from discreet.report.attribute import attribute_page
    from discreet.report.certificate_files import write_annex, write_certificate
    from discreet.report.internal_facts import Attacked, InternalFacts, Utility
    from discreet.report.internal_page import annex_page
    from discreet.report.inversion import inversion_page
    from discreet.report.linkage import linkage_page
    from discreet.report.membership import membership_page
    from discreet.report.model_facts import model_certificate
    from discreet.report.page import Page
    from discreet.report.property import property_page
    from discreet.report.public_page import certificate_page
    from discreet.report.verification import Check, verify_certificate

__all__ = [
    "Attacked",
    "Check",
    "InternalFacts",
    "Page",
    "Utility",
    "annex_page",
    "anonymity_page",
    "attribute_page",
    "certificate_page",
    "internal_annex",
    "inversion_page",
    "linkage_page",
    "membership_page",
    "model_certificate",
    "property_page",
    "verify_certificate",
    "write_annex",
    "write_certificate",
]

# No home has the name of what lives there: the import of a module would hide the function.
_HOMES = {
    "annex": ("internal_annex",),
    "internal_page": ("annex_page",),
    "anonymity": ("anonymity_page",),
    "attribute": ("attribute_page",),
    "certificate_files": ("write_annex", "write_certificate"),
    "public_page": ("certificate_page",),
    "internal_facts": ("Attacked", "InternalFacts", "Utility"),
    "inversion": ("inversion_page",),
    "linkage": ("linkage_page",),
    "membership": ("membership_page",),
    "model_facts": ("model_certificate",),
    "page": ("Page",),
    "property": ("property_page",),
    "verification": ("Check", "verify_certificate"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
