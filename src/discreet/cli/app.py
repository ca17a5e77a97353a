"""The application: its commands, and errors that fit on one line.

Exit codes: 0 for an answer, 2 for a value or an option that cannot be accepted.
An error is one line on stderr that names the option, the value and what was
expected; nothing has been computed or written by then.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from discreet import __version__
from discreet.cli.account import account
from discreet.cli.attack import attack
from discreet.cli.audit_mechanism import audit_mechanism
from discreet.cli.calibrate import calibrate
from discreet.cli.certificate import certificate
from discreet.cli.certify import certify
from discreet.cli.compare import compare
from discreet.cli.curator import curator
from discreet.cli.demo import demo
from discreet.cli.explain import explain
from discreet.cli.ledger import ledger
from discreet.cli.options import shown
from discreet.cli.pate import pate
from discreet.cli.predict import predict
from discreet.cli.query import query
from discreet.cli.recheck import recheck
from discreet.cli.release import release
from discreet.cli.serve import serve
from discreet.cli.train import train
from discreet.errors import DiscreetError, InvalidValue

__all__ = ["app", "main"]

# What the library calls an argument, where commands have another name for it.
_NAME_OF_ARGUMENT = {"scale": "laplace_scale", "data": "file"}

# Older releases of typer use click, newer ones a copy of it: the base class is found, not named.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class OneLineErrors(TyperGroup):
    """A group of commands that reports every refusal as one line and exit code 2."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run the command line and exit."""
        kwargs["standalone_mode"] = False
        _keep_lines_of_examples(self)
        try:
            code = super().main(*args, **kwargs)
        except InvalidValue as error:
            _refuse(self._option_message(error))
        except DiscreetError as error:
            _refuse(f"discreet: {error}")
        except _UsageError as error:
            _refuse(_usage_message(error))
        except typer.Abort:
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words of the command line, by which an error finds its command."""
        self._words = list(args)
        return super().parse_args(ctx, args)

    def _option_message(self, error: InvalidValue) -> str:
        """Name the option, or the metavar of the argument, that the command that ran has."""
        command: Any = self
        for word in self._words:
            command = getattr(command, "commands", {}).get(word, command)
        titles = {}
        for parameter in command.params:
            for one in parameter.opts:
                titles[one.lstrip("-")] = one if one[0] == "-" else parameter.metavar or one
        names = (error.argument, _NAME_OF_ARGUMENT.get(error.argument, error.argument))
        found = [title for name in names if (title := titles.get(name.replace("_", "-")))]
        title = found[0] if found else names[0]
        return f"{title} = {shown(error.value)}: expected {error.expected}"


def _keep_lines_of_examples(command: Any) -> None:
    # Raw docstrings hold the two characters for which the parser wants a backspace.
    if command.help:
        command.help = command.help.replace("\\b", "\b")
    for inner in getattr(command, "commands", {}).values():
        _keep_lines_of_examples(inner)


def _usage_message(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    command = "discreet" if context is None else context.command_path
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    return f"{command}: {message.rstrip('.')} (see {command} --help)"


def _refuse(message: str) -> NoReturn:
    print(" ".join(message.split()), file=sys.stderr)
    sys.exit(2)


app = typer.Typer(
    name="discreet",
    cls=OneLineErrors,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback(invoke_without_command=True)
def discreet(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    r"""Differential privacy for machine learning, with a certificate.

    A reported epsilon is always an upper bound. Numbers may be written as 0.01, 1e-5 or
    256/60000. Every command prints JSON with --json and explains itself with --help.

    \b
    Examples:
      discreet demo
      discreet account --noise-multiplier 1.1 --rate 256/60000 --steps 14062 --delta 1e-5
      discreet calibrate --epsilon 2 --delta 1e-5 --rate 0.01 --steps 10000
      discreet compare --output compare.png
      discreet explain --epsilon 1 --delta 1e-6 --prior 0.4
      discreet ledger create study.ledger census --epsilon 1 --delta 1e-6
      discreet train patients.csv --schema schema.toml --epsilon 2 --out model
      discreet attack anonymity patients.csv --quasi zip --quasi birth --quasi sex
    """
    if version:
        typer.echo(f"discreet {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command(short_help="Claim, attack, audit and certificate, in about a minute.")(demo)
app.command(short_help="What a release costs, by every accountant.")(account)
app.command(short_help="The noise, steps or rate that meets a target.")(calibrate)
app.command(short_help="Every accountant over the steps of a run.")(compare)
app.command(short_help="What a guarantee means for one person.")(explain)
app.add_typer(release, short_help="One private answer, its loss and its error bars.")
app.command(short_help="Try to refute a mechanism.")(audit_mechanism)
app.command(short_help="A private model from a file, with its certificate.")(train)
app.command(short_help="A student of private teachers, with its certificate.")(pate)
app.command(short_help="What a trained model says about a file.")(predict)
app.command(short_help="The certificate of a model, with attacks on it.")(certify)
app.add_typer(certificate, name="certificate", short_help="Check a certificate.")
app.command(short_help="Which files of version 0.1 claim too small an epsilon.")(recheck)
app.add_typer(attack, name="attack", short_help="What an adversary really gets.")
app.add_typer(ledger, name="ledger", short_help="Budgets that survive crashes and races.")
app.add_typer(curator, name="curator", short_help="Datasets, analysts and tokens of a service.")
app.command(short_help="Answer analysts over HTTP, with a web page.")(serve)
app.command(short_help="Ask a service a question.")(query)


def main() -> None:
    """The console script."""
    app(prog_name="discreet")
