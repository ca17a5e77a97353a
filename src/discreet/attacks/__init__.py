"""Attacks: what an adversary really gets from a model, measured on your own machine.

- Membership (S28): :func:`yeom`, :func:`shokri`, :func:`lira`, :func:`rmia`,
  :func:`quantile_regression` and :func:`label_only`. :func:`observe` asks the target once and
  every attack reads the answers; :class:`ShadowPool` trains the shadow models that all
  shadow attacks share.
- Attribute and property inference and model inversion (S29): :func:`attribute_inference`,
  :func:`property_inference`, :func:`invert` with :func:`recognition`.
- Anonymization failures (S30): :func:`measure_anonymity`, :func:`link_tables`.

Nothing is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discreet.attacks.anonymity import (
        AnonymityResult,
        LinkageResult,
        link_tables,
        measure_anonymity,
    )
    from discreet.attacks.attribute import AttributeResult, attribute_inference
    from discreet.attacks.attribute_values import Attribute
    from discreet.attacks.inversion import InversionResult, invert
    from discreet.attacks.inversion_recognition import RecognitionResult, recognition
    from discreet.attacks.membership.label_only import label_only
    from discreet.attacks.membership.lira import lira
    from discreet.attacks.membership.quantile import quantile_regression
    from discreet.attacks.membership.rmia import rmia
    from discreet.attacks.membership.shokri import shokri
    from discreet.attacks.membership.yeom import yeom
    from discreet.attacks.observations import Observation, observe, observe_split
    from discreet.attacks.property_attack import PropertyResult, property_inference
    from discreet.attacks.property_draws import PropertySets, property_sets, train_shadows
    from discreet.attacks.results import ExposedRecord, MembershipResult, Slice, pooled
    from discreet.attacks.roc import OperatingPoint, Roc
    from discreet.attacks.shadow_networks import NetworkTrainer, Perceptron
    from discreet.attacks.shadow_scores import ShadowScores
    from discreet.attacks.shadows import ShadowPool
    from discreet.attacks.targets import Target, as_target, class_indices

__all__ = [
    "AnonymityResult",
    "Attribute",
    "AttributeResult",
    "ExposedRecord",
    "InversionResult",
    "LinkageResult",
    "MembershipResult",
    "NetworkTrainer",
    "Observation",
    "OperatingPoint",
    "Perceptron",
    "PropertyResult",
    "PropertySets",
    "RecognitionResult",
    "Roc",
    "ShadowPool",
    "ShadowScores",
    "Slice",
    "Target",
    "as_target",
    "attribute_inference",
    "class_indices",
    "invert",
    "label_only",
    "link_tables",
    "lira",
    "measure_anonymity",
    "observe",
    "observe_split",
    "pooled",
    "property_inference",
    "property_sets",
    "quantile_regression",
    "recognition",
    "rmia",
    "shokri",
    "train_shadows",
    "yeom",
]

_HOMES = {
    "attribute": ("AttributeResult", "attribute_inference"),
    "attribute_values": ("Attribute",),
    "inversion": ("InversionResult", "invert"),
    "inversion_recognition": ("RecognitionResult", "recognition"),
    "property_attack": ("PropertyResult", "property_inference"),
    "property_draws": ("PropertySets", "property_sets", "train_shadows"),
    "anonymity": ("AnonymityResult", "LinkageResult", "link_tables", "measure_anonymity"),
    "membership.label_only": ("label_only",),
    "membership.lira": ("lira",),
    "membership.quantile": ("quantile_regression",),
    "membership.rmia": ("rmia",),
    "membership.shokri": ("shokri",),
    "membership.yeom": ("yeom",),
    "observations": ("Observation", "observe", "observe_split"),
    "results": ("ExposedRecord", "MembershipResult", "Slice", "pooled"),
    "roc": ("OperatingPoint", "Roc"),
    "shadow_networks": ("NetworkTrainer", "Perceptron"),
    "shadow_scores": ("ShadowScores",),
    "shadows": ("ShadowPool",),
    "targets": ("Target", "as_target", "class_indices"),
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
