"""Certificates: what was released, what it costs, and who answers for it."""
