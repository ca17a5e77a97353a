"""Membership inference (S28): was a record used to train the model, or not.

Every attack takes an :class:`~discreet.attacks.observations.Observation`, what the attacker
sees of the target, and returns a :class:`~discreet.attacks.results.MembershipResult`.
"""
