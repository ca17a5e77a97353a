"""``discreet attack``: what an adversary really gets, measured on one's own models and tables."""

from __future__ import annotations

import typer

from discreet.cli.attack_anonymity import anonymity, linkage, made_up
from discreet.cli.attack_attribute import attribute
from discreet.cli.attack_inversion import inversion
from discreet.cli.attack_membership import membership
from discreet.cli.attack_property import property_

__all__ = ["attack"]

attack = typer.Typer(
    name="attack",
    rich_markup_mode=None,
    no_args_is_help=True,
    help="What an adversary really gets, measured on your own models and tables.",
)
attack.command(short_help="Who was in the training data.")(membership)
attack.command(short_help="A hidden attribute of members.")(attribute)
attack.command("property", short_help="A fact about the training data.")(property_)
attack.command(short_help="The input that a class stands for.")(inversion)
attack.command(short_help="Who stands alone in a table.")(anonymity)
attack.command(short_help="Two tables about the same people.")(linkage)
attack.command("made-up-tables", short_help="Two tables of made-up people to link.")(made_up)
