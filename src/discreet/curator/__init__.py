"""The curator: a trusted service that holds the data, answers analysts, and keeps to the budget."""

from __future__ import annotations

from discreet.curator._answers import Answer
from discreet.curator._client import Client, ServiceRefused, ServiceUnreachable
from discreet.curator._curator import Curator, answer_faults, certified_loss
from discreet.curator._dataset import CuratedDataset
from discreet.curator._plan import Bar, Quote, quote
from discreet.curator._queries import (
    Count,
    CountPersons,
    GroupBy,
    Histogram,
    Mean,
    Quantile,
    Query,
    Sum,
    ThresholdStream,
    TopK,
    Variance,
    Workload,
    query_from_json,
)

__all__ = [
    "Answer",
    "Bar",
    "Client",
    "Count",
    "CountPersons",
    "CuratedDataset",
    "Curator",
    "GroupBy",
    "Histogram",
    "Mean",
    "Quantile",
    "Query",
    "Quote",
    "ServiceRefused",
    "ServiceUnreachable",
    "Sum",
    "ThresholdStream",
    "TopK",
    "Variance",
    "Workload",
    "answer_faults",
    "certified_loss",
    "query_from_json",
    "quote",
]
