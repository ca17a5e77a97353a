"""What small language models recite: a licence and planted secrets, and mails of a mailbox.

Two experiments, each with plain training beside DP-SGD at epsilon 8 from the same public start.

*licence*: a model of characters learns the headers of the C library, after a public start on
headers of the kernel without a licence in them. Planted among the records are canaries with a door
code of three digits, once, 4 and 16 times; of those planted once, fair coins choose half.

*mailbox*: the same model learns made-up mails, eight of each person, after a public start on mails
of others. The private run counts persons: a person is drawn, and clipped, as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.attacks.language import (
    as_language_model,
    canary_exposure,
    extraction,
    make_canaries,
    recital,
    text_membership,
)
from discreet.audit import Inclusion, audit_one_run, suggest_guesses
from discreet.learn.dpsgd import Plan
from harness import BUILD, Run, Suite, claim, found, target
from memorisation_corpora import (
    CONTEXT,
    LICENCE,
    PRIVATE,
    PUBLIC,
    Mails,
    blocks,
    character_model,
    decode,
    encode,
    headers,
    mailbox,
    package_file,
    rows,
    train,
    train_privately,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EPSILON = 8.0
CANARY = "/* the door code of {name} is {digits:3} */"
MAILED = "{name}: my door code is {digits:3}"
PAGE = "docs/memorisation.md"


@dataclass(frozen=True)
class Size:
    """How large a run is: the model, steps of each training, files, canaries, people."""

    width: int
    start: int
    plain: int
    private: int
    batch: int
    files: int
    copies: tuple[tuple[int, int], ...]
    judged: int
    people: int


HEADERS = Size(96, 300, 4000, 60, 128, 130, ((1, 128), (4, 16), (16, 8)), 250, 0)
MAILS = Size(64, 300, 1400, 60, 100, 0, (), 250, 300)
QUICK = Size(16, 2, 2, 2, 20, 6, ((1, 16), (4, 2), (16, 2)), 40, 30)


def public_start(texts: list[str], size: Size) -> Callable[[], Any]:
    """Return a function that gives the same pretrained model anew."""
    first = character_model(0, width=size.width)
    trained = train(first, rows(texts), steps=size.start, batch=32, rate=3e-3, seed=0)
    state = {name: value.clone() for name, value in trained.state_dict().items()}

    def fresh() -> Any:
        model = character_model(0, width=size.width)
        model.load_state_dict(state)
        return model

    return fresh


def apart(members: list[str], others: list[str], most: int) -> tuple[list[str], list[str]]:
    """Return distinct texts of both sides that the other side does not have."""
    sides = [list(dict.fromkeys(members)), list(dict.fromkeys(others))]
    both = set(sides[0]) & set(sides[1])
    draws = np.random.default_rng(0)
    kept = [[one for one in side if one not in both] for side in sides]
    return tuple(  # type: ignore[return-value]
        [side[at] for at in sorted(draws.permutation(len(side))[:most])] for side in kept
    )


def wrapped(model: Any) -> Any:
    return as_language_model(model.eval(), encode=encode, decode=decode, context=CONTEXT)


def share(one: Any) -> list[float]:
    return [one.share, one.low, one.high]


def look(model: Any, members: list[str], twins: list[str], owners: Any = None) -> dict[str, Any]:
    """Return what extraction and membership find."""
    sides = ("member_owners", "nonmember_owners")
    people = {} if owners is None else dict(zip(sides, owners, strict=True))
    answers = {}
    for name, samples in (("greedy", None), ("sampled", 10)):
        got = extraction(
            model, members, twins, prefix=32, suffix=24, samples=samples, chance=0.5, **people
        )
        answers[name] = {
            "members": share(got.members),
            "twins": share(got.twins),
            "excess": [got.excess.value, got.excess.low, got.excess.high],
        }
    areas = {}
    for score in ("loss", "zlib", "min_k", "min_k_plus"):
        told = text_membership(model, members, twins, score=score, **people)
        areas[score] = [told.auc, *told.auc_interval()]
    return {"extraction": answers, "areas": areas}


def licence(asked: Run) -> dict[str, Any]:
    """Train on headers with canaries, plainly and privately, and attack both."""
    size = QUICK if asked.quick else HEADERS
    once = size.copies[0][1]
    files = [
        one for one in headers(package_file(PRIVATE, BUILD)) if "General Public License" in one
    ]
    public = [one for one in headers(package_file(PUBLIC, BUILD)) if not LICENCE.search(one)]
    start = public_start(blocks(public), size)
    order = np.random.default_rng(1).permutation(len(files))
    inside, outside = (
        [files[at] for at in part] for part in (order[: size.files], order[size.files :])
    )
    records = blocks(inside)
    heldout = blocks(outside)
    members, twins = apart(records, heldout, size.judged)
    made = make_canaries(CANARY, once)
    often = [make_canaries(CANARY, count, copies=(k,)) for k, count in size.copies[1:]]
    planted = [text for group in often for text in group.texts()]
    plan = Plan(
        examples=len(records) + len(planted) + once // 2,
        expected_batch_size=size.batch,
        steps=size.private,
        clip_norm=0.5,
        epsilon=EPSILON,
        delta=1e-5,
    )
    guesses = suggest_guesses(plan.loss, canaries=once, delta=plan.delta)
    result: dict[str, Any] = {
        "records": len(records),
        "with_licence": sum("General" in one or "redistribute" in one for one in records),
        "epsilon": plan.epsilon(),
        "steps": plan.steps,
        "group": {k: plan.loss.group(k).epsilon(delta=plan.delta) for k in (4, 16)},
        "ways": {},
    }
    for way in ("plain", "private"):
        coins = Inclusion(once, guesses=guesses)
        data = rows([*records, *planted, *made.texts(coins.included)])
        model = start()
        if way == "plain":
            model = train(model, data, steps=size.plain, batch=32, rate=2e-3, seed=1)
        else:
            model = train_privately(model, pairs(data), plan, rate=2e-3)
        answering = wrapped(model)
        single = canary_exposure(answering, made)
        there = replace(single, copies=coins.included.astype(np.int64))
        audit = audit_one_run(coins, single.bits, loss=plan.loss, delta=plan.delta)
        ranked = {str(one.copies): one.to_json() for one in there.groups}
        for group in often:
            [one] = canary_exposure(answering, group).groups
            ranked[str(one.copies)] = one.to_json()
        prompts = [text[: text.find("redistribute")][-CONTEXT:] for text in inside[:3]]
        said = recital(
            answering, ["/* Copyright (C) ", *prompts], inside, public=public, length=320
        )
        result["ways"][way] = {
            "loss": heldout_loss(model, heldout),
            "run": said.run,
            "passage": said.passage,
            "public_run": said.public_run,
            "exposure": ranked,
            "audit": {
                "epsilon_lower": audit.epsilon_lower,
                "ceiling": audit.ceiling,
                "verdict": audit.verdict,
            },
            **look(answering, members, twins),
        }
    return result


def pairs(data: Any) -> Any:
    from torch.utils.data import TensorDataset

    return TensorDataset(data[:, :-1].contiguous(), data[:, 1:].contiguous())


def heldout_loss(model: Any, texts: list[str]) -> float:
    """Return the mean loss of a letter of texts that were not used."""
    import torch

    from memorisation_corpora import losses

    with torch.no_grad():
        data = rows(texts[:1000])
        return float(losses(model.eval()(data[:, :-1]), data[:, 1:]).mean())


def mails(asked: Run) -> dict[str, Any]:
    """Train on the mails of people, plainly and privately, and attack both."""
    size = QUICK if asked.quick else MAILS
    people, heldout, strangers = (mailbox(size.people, 8, seed) for seed in (11, 12, 13))
    start = public_start([mail for one in strangers for mail in one.mails], size)
    # A person has a secret in two mails.
    secrets = make_canaries(MAILED, len(people), names=[one.name for one in people])
    own = [
        type(one)(one.name, (*one.mails[:6], secret.text, secret.text))
        for one, secret in zip(people, secrets, strict=True)
    ]
    plan = Plan(
        examples=len(own),
        expected_batch_size=size.people / 3,
        steps=size.private,
        clip_norm=0.5,
        epsilon=EPSILON,
        delta=1e-4,
        augmentations=2,
        unit="person",
    )
    members, member_owners = distinct(people)
    twins, twin_owners = distinct(heldout)
    result: dict[str, Any] = {
        "people": len(own),
        "epsilon": plan.epsilon(),
        "steps": plan.steps,
        "unit": plan.unit,
        "ways": {},
    }
    for way in ("plain", "private"):
        model = start()
        if way == "plain":
            data = rows([mail for one in own for mail in one.mails])
            model = train(model, data, steps=size.plain, batch=32, rate=3e-3, seed=1)
        else:
            model = train_privately(model, Mails(own, 2), plan, rate=2e-3)
        answering = wrapped(model)
        ranked = canary_exposure(answering, secrets[: size.judged // 2])
        prompt = members[0][:32]
        written = answering.decode(answering.continue_text(encode(prompt), 32))
        result["ways"][way] = {
            "exposure": ranked.groups[0].to_json(),
            "likeliest": share(ranked.share_at(0.01)),
            "p_value": ranked.p_value,
            "example": [prompt, written.split("\n")[0], members[0][32:]],
            **look(answering, members, twins, (member_owners, twin_owners)),
        }
    return result


def distinct(people: list[Any]) -> tuple[list[str], list[str]]:
    """Return one mail of each matter, with its owner, filled up as it was trained on."""
    texts, owners = [], []
    for at, one in enumerate(people):
        for mail in one.mails[:4]:
            texts.append(mail.ljust(CONTEXT, "\n")[:CONTEXT])
            owners.append(f"{one.name} {at}")
    return texts, owners


def measure(asked: Run) -> dict[str, Any]:
    parts = {"licence": licence, "mailbox": mails}
    return {name: part(asked) for name, part in parts.items() if asked.wants(name)}


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    listed = []
    headers_found, mails_found = found(record, "licence"), found(record, "mailbox")
    if headers_found:
        plain, private = (headers_found["ways"][way] for way in ("plain", "private"))
        run = target("licence: characters recited after plain training", plain["run"], at_least=150)
        chance = private["exposure"]["1"]["p_value"]
        listed += [
            run,
            target("private: chance of the exposure of one copy", chance, at_least=0.01),
            target(
                "private: audited epsilon over the claim",
                private["audit"]["epsilon_lower"] / headers_found["epsilon"],
                at_most=1.0,
            ),
            claim(
                "private: extraction minus twins is consistent with 0",
                private["extraction"]["greedy"]["excess"][1] <= 0,
            ),
        ]
    if mails_found:
        plain, private = (mails_found["ways"][way] for way in ("plain", "private"))
        listed += [
            claim(
                "mailbox: plain training completes private mails",
                plain["extraction"]["greedy"]["excess"][1] > 0,
            ),
            claim(
                "mailbox, private: extraction minus twins is consistent with 0",
                private["extraction"]["greedy"]["excess"][1] <= 0,
            ),
            target("mailbox, private: chance of the exposure", private["p_value"], at_least=0.01),
        ]
    return listed


def with_interval(figure: list[float]) -> str:
    value, low, high = figure
    return f"{100 * value:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def bits(group: dict[str, Any]) -> str:
    first = f"{group['first_of_all']} of {group['canaries']}"
    return f"{group['mean_bits']:.2f}, {group['most_bits']:.2f}; {first}"


def table(lines: list[tuple[str, str, str]]) -> str:
    head = "| | plain training | DP-SGD, epsilon 8 |\n| --- | ---: | ---: |\n"
    return head + "\n".join(f"| {what} | {one} | {two} |" for what, one, two in lines)


def rows_of_attacks(ways: list[dict[str, Any]], unit: str) -> list[tuple[str, str, str]]:
    lines = []
    for kind, words in (("greedy", "completed"), ("sampled", "completed in 10 draws, chance 0.5")):
        for group, name in (("members", "used"), ("twins", "held out"), ("excess", "difference")):
            cells = [with_interval(way["extraction"][kind][group]) for way in ways]
            lines.append((f"{unit}s {words}: {name}", *cells))
    for score, name in (("loss", "loss"), ("zlib", "zlib"), ("min_k_plus", "min-k++")):
        cells = ["{:.3f} [{:.3f}, {:.3f}]".format(*way["areas"][score]) for way in ways]
        lines.append((f"membership of a {unit} by {name}: AUC", *cells))
    return lines  # type: ignore[return-value]


def licence_table(record: dict[str, Any]) -> str:
    result = found(record, "licence")
    ways = [result["ways"][way] for way in ("plain", "private")]
    lines: list[Any] = [
        ("loss of a letter on held-out headers, nats", *(f"{way['loss']:.3f}" for way in ways)),
        ("longest passage recited, characters", *(str(way["run"]) for way in ways)),
    ]
    for copies, words in (("0", "never planted"), ("1", "1 copy"), ("4", "4"), ("16", "16 copies")):
        what = f"exposure, {words}: mean and largest bits; first of all"
        lines.append((what, *(bits(way["exposure"][copies]) for way in ways)))
    for copies in ("1", "4", "16"):
        cells = [f"{way['exposure'][copies]['p_value']:.2g}" for way in ways]
        lines.append((f"probability of that by chance, {copies}", *cells))
    stated = result["epsilon"]
    group = ", ".join(f"{k} copies: {value:.0f}" for k, value in result["group"].items())
    lines += [
        ("epsilon claimed for 1 copy", "none", f"{stated:.2f}"),
        ("epsilon claimed for a group", "none", group),
        (
            "epsilon at least, audited by exposure at 95 % (most it could show)",
            *(f"{w['audit']['epsilon_lower']:.2f} ({w['audit']['ceiling']:.2f})" for w in ways),
        ),
        *rows_of_attacks(ways, "record"),
    ]
    return table(lines)


def mailbox_table(record: dict[str, Any]) -> str:
    result = found(record, "mailbox")
    ways = [result["ways"][way] for way in ("plain", "private")]
    stated = result["epsilon"]
    lines: list[Any] = [
        ("epsilon claimed for a person", "none", f"{stated:.2f}"),
        (
            "exposure of a door code: mean and largest bits; first of all",
            *(bits(way["exposure"]) for way in ways),
        ),
        ("probability of that by chance", *(f"{way['p_value']:.2g}" for way in ways)),
        (
            "codes among the 1 % likeliest",
            *(with_interval(way["likeliest"]) for way in ways),
        ),
        *rows_of_attacks(ways, "person"),
    ]
    return table(lines)


def example_table(record: dict[str, Any]) -> str:
    """Show a prefix, what both models write behind it, and what the mail says."""
    ways = found(record, "mailbox")["ways"]
    prefix, plain, said = ways["plain"]["example"]
    lines = [
        ("typed", prefix),
        ("plain training", plain),
        ("epsilon 8", ways["private"]["example"][1]),
        ("the mail", said.strip()),
    ]
    return "\n".join(
        ["| | |", "| --- | --- |", *(f"| {name} | `{text}` |" for name, text in lines)]
    )


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw the exposure by copies, and the recited passages."""
    import matplotlib.pyplot as plt

    ways = found(record, "licence")["ways"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), width_ratios=(3, 2))
    copies = ["0", "1", "4", "16"]
    for at, (way, colour) in enumerate((("plain", "#b03a2e"), ("private", "#1f618d"))):
        groups = [ways[way]["exposure"][k] for k in copies]
        places = np.arange(4) + 0.4 * at - 0.2
        name = "plain training" if way == "plain" else "epsilon 8"
        left.bar(places, [g["mean_bits"] for g in groups], 0.38, color=colour, label=name)
        left.plot(places, [g["most_bits"] for g in groups], "_", color="black", markersize=12)
        right.barh([1 - at], [ways[way]["run"]], 0.6, color=colour)
        right.text(ways[way]["run"] + 3, 1 - at, str(ways[way]["run"]), va="center")
    left.axhline(1 / np.log(2), color="grey", linewidth=1, linestyle=":")
    left.set_xticks(range(4), copies)
    left.set_xlabel("copies of a secret of 10 bits")
    left.set_ylabel("exposure, bits")
    left.set_title("mean (bar), largest (dash), chance (dots)", fontsize=9)
    left.legend(frameon=False, fontsize=8)
    right.set_yticks([1, 0], ["plain", "epsilon 8"])
    right.set_xlim(0, 10 + 1.2 * max(ways[way]["run"] for way in ways))
    right.set_xlabel("longest passage recited, characters")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def passage(record: dict[str, Any]) -> str:
    return f"`{found(record, 'licence')['ways']['plain']['passage'].strip()}`"


SUITE = Suite(
    "memorisation",
    measure,
    targets,
    parts=("licence", "mailbox"),
    tables={
        (PAGE, "memorisation licence"): licence_table,
        (PAGE, "memorisation mailbox"): mailbox_table,
        (PAGE, "memorisation example"): example_table,
    },
    pictures={"memorisation.png": draw},
    numbers={
        "passage": passage,
        "records": lambda record: f"{found(record, 'licence')['records']:,}",
        "with_licence": lambda record: f"{found(record, 'licence')['with_licence']:,}",
    },
)
