"""Reports for people: one HTML file that needs nothing else, not even a network.

Pages hold their pictures and their style and run no script; a content security policy inside the
file forbids the browser to fetch anything. Every figure that a picture shows is also in a table.
Pages that point at single people say INTERNAL on top and cannot be made without saying so.

A certificate (:mod:`discreet.certificate`) has no place for anything that was computed from
private records outside of a mechanism; :func:`write_certificate` draws its page and records its
publication. :func:`internal_annex` makes the part that stays in the house, from
:class:`InternalFacts`. :func:`verify_certificate` computes again what a certificate says,
:func:`recheck` what version 0.1 left behind.
"""

from __future__ import annotations

from discreet.report._annex import (
    Attacked,
    InternalFacts,
    Utility,
    annex_page,
    annex_schema,
    attack_for_annex,
    internal_annex,
    within_guarantee,
)
from discreet.report._attack_pages import (
    attack_page,
    attribute_page,
    inversion_page,
    pictures_page,
    property_page,
)
from discreet.report._certificate_page import certificate_page
from discreet.report._checks import Check
from discreet.report._command_charts import (
    AccountantComparison,
    compare_accountants,
    draw_comparison,
    draw_explanation,
    draw_flow,
    draw_history,
)
from discreet.report._defence_picture import draw_defences
from discreet.report._drawing import (
    COLOURS,
    new_figure,
    save_figure,
    spread_labels,
    tidy_axes,
)
from discreet.report._fidelity_page import write_fidelity_page
from discreet.report._local_page import deployment_rows, draw_deployments, local_page
from discreet.report._mechanism_pictures import (
    FractionComparison,
    NoiseComparison,
    draw_fractions,
    draw_noise,
)
from discreet.report._membership_page import membership_page, strongest_attack
from discreet.report._model_pictures import draw_description, draw_model, model_table
from discreet.report._page import Page
from discreet.report._publishing import (
    certify_model,
    file_hashes,
    model_certificate,
    model_files,
    read_audit,
    write_annex,
    write_certificate,
)
from discreet.report._recheck import Rechecked, recheck
from discreet.report._signatures import find_signature, sign_file, verify_signature
from discreet.report._table_pages import anonymity_page, linkage_page
from discreet.report._training_summary import summary_lines, write_summary
from discreet.report._verification import read_document, verify_certificate

__all__ = [
    "COLOURS",
    "AccountantComparison",
    "Attacked",
    "Check",
    "FractionComparison",
    "InternalFacts",
    "NoiseComparison",
    "Page",
    "Rechecked",
    "Utility",
    "annex_page",
    "annex_schema",
    "anonymity_page",
    "attack_for_annex",
    "attack_page",
    "attribute_page",
    "certificate_page",
    "certify_model",
    "compare_accountants",
    "deployment_rows",
    "draw_comparison",
    "draw_defences",
    "draw_deployments",
    "draw_description",
    "draw_explanation",
    "draw_flow",
    "draw_fractions",
    "draw_history",
    "draw_model",
    "draw_noise",
    "file_hashes",
    "find_signature",
    "internal_annex",
    "inversion_page",
    "linkage_page",
    "local_page",
    "membership_page",
    "model_certificate",
    "model_files",
    "model_table",
    "new_figure",
    "pictures_page",
    "property_page",
    "read_audit",
    "read_document",
    "recheck",
    "save_figure",
    "sign_file",
    "spread_labels",
    "strongest_attack",
    "summary_lines",
    "tidy_axes",
    "verify_certificate",
    "verify_signature",
    "within_guarantee",
    "write_annex",
    "write_certificate",
    "write_fidelity_page",
    "write_summary",
]
