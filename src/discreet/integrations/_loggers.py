"""Budget and certificate in MLflow and Weights & Biases: one call after a private run."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from discreet.certificate import Certificate


def log_to_mlflow(certificate: Certificate, *, mlflow: Any = None) -> None:
    """Log the guarantee to the active run of MLflow, with the certificate as an artifact.

    Parameters
    ----------
    certificate
        That of the release. Only public facts are sent.
    mlflow
        The module, or a client with its ``log_params``, ``log_metrics`` and ``log_dict``.

    Raises
    ------
    ImportError
        If MLflow is not installed.
    """
    to = import_module("mlflow") if mlflow is None else mlflow
    numbers, words = _facts(certificate)
    to.log_metrics(numbers)
    to.log_params(words)
    to.log_dict(certificate.to_json(), "certificate.json")


def log_to_wandb(certificate: Certificate, *, run: Any = None) -> None:
    """Write the guarantee into the summary of a run of Weights & Biases, the rest into its config.

    Parameters
    ----------
    certificate
        That of the release. Only public facts are sent.
    run
        The run; without it, the one that ``wandb.init`` made.

    Raises
    ------
    ImportError
        If Weights & Biases is not installed.
    """
    to = import_module("wandb").run if run is None else run
    numbers, words = _facts(certificate)
    to.summary.update(numbers)
    to.config.update({**words, "privacy_certificate": certificate.to_json()})


def _facts(certificate: Certificate) -> tuple[dict[str, float], dict[str, str]]:
    numbers = {"privacy_epsilon": certificate.epsilon, "privacy_delta": certificate.delta}
    words = {
        "privacy_unit": certificate.unit,
        "privacy_relation": certificate.relation,
        "privacy_learner": certificate.learner,
        "privacy_plan_hash": certificate.plan_hash,
        "privacy_charged": "no" if certificate.receipt is None else "yes",
    }
    return numbers, words
