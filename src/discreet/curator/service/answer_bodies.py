"""Quotes and answers, as OpenAPI describes them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from discreet.curator.service.bodies import ReceiptBody

__all__ = ["AnswerBody", "QuoteBody"]


class ExpectedErrorBody(BaseModel):
    """How far a number will be off; null where public facts do not tell."""

    label: str
    half_width: float | None
    confidence: float


class QuoteBody(BaseModel):
    """What a query costs, from public facts alone."""

    loss: dict[str, Any]
    epsilon: str
    delta: str
    expected_error: list[ExpectedErrorBody]
    about: str
    columns: list[str]
    answered_before: bool


class BarBody(BaseModel):
    """Error bars of one number; those of one answer hold together at the confidence."""

    label: str
    low: float | None
    high: float | None
    confidence: float


class AnswerBody(BaseModel):
    """An answer: its value, its error bars, its loss and the receipt of its charge."""

    dataset: str
    query: dict[str, Any]
    value: Any
    errors: list[BarBody]
    loss: dict[str, Any]
    receipt: ReceiptBody
    answered_before: bool
    at: str
    about: str
