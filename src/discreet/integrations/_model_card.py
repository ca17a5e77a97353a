"""The model card of a private model: metadata of the Hugging Face hub, and a privacy section."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from discreet.certificate import Certificate

_PLAIN = re.compile(r"[\\`*_{}\[\]()#+!|<>~&-]")


def model_card(
    certificate: Certificate,
    *,
    name: str,
    description: str = "",
    licence: str | None = None,
    tags: Sequence[str] = (),
) -> str:
    """Return a model card in Markdown, with its metadata as YAML at the top.

    Parameters
    ----------
    certificate
        That of the release; a published one also says what audits showed.
    name
        The name of the model.
    description
        Markdown of yours, put before the privacy section as it is.
    licence
        The licence of the model, by the short name that the hub uses.
    tags
        Further tags for the hub.

    Returns
    -------
    str
        The text of a ``README.md``.

    Examples
    --------
    >>> from discreet.privacy import PureDP
    >>> certificate = Certificate.of(PureDP(1.0), delta=0.0, learner="example", unit="person")
    >>> print(model_card(certificate, name="ages").split("## Privacy")[0])
    ---
    library_name: "discreet"
    tags: ["differential-privacy"]
    ---
    <BLANKLINE>
    # ages
    <BLANKLINE>
    <BLANKLINE>
    """
    # JSON is YAML: every text is quoted, so that no text can end the metadata.
    metadata: dict[str, object] = {"library_name": "discreet"}
    if licence is not None:
        metadata["license"] = licence
    metadata["tags"] = ["differential-privacy", *tags]
    head = "\n".join(f"{key}: {json.dumps(value)}" for key, value in metadata.items())
    body = f"{description.strip()}\n\n" if description.strip() else ""
    return f"---\n{head}\n---\n\n# {_escape(name)}\n\n{body}{privacy_section(certificate)}"


def privacy_section(certificate: Certificate) -> str:
    """Return the privacy section of a model card: the guarantee, its limits, its warnings.

    Parameters
    ----------
    certificate
        That of the release.

    Returns
    -------
    str
        Markdown that begins with a heading of the second level.
    """
    rows = [
        ("epsilon, at most", f"{certificate.epsilon:.6g}"),
        ("delta", f"{certificate.delta:g}"),
        ("for one", certificate.unit),
        ("neighbouring data", certificate.relation),
        ("learner", certificate.learner),
        ("covers", str(certificate.to_json()["covers"])),
        ("model digest", certificate.model_digest or "none"),
        ("charged to a ledger", "no" if certificate.receipt is None else "yes"),
    ]
    audits = (certificate.publication or {}).get("audits", ())
    rows += [("audits", f"{len(audits)}" if audits else "none: the claim was not tried")]
    lines = ["## Privacy", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_escape(value)} |" for name, value in rows]
    for heading, texts in (
        ("What a reader must not overlook", certificate.warnings),
        ("What it assumes", certificate.assumptions),
    ):
        if texts:
            lines += ["", f"**{heading}**", "", *(f"- {_escape(text)}" for text in texts)]
    lines += ["", "Check it: `discreet certificate verify certificate.json`.", ""]
    return "\n".join(lines)


def _escape(text: str) -> str:
    """Return a text that Markdown and HTML show as it is, on one line."""
    return _PLAIN.sub(lambda found: f"&#{ord(found[0])};", " ".join(text.split()))
