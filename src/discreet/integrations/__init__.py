"""Where results go: model cards, experiment loggers, checklists, lineage.

All of it is read off a :class:`~discreet.certificate.Certificate`; nothing here looks at records.
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
