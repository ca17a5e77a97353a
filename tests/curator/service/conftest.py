"""The service runs on the same places as the ledger."""

from ledger.places import place, server

__all__ = ["place", "server"]
