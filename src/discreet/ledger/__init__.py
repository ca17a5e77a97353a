"""Durable budgets: what is spent is on the disk before anything is released."""

from __future__ import annotations

from discreet.ledger.charge import Charge
from discreet.ledger.ledger import Ledger
from discreet.ledger.receipts import check_receipt
from discreet.ledger.replay import Problem
from discreet.ledger.verification import Verification
from discreet.ledger.views import BudgetView, DatasetView, HistoryRow

__all__ = [
    "BudgetView",
    "Charge",
    "DatasetView",
    "HistoryRow",
    "Ledger",
    "Problem",
    "Verification",
    "check_receipt",
]
