"""Durable budgets: what is spent is on the disk before anything is released."""

from __future__ import annotations

from discreet.ledger._budget import BudgetView, DatasetView, HistoryRow, check_amount
from discreet.ledger._charge import Charge
from discreet.ledger._entry import check_name, read_signed_document, sign_document
from discreet.ledger._ledger import Ledger
from discreet.ledger._replay import Fault, Verification, check_receipt

__all__ = [
    "BudgetView",
    "Charge",
    "DatasetView",
    "Fault",
    "HistoryRow",
    "Ledger",
    "Verification",
    "check_amount",
    "check_name",
    "check_receipt",
    "read_signed_document",
    "sign_document",
]
