"""The application: its commands, its exit codes, and errors that fit on one line.

An error is one line on stderr that names the option, the value and what was expected; with
``--json`` that line is a JSON object. The codes are in the help of ``discreet`` and in
docs/exit-codes.md; codes 2 to 4 mean that nothing was charged. A command returns its code, or None
for 0. Modules of commands are loaded when a command of theirs is called.

Below are tables and sentences for people: on a terminal, and the same plain text in a pipe.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

import contextlib
import inspect
import io
import os
import re
import traceback
import zipfile
import zlib
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import click

from discreet import __version__
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

_DEFAULTS = "discreet.toml"
_EVERYWHERE = (
    (["--json", "as_json"], "Print one JSON object, and errors as one line of JSON."),
    (["--quiet", "-q"], "No progress, no notes; nothing on stdout if the result is a file."),
)

# What the library calls an argument, where commands have another name for it.
_NAME_OF_ARGUMENT = {"scale": "laplace_scale", "data": "file"}

# Name of the command, its module and one line about it.
COMMANDS = {
    "demo": ("_demo", "Claim, attack, audit and certificate, in about a minute."),
    "account": ("_accounting", "What a release costs, by every accountant."),
    "calibrate": ("_accounting", "The noise, steps or rate that meets a target."),
    "compare": ("_accounting", "Every accountant over the steps of a run."),
    "explain": ("_accounting", "What a guarantee means for one person."),
    "release": ("_release", "One private answer, its loss and its error bars."),
    "audit": ("_audit", "Try to refute what is claimed about a training run."),
    "audit-mechanism": ("_audit", "Try to refute a mechanism."),
    "schema": ("_schema", "What is public about a table: a draft from names and types."),
    "describe": ("_tables", "A private report of a table: noisy histograms and quantiles."),
    "train": ("_train", "A private model from a file, with its certificate."),
    "pate": ("_train", "A student of private teachers, with its certificate."),
    "predict": ("_train", "What a trained model says about a file."),
    "shapes": ("_tables", "The picture of an additive model or a tree."),
    "evaluate": ("_tables", "How well a model does on a private file, paid for once."),
    "synthesize": ("_synthesize", "Synthetic rows of a file, with their certificate."),
    "certify": ("_certificate", "The certificate of a model, with attacks on it."),
    "certificate": ("_certificate", "Check a certificate."),
    "recheck": ("_certificate", "Which files of version 0.1 claim too small an epsilon."),
    "attack": ("_attack_language", "What an adversary really gets."),
    "bench": ("_bench", "Defences against attacks, side by side."),
    "ledger": ("_ledger", "Budgets that survive crashes and races."),
    "local": ("_local_service", "Collect where nobody is trusted: plan, collect, estimate."),
    "federated": ("_federated", "Clients train, a server adds up: run a plan, or simulate one."),
    "curator": ("_curator", "Datasets, analysts and tokens of a service."),
    "serve": ("_curator", "Answer analysts over HTTP, with a web page."),
    "query": ("_curator", "Ask a service a question."),
}


def _keep_examples(text: str | None) -> str | None:
    """Mark the lines of examples and lists, which are not to be folded."""
    if text is None:
        return None
    return re.sub(
        r"^(?=(?:Examples?|Exit codes):$)", "\b\n", inspect.cleandoc(text), flags=re.MULTILINE
    )


class Command(click.Command):
    """A command: every one takes ``--json``, and its help keeps the lines of its examples."""

    def __init__(self, name: str | None, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.help = _keep_examples(self.help)
        for names, about in _EVERYWHERE:
            self.params.append(click.Option(names, is_flag=True, help=about))

    def make_context(self, *args: Any, **kw: Any) -> click.Context:
        options = {one.name for one in self.params if isinstance(one, click.Option)}
        names = {"unit"} | ({"ledger", "dataset"} if {"ledger", "dataset"} <= options else set())
        if names & options and not kw.get("resilient_parsing"):
            found = _project_defaults()
            kw["default_map"] = {name: found[name] for name in found.keys() & names & options}
        return super().make_context(*args, **kw)

    def invoke(self, ctx: click.Context) -> Any:
        ctx.meta["quiet"] = quiet = ctx.params.pop("quiet")
        asked = ctx.params.get("as_json")
        source = click.core.ParameterSource.DEFAULT_MAP
        used = [n for n in sorted(ctx.default_map or ()) if ctx.get_parameter_source(n) is source]
        if used and not quiet and not asked:
            stated = " ".join(f"--{name} {format_value(ctx.params[name])}" for name in used)
            print(f"{_DEFAULTS}: {stated}", file=sys.stderr)
        if quiet and not asked and (ctx.params.get("output") or ctx.params.get("out")):
            with contextlib.redirect_stdout(io.StringIO()):
                return super().invoke(ctx)
        return super().invoke(ctx)


def _project_defaults() -> dict[str, str]:
    """Return what discreet.toml in the working directory says, if there is one."""
    import tomllib

    try:
        found = tomllib.loads(Path(_DEFAULTS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise FileUnusable("discreet.toml", _DEFAULTS, f"a file of TOML ({error})") from None
    for name, value in found.items():
        if name not in ("ledger", "dataset", "unit") or not isinstance(value, str) or not value:
            raise FileUnusable(_DEFAULTS, name, "ledger, dataset or unit, each a text")
    return found


class Group(click.Group):
    """Commands in the order in which they were written; without one the help is printed."""

    command_class = Command

    def __init__(self, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.help = _keep_examples(self.help)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)


class App(Group):
    """All commands; every refusal is reported as one line and its exit code."""

    _words: ClassVar[list[str]] = []

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"discreet.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, and write out what it printed, while a failure still has its exit code."""
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except (OSError, UnicodeEncodeError) as error:
            # Whoever failed to open or write a file says which.
            if isinstance(error, DiscreetError) or getattr(error, "filename", None) is not None:
                raise
            _drop_output()
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise OSError(0, f"the output cannot be written ({reason})") from None
        return code

    def main(  # type: ignore[override]  # it never returns, in any mode
        self, args: Sequence[str] | None = None, **kwargs: Any
    ) -> NoReturn:
        """Run the command line and exit."""
        words = self._words[:] = list(sys.argv[1:] if args is None else args)
        as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
        before = _charges_made()
        try:
            code = super().main(words, **{**kwargs, "standalone_mode": False})
        except click.Abort:
            sys.exit(130)
        except click.ClickException as error:
            _refuse(_usage_message(error), 2, {}, as_json=as_json)
        except Exception as error:
            spent = _charges_made() > before
            if not isinstance(error, DiscreetError | OSError | MemoryError):
                if not spent:
                    raise
                traceback.print_exc()  # what was not foreseen is shown in full
            code = 5 if spent else _code_of(error)
            _refuse(self._message(error), code, self._details(error), as_json=as_json)
        sys.exit(code if isinstance(code, int) else 0)

    def _message(self, error: Exception) -> str:
        if isinstance(error, InvalidValue):
            title, expected = self._title(error.argument), self._in_options(error.expected)
            return f"{title} = {_format_refused(error)}: expected {expected}"
        if isinstance(error, MemoryError):
            return "discreet: memory ran out"  # its own text would tell the number of rows
        if isinstance(error, OSError) and not isinstance(error, DiscreetError):
            where = "" if error.filename is None else f"{error.filename}: "
            return f"discreet: {where}{error.strerror or error}"
        return f"discreet: {str(error) or type(error).__name__}"

    def _details(self, error: Exception) -> dict[str, Any]:
        """Return what an error says beside its text, as JSON."""
        if isinstance(error, InvalidValue):
            option = self._title(error.argument).lstrip("-").replace("-", "_").lower()
            expected = self._in_options(error.expected)
            return {"option": option, "value": _format_refused(error), "expected": expected}
        if isinstance(error, BudgetExceeded):
            left = {name: str(value) for name, value in error.remaining.items()}
            return {"budget": error.budget, "remaining": left}
        return {}

    def _title(self, argument: str) -> str:
        """Name the option, or the metavar of the argument, that the command that ran has."""
        titles = self._titles()
        names = (argument, _NAME_OF_ARGUMENT.get(argument, argument))
        return next((titles[name] for name in names if name in titles), argument)

    def _in_options(self, text: str) -> str:
        """Write what the library calls overlap="drop" as the command has it: --overlap drop."""
        titles = self._titles()

        def option(found: re.Match[str]) -> str:
            name, value = found[1], found[2].strip("\"'")
            title = titles.get(name, "")
            if not title.startswith("-"):
                return found[0]
            return title if value == "True" else f"{title} {value}"

        return re.sub(r"\b([a-z_]+)=(\"\w+\"|'\w+'|True)", option, text)

    def _titles(self) -> dict[str | None, str]:
        command: click.Command = self
        context = click.Context(self)
        for word in self._words:
            if isinstance(command, click.Group):
                command = command.get_command(context, word) or command
        titles: dict[str | None, str] = {}
        for parameter in command.params:
            longest = max(parameter.opts, key=len)
            known = (parameter.metavar or longest).strip("[].")
            title = longest if isinstance(parameter, click.Option) else known
            titles[parameter.name] = titles[longest.lstrip("-").replace("-", "_")] = title
        return titles


