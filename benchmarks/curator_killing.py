"""Kill the service with signal 9 under load, and look at what it left.

In every round a service is started on the same files, eight clients ask without a pause, and at
a random moment the process is killed. Questions that got no answer are asked again in the next
round, under their idempotency keys. After every round:

- the files open and the ledger verifies;
- every answer that got out has a receipt that is on the chain, and no two share one;
- a question that was answered twice has one value, and was charged once.

Signal 9 leaves what the system has cached, so this shows atomicity and order. That charges are
on the disk as well rests on the flushes, which the tests of the ledger look at by themselves.
"""

import http.client
import json
import random
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curator_study import make_study, serving
from discreet.ledger import Ledger
from harness import Run, Suite, claim

CLIENTS = 8
ROUNDS = 100
ROWS = 1000


@dataclass
class World:
    """What analysts have seen, over all rounds."""

    answers: dict[int, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    unanswered: list[int] = field(default_factory=list)
    next_question: int = 0
    refused: list[str] = field(default_factory=list)
    guard: Any = field(default_factory=threading.Lock)

    def take(self) -> int:
        """A question that got no answer yet, or a new one."""
        with self.guard:
            if self.unanswered:
                return self.unanswered.pop()
            self.next_question += 1
            return self.next_question


def faults(
    answers: dict[int, list[dict[str, Any]]], chain: dict[int, str], asked: int
) -> list[str]:
    """What is wrong between what got out and what was charged; ``chain`` is entry to hash."""
    found = []
    entries: dict[int, int] = {}
    for question, given in answers.items():
        if len({json.dumps(answer["value"]) for answer in given}) > 1:
            found.append(f"question {question} has two answers")
        for answer in given:
            receipt = answer["receipt"]
            entry = receipt["entry"]["seq"]
            if chain.get(entry) != receipt["hash"]:
                found.append(f"question {question} was released but is not charged")
            if entries.setdefault(entry, question) != question:
                found.append(f"entry {entry} paid for two questions")
    if len(chain) > asked:
        found.append(f"{len(chain)} charges for {asked} questions")
    return found


def ask_for_ever(world: World, port: int, token: str, stop: threading.Event) -> None:
    while not stop.is_set():
        number = world.take()
        query = {"kind": "count", "epsilon": f"1/{1000 + number}"}
        headers = {
            "Authorization": f"Bearer {token}",
            "Content-Type": "application/json",
            "Idempotency-Key": f"question-{number}",
        }
        try:
            line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            line.request(
                "POST", "/v1/datasets/people/ask", json.dumps({"query": query}).encode(), headers
            )
            response = line.getresponse()
            body = json.loads(response.read())
            line.close()
        except (OSError, http.client.HTTPException, ValueError):
            with world.guard:
                world.unanswered.append(number)
            time.sleep(0.01)
            continue
        with world.guard:
            if response.status == 200:
                world.answers[number].append(body)
                if number % 7 == 0 and len(world.answers[number]) == 1:
                    world.unanswered.append(number)  # asked once more: it must be the same
            else:
                world.refused.append(f"{response.status} {body}")


def one_round(world: World, folder: Path, tokens: list[str], delay: float) -> None:
    stop = threading.Event()
    options = ("--rate", "1e5", "--burst", "1e5", "--quantum", "0.002")
    with serving(folder, *options) as (port, process):
        threads = [
            threading.Thread(target=ask_for_ever, args=(world, port, token, stop))
            for token in tokens
        ]
        for thread in threads:
            thread.start()
        time.sleep(delay)
        process.kill()
        process.wait()
        stop.set()
        for thread in threads:
            thread.join()


def look(world: World, folder: Path) -> tuple[int, list[str]]:
    """How many charges there are, and everything that does not fit."""
    with Ledger.open(folder / "study.ledger") as ledger:
        verdict = ledger.verify()
        chain = {row.seq: row.hash for row in ledger.history("people")}
    found = [str(problem) for problem in verdict.problems] + world.refused
    return len(chain), found + faults(world.answers, chain, world.next_question)


def rounds(folder: Path, *, count: int, seed: int, longest: float = 0.8) -> dict[str, Any]:
    chance = random.Random(seed)
    names = [f"analyst{place}" for place in range(CLIENTS)]
    made = make_study(folder, rows=ROWS, analysts=names, epsilon=10_000, each=5_000)
    world = World()
    charged, found, done = 0, [], 0
    for _ in range(count):
        # Each question belongs to one analyst for ever: here all clients are the first of them.
        tokens = [made[names[0]]] * CLIENTS
        one_round(world, folder, tokens, chance.uniform(0.02, longest))
        charged, found = look(world, folder)
        done += 1
        if found:
            break
    answered = sum(map(len, world.answers.values()))
    return {
        "rounds": done,
        "asked": world.next_question,
        "charged": charged,
        "answers": answered,
        "questions_answered": len(world.answers),
        "answers_to_questions_answered_before": answered - len(world.answers),
        "faults": found[:20],
    }


def measure(asked: Run) -> dict[str, Any]:
    count = 5 if asked.quick else ROUNDS
    with tempfile.TemporaryDirectory() as name:
        return {"asked_rounds": count, **rounds(Path(name), count=count, seed=1)}


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        claim("all rounds were survived", record["rounds"] == record.get("asked_rounds", ROUNDS)),
        claim("nothing was released that was not charged", not record["faults"]),
        claim("there were answers to look at", record["answers"] > 0),
    ]


def found(record: dict[str, Any]) -> str:
    return (
        f"{record['questions_answered']} of {record['asked']} questions answered, "
        f"{record['charged']} charged"
    )


SUITE = Suite("curator_killing", measure, targets, numbers={"found": found})
