"""Discreet: differential privacy for machine learning, with a certificate.

Every release is described by an immutable *loss* from :mod:`discreet.privacy`.
Mechanisms and learners produce losses, the ledger spends them, the accountants
read them and the auditor tries to refute them.
"""

__version__ = "0.2.0.dev0"