def format_value(value: object) -> str:
    """A refused value on one line: as typed where that is readable, else quoted.

    >>> format_value("5/4"), format_value(""), format_value(2.0)
    ('5/4', "''", '2.0')
    """
    text = str(value)
    plain = text.isprintable() and text == text.strip() and text
    return text if plain else repr(text)


def _format_refused(error: InvalidValue) -> str:
    return "none" if error.value is None else format_value(error.value)


def _usage_message(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    command = "discreet" if context is None else context.command_path
    return f"{command}: {error.format_message().rstrip('.')} (see {command} --help)"


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


def _charges_made() -> int:
    """Return how many charges this process has made; without the ledger's code there are none."""
    module = sys.modules.get("discreet.ledger._charge")
    return 0 if module is None else int(module.Charge.made_here)


def _drop_output() -> None:
    """What is still waiting to be written must not fail a second time."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):  # a stream in memory
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _refuse(message: str, code: int, details: dict[str, Any], *, as_json: bool) -> NoReturn:
    text = " ".join(message.split())
    if code == 5:
        text += " (charged before it failed: the budget is spent)"
    if as_json:
        text = json.dumps({"error": text, "code": code, **details})
    print(text, file=sys.stderr)
    sys.exit(code)


@click.group(
    "discreet",
    cls=App,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(__version__, message="discreet %(version)s", help="Print the version.")
def app() -> None:
    """Differential privacy for machine learning, with a certificate.

    A reported epsilon is always an upper bound. Numbers may be written as 0.01, 1e-5 or
    256/60000. Every command prints JSON with --json, is silent with --quiet and
    explains itself with --help.

    Examples:
      discreet demo
      discreet account --noise-multiplier 1.1 --rate 256/60000 --steps 14062 --delta 1e-5
      discreet calibrate --epsilon 2 --delta 1e-5 --rate 0.01 --steps 10000
      discreet compare --output compare.png
      discreet explain --epsilon 1 --delta 1e-6 --prior 0.4
      discreet ledger create study.ledger census --epsilon 1 --delta 1e-6
      discreet train patients.csv --schema schema.toml --epsilon 2 --out model
      discreet attack anonymity patients.csv --quasi zip --quasi birth --quasi sex

    Exit codes:
      0  done
      1  the answer is no: a check failed or a claim is violated
      2  not understood: an option or a value cannot be accepted
      3  the budget is too small
      4  a file, ledger or service is missing, damaged, taken, busy, full or not writable
      5  charged, and then failed: the budget is spent
      6  nothing is wrong, but something was not checked
    """


def main() -> None:
    """Run the command line; this is the console script ``discreet``."""
    try:
        app(prog_name="discreet")
    except Exception:  # noqa: BLE001 - Python would end with 1, which here means "no"
        traceback.print_exc()
        sys.exit(70)


# --- text for people --------------------------------------------------------------------------

_PLAIN_WIDTH = 100
_INTERNAL = "INTERNAL, unsafe to publish: computed from private records outside of any mechanism"
T = TypeVar("T")


def finite(value: float) -> float | None:
    """JSON has no infinity: ``None`` says that no finite number holds."""
    return value if math.isfinite(value) else None


def print_json(value: object) -> None:
    """Print strict JSON: a number is finite or it is not printed."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_answer(document: object, *lines: str, as_json: bool) -> None:
    """Print a document as JSON, or the same in sentences."""
    print_json(document) if as_json else print_lines(lines)


def print_lines(lines: Iterable[str]) -> None:
    """Print sentences: folded to the width of a terminal, unfolded in a pipe."""
    console = _console(sys.stdout)
    for line in lines:
        console.print(line, soft_wrap=not sys.stdout.isatty())


def printable(line: str) -> str:
    """Return a line as the terminal can show it: what it cannot is written as an escape."""
    text = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in line
    )
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def print_marked(*written: str | None, internal: bool, unless: str | None = None) -> None:
    """Say that what was printed is internal, if it is, and which files were written.

    ``unless`` tells when it would not be, and how to say so; ``None`` if it is in any case.
    """
    if internal:
        print_lines([_INTERNAL + ("." if unless is None else f" (if {unless}).")])
    mark = " (INTERNAL)" if internal else ""
    print_lines([f"written: {file}{mark}" for file in written if file is not None])


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()
) -> None:
    """Print a table; the columns at ``numbers`` are set flush right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, heading in enumerate(headings):
        side: Literal["right", "left"] = "right" if place in numbers else "left"
        table.add_column(heading, justify=side, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = _console(sys.stdout)
    with console.capture() as captured:
        console.print(table)
    # Cells are padded to their column; lines need not end in blanks.
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def is_quiet() -> bool:
    """Say whether the command that runs was called with ``--quiet``."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get("quiet"))


def shows_progress() -> bool:
    """Say whether stderr is a terminal that wants to see progress."""
    return sys.stderr.isatty() and not is_quiet()


def show_count(items: Iterable[T], description: str) -> Iterator[T]:
    """Go through items whose number is not known, under a count that only a terminal shows."""
    if not shows_progress():
        yield from items
        return
    from rich.progress import track

    yield from track(items, description, total=None, console=_console(sys.stderr), transient=True)


def show_progress(items: Sequence[T], description: str) -> Iterator[T]:
    """Go through ``items`` under a progress bar, which only a terminal on stderr shows."""
    if not shows_progress():
        yield from items
        return
    from rich.progress import track

    yield from track(items, description, console=_console(sys.stderr), transient=True)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    if stream.isatty():
        return Console(file=stream, markup=False, highlight=False, emoji=False)
    # In a pipe the text depends neither on COLUMNS nor on a request for colour.
    return Console(
        file=stream,
        force_terminal=False,
        color_system=None,
        no_color=True,
        width=_PLAIN_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
    )
