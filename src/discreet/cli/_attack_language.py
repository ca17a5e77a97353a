"""``discreet attack language`` and ``discreet attack canaries``: what a language model recites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from discreet._validate import one_of
from discreet.cli import _attack_tables  # noqa: F401 - the other commands of the group
from discreet.cli._app import print_json, print_lines, print_marked
from discreet.cli._attack_models import PUBLIC_RECORDS, attack, public_records_option
from discreet.cli._options import (
    Count,
    Real,
    confidence_option,
    count,
    output_file,
    page_option,
    seed_option,
)
from discreet.errors import FileUnusable, InvalidValue

if TYPE_CHECKING:
    from discreet.attacks import AttackRun
    from discreet.attacks.language import LanguageModel

_MODEL = (
    "module:name in Python, which is imported: what discreet.attacks.language.as_language_model "
    "returns, or a function that returns it."
)
_TEXTS = "One text on each line (.txt), or objects with text and perhaps owner (.jsonl)."


@attack.command("canaries", short_help="Secrets to plant, for attack language.")
@click.option("--out", metavar="FILE", required=True, help="The canaries (.json).")
@click.option("--texts", metavar="FILE", help="The texts to plant, one on each line (.txt).")
@click.option(
    "--template",
    metavar="TEXT",
    default="the door code of {name} is {digits:4}",
    show_default=True,
    help="{digits:n}, {letters:n} or {hex:n} is the secret, {name} a made-up name.",
)
@click.option(
    "--count", "number", type=Count(at_least=1), default="20", help="For each number of copies."
)
@click.option(
    "--copies",
    metavar="COUNTS",
    default="1",
    help="How often each is planted, as in 0,1,16; 0 makes controls.",
)
def canaries(
    out: str, texts: str | None, template: str, number: int, copies: str, as_json: bool
) -> None:
    r"""Make canaries: texts with random secrets, to add to the training data.

    What you plant is afterwards looked for by discreet attack language. The file has the secrets.

    Example:
      discreet attack canaries --count 20 --copies 0,1,16 --out canaries.json --texts plant.txt
    """
    from discreet.attacks.language import make_canaries

    times = [count("copies", one, at_least=0) for one in copies.split(",")]
    with (
        output_file(out, ".json", argument="out") as draft,
        output_file(texts, ".txt", argument="texts") as lines,
    ):
        made = make_canaries(template, number, copies=times)
        assert draft is not None
        made.save(draft)
        if lines is not None:
            lines.write_text("".join(f"{one}\n" for one in made.texts()), encoding="utf-8")
    if as_json:
        facts = {"canaries": len(made), "texts": len(made.texts()), "space": made[0].space}
        print_json({"out": out, "internal": True, **facts})
        return
    print_lines([f"{len(made)} canaries, {len(made.texts())} texts to plant"])
    print_marked(out, texts, internal=False)


@attack.command(short_help="What a language model recites.")
@click.option("--model", metavar="MODEL", required=True, help=_MODEL)
@click.option("--canaries", "planted", metavar="FILE", help="What discreet attack canaries wrote.")
@click.option("--members", metavar="FILE", help=f"Texts that the model was trained on. {_TEXTS}")
@click.option("--nonmembers", metavar="FILE", help="Texts of the same kind that were not used.")
@click.option("--prompts", metavar="FILE", help="Texts to begin with: how much of members follows?")
@click.option("--public", metavar="FILE", help="Texts that everybody has, beside --prompts.")
@click.option(
    "--reference", metavar="MODEL", help="A model that saw none of the texts, for membership."
)
@click.option(
    "--score",
    "scores",
    metavar="loss|zlib|min_k|min_k_plus|reference",
    multiple=True,
    help="How membership is told; may be given several times.  [default: loss]",
)
@click.option(
    "--method",
    metavar="exact|sampled|distribution",
    default="exact",
    help="How canaries are ranked.  [default: exact]",
)
@click.option("--prefix", type=Count(at_least=0), default="32", help="Tokens that are known.")
@click.option("--suffix", type=Count(at_least=1), default="32", help="Tokens to be extracted.")
@click.option(
    "--samples", type=Count(at_least=1), help="Draw so often; by default the likeliest token."
)
@click.option(
    "--chance",
    type=Real(above=0, below=1),
    default="0.5",
    help="With --samples: with this probability one of them is the text.",
)
@confidence_option
@public_records_option
@seed_option
@page_option
def language(
    model: str,
    planted: str | None,
    members: str | None,
    nonmembers: str | None,
    prompts: str | None,
    public: str | None,
    reference: str | None,
    scores: tuple[str, ...],
    method: str,
    prefix: int,
    suffix: int,
    samples: int | None,
    chance: float,
    confidence: float,
    public_records: bool,
    seed: int | None,
    output: str | None,
    as_json: bool,
) -> None:
    r"""Measure what a language model says of its training texts, beside chance.

    With --canaries their exposure; with --members and --nonmembers how many texts it completes
    beyond those that it never saw, and how well members are told; with --prompts and --members the
    longest passage that it writes. If texts have owners, people are counted.

    Examples:
      discreet attack language --model study:model --canaries canaries.json
      discreet attack language --model study:model --members used.jsonl --nonmembers unseen.jsonl \
        --score loss --score min_k --output language.html
    """
    from discreet.attacks import run_attack
    from discreet.attacks.language import METHODS, SCORES, read_canaries

    one_of("method", method, METHODS)
    for score in scores:
        one_of("score", score, SCORES)
    if ("reference" in scores) != (reference is not None):
        raise InvalidValue("reference", reference, "a model if and only if with --score reference")
    if nonmembers is not None and members is None:
        raise InvalidValue("members", None, "a file, beside --nonmembers")
    if prompts is not None and members is None:
        raise InvalidValue("members", None, "a file, in which --prompts are looked for")
    with output_file(output, ".html") as draft:
        asked = _read_model("model", model)
        jobs: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        if planted is not None:
            found = read_canaries(planted)
            settings = {"method": method, "confidence": confidence, "seed": seed}
            jobs.append(("canary_exposure", {"canaries": found}, settings))
        used, owners = ([], None) if members is None else read_texts("members", members)
        if nonmembers is not None:
            others, other_owners = read_texts("nonmembers", nonmembers)
            if (owners is None) != (other_owners is None):
                raise InvalidValue("nonmembers", nonmembers, "owners if members have them")
            both = {"members": used, "nonmembers": others}
            people = {"member_owners": owners, "nonmember_owners": other_owners}
            how = {"prefix": prefix, "suffix": suffix, "samples": samples, "chance": chance}
            jobs.append(("extraction", both, {**how, **people, "confidence": confidence}))
            other = None if reference is None else _read_model("reference", reference)
            for score in scores or ("loss",):
                by = {"score": score, "reference": other if score == "reference" else None}
                jobs.append(("text_membership", both, {**by, **people}))
        if prompts is not None:
            inputs = {"prompts": read_texts("prompts", prompts)[0], "corpus": used}
            known = [] if public is None else read_texts("public", public)[0]
            jobs.append(("recital", inputs, {"public": known}))
        if not jobs:
            expected = "a file; or --members and --nonmembers, or --members and --prompts"
            raise InvalidValue("canaries", None, expected)
        runs = [
            run_attack(name, {"language_model": asked, **inputs}, **settings)
            for name, inputs, settings in jobs
        ]
        if draft is not None:
            from discreet.report import attack_page

            title = "What a language model recites"
            page = attack_page(
                runs, title=title, about={"model": model}, public_records=public_records
            )
            page.write(draft)
    if as_json:
        print_json({"internal": not public_records, "attacks": [_json_of(one) for one in runs]})
        return
    print_lines([line for one in runs for line in one.lines()])
    print_marked(output, internal=not public_records, unless=PUBLIC_RECORDS)


def _json_of(run: AttackRun) -> dict[str, Any]:
    body = run.to_json()
    # Scores of single records stay out: the curve has what counts.
    body["result"].pop("most_exposed", None)
    return body


def _read_model(argument: str, path: str) -> LanguageModel:
    from discreet.attacks import import_name
    from discreet.attacks.language import LanguageModel

    if ":" not in path:
        raise FileUnusable(argument, path, "module:name in Python")
    found = import_name(argument, path)
    if not isinstance(found, LanguageModel) and callable(found):
        found = found()
    if not isinstance(found, LanguageModel):
        expected = "what as_language_model returns, or a function that returns it"
        raise InvalidValue(argument, path, expected)
    return found


def read_texts(argument: str, path: str) -> tuple[list[str], list[str] | None]:
    """Read texts, and their owners if there are any.

    Parameters
    ----------
    argument, path
        The name of the option, and the file.

    Returns
    -------
    tuple
        The texts, and one owner for each or None.

    Raises
    ------
    FileUnusable
        If the file cannot be read.
    InvalidValue
        If it has no text, or only some of its texts have an owner.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text in UTF-8"
        raise FileUnusable(argument, path, f"a readable file ({reason})") from None
    lines = [line for line in lines if line.strip()]
    if not lines:
        raise InvalidValue(argument, path, "a file with at least one text")
    if Path(path).suffix != ".jsonl":
        return lines, None
    expected = 'lines of the form {"text": "...", "owner": "..."}, owner on all of them or on none'
    try:
        entries = [json.loads(line) for line in lines]
        texts = [entry["text"] for entry in entries]
        owners = [str(entry["owner"]) for entry in entries if entry.get("owner") is not None]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidValue(argument, path, expected) from None
    if len(owners) not in (0, len(texts)) or not all(isinstance(one, str) for one in texts):
        raise InvalidValue(argument, path, expected)
    return texts, owners or None
