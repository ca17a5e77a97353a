"""What a language model recites of its training texts.

- :func:`canary_exposure` ranks the secrets of planted :func:`make_canaries` among all that they
  could have been.
- :func:`extraction` counts texts that the model completes word for word, beyond twins that it never
  saw; :func:`recital` finds the longest passage that it writes.
- :func:`text_membership` tells texts, or people, of the training data from others.

:func:`as_language_model` wraps a network, a model of ``transformers`` or a function.
"""

from discreet.attacks.language._canaries import (
    ALPHABETS,
    Canaries,
    Canary,
    make_canaries,
    read_canaries,
)
from discreet.attacks.language._exposure import (
    METHODS,
    ExposureOfCopies,
    Exposures,
    canary_exposure,
)
from discreet.attacks.language._extraction import (
    ExtractionResult,
    RecitalResult,
    draws_needed,
    extraction,
    longest_passage,
    recital,
)
from discreet.attacks.language._model import LanguageModel, TextScores, as_language_model
from discreet.attacks.language._text_membership import SCORES, text_membership

__all__ = [
    "ALPHABETS",
    "METHODS",
    "SCORES",
    "Canaries",
    "Canary",
    "ExposureOfCopies",
    "Exposures",
    "ExtractionResult",
    "LanguageModel",
    "RecitalResult",
    "TextScores",
    "as_language_model",
    "canary_exposure",
    "draws_needed",
    "extraction",
    "longest_passage",
    "make_canaries",
    "read_canaries",
    "recital",
    "text_membership",
]
