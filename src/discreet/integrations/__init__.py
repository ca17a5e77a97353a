"""Other frameworks: private training inside their loops, and where results go.

*Training.* One module for each framework, which needs that framework and nothing else of the list:
``huggingface`` for ``transformers.Trainer`` and ``trl.SFTTrainer``, ``lightning``, ``accelerate``,
and ``peft`` for adapters of frozen models. Each puts :func:`discreet.learn.dpsgd.make_private`
where the framework reads batches, goes backward and steps.

*Results.* Model cards, experiment loggers, checklists and lineage are here. All of it is read off a
:class:`~discreet.certificate.Certificate` and looks at no records.
"""

from discreet.integrations._checklist import (
    ChecklistItem,
    checklist,
    checklist_text,
    lineage_facet,
)
from discreet.integrations._loggers import log_to_mlflow, log_to_wandb
from discreet.integrations._model_card import model_card, privacy_section

__all__ = [
    "ChecklistItem",
    "checklist",
    "checklist_text",
    "lineage_facet",
    "log_to_mlflow",
    "log_to_wandb",
    "model_card",
    "privacy_section",
]
