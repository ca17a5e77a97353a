"""The application: its commands, its exit codes, and errors that fit on one line.

An error is one line on stderr that names the option, the value and what was expected; with
``--json`` that line is a JSON object. The codes are in the help of ``discreet`` and in
docs/exit-codes.md; codes 2 to 4 mean that nothing was charged.
"""

from __future__ import annotations

import json
import sys
import traceback
import zipfile
import zlib
from collections.abc import Iterator
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
from discreet.errors import (
    AlreadyCharged,
    BudgetExceeded,
    DataCorrupt,
    DataUnavailable,
    DiscreetError,
    FileUnusable,
    InvalidValue,
    KeyConflict,
    LedgerError,
    LedgerUnconfirmed,
    MechanismHalted,
    ResumeRefused,
    SchemaError,
    SignatureInvalid,
)

__all__ = ["app", "main"]

# The first class that fits decides. In what is not here an option or a value is to blame.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (SignatureInvalid, 1),
    (BudgetExceeded, 3),
    (MechanismHalted, 3),
    (LedgerUnconfirmed, 5),
    (AlreadyCharged, 5),
    (KeyConflict, 2),
    (LedgerError, 4),
    (DataUnavailable, 4),
    (DataCorrupt, 4),
    (SchemaError, 4),
    (ResumeRefused, 4),
    (OSError, 4),
    (MemoryError, 4),
)
# A value that was refused because of one of these names a file that cannot be used.
_UNUSABLE = (FileUnusable, OSError, EOFError, UnicodeDecodeError, zipfile.BadZipFile, zlib.error)

# What the library calls an argument, where commands have another name for it.
_NAME_OF_ARGUMENT = {"scale": "laplace_scale", "data": "file"}

# Older releases of typer use click, newer ones a copy of it: the base class is found, not named.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class OneLineErrors(TyperGroup):
    """A group of commands that reports every refusal as one line and its exit code."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run the command line and exit."""
        given = kwargs.get("args", args[0] if args else None)
        words = list(sys.argv[1:] if given is None else given)
        as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
        kwargs["standalone_mode"] = False
        _keep_lines_of_examples(self)
        before = _charges_made()
        try:
            code = super().main(*args, **kwargs)
        except typer.Abort:
            sys.exit(130)
        except _UsageError as error:
            _refuse(_usage_message(error), 2, {}, as_json=as_json)
        except Exception as error:
            spent = _charges_made() > before
            if not isinstance(error, DiscreetError | OSError | MemoryError):
                if not spent:
                    raise
                traceback.print_exc()  # what was not foreseen is shown in full
            code = 5 if spent else _code_of(error)
            _refuse(self._message(error), code, _details(error), as_json=as_json)
        sys.exit(code if isinstance(code, int) else 0)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words of the command line, by which an error finds its command."""
        self._words = list(args)
        return super().parse_args(ctx, args)

    def _message(self, error: Exception) -> str:
        if isinstance(error, InvalidValue):
            return self._option_message(error)
        if isinstance(error, MemoryError):
            return "discreet: memory ran out"  # its own text would tell the number of rows
        if isinstance(error, OSError) and not isinstance(error, DiscreetError):
            where = "" if error.filename is None else f"{error.filename}: "
            return f"discreet: {where}{error.strerror or error}"
        return f"discreet: {str(error) or type(error).__name__}"

    def _option_message(self, error: InvalidValue) -> str:
        """Name the option, or the metavar of the argument, that the command that ran has."""
        command: Any = self
        for word in self._words:
            command = getattr(command, "commands", {}).get(word, command)
        titles = {}
        for parameter in command.params:
            for one in parameter.opts:
                name = (parameter.metavar or one).strip("[]")
                titles[one.lstrip("-")] = one if one[0] == "-" else name
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


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those during whose handling it was raised."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__context__


def _code_of(error: Exception) -> int:
    if isinstance(error, InvalidValue) and any(
        isinstance(one, _UNUSABLE) for one in _causes(error)
    ):
        return 4
    status = getattr(error, "status", None)  # what a service answered
    if isinstance(status, int):
        return 5 if status == 500 else 4 if status == 404 or status > 500 else 2
    return next((code for kind, code in _CODES if isinstance(error, kind)), 2)


def _details(error: Exception) -> dict[str, Any]:
    """Return what an error says beside its text, as JSON."""
    if isinstance(error, InvalidValue):
        return {
            "option": error.argument,
            "value": shown(error.value),
            "expected": error.expected,
        }
    if isinstance(error, BudgetExceeded):
        left = {name: str(value) for name, value in error.remaining.items()}
        return {"budget": error.budget, "remaining": left}
    return {}


def _charges_made() -> int:
    """Return how many charges this process has made; without the ledger's code there are none."""
    module = sys.modules.get("discreet.ledger._charge")
    return 0 if module is None else int(module.Charge.made_here)


def _refuse(message: str, code: int, details: dict[str, Any], *, as_json: bool) -> NoReturn:
    text = " ".join(message.split())
    if code == 5:
        text += " (charged before it failed: the budget is spent)"
    if as_json:
        text = json.dumps({"error": text, "code": code, **details})
    print(text, file=sys.stderr)
    sys.exit(code)


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
    256/60000. Most commands print JSON with --json; all explain themselves with --help.

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

    \b
    Exit codes:
      0  done
      1  the answer is no: a check failed or a claim was refuted
      2  not understood: an option or a value cannot be accepted
      3  the budget is too small
      4  a file, ledger or service is missing, damaged, taken, busy, full or not writable
      5  charged, and then failed: the budget is spent
      6  nothing is wrong, but something was not checked
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
    try:
        app(prog_name="discreet")
    except Exception:  # noqa: BLE001 - Python would end with 1, which here means "no"
        traceback.print_exc()
        sys.exit(70)
