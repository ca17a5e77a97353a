"""S26: sums without single numbers; a server that lies; drop-outs; masks of full width."""

import multiprocessing
from itertools import combinations

import numpy as np
import pytest

from discreet.errors import InvalidValue, MechanismHalted, PlanViolation
from discreet.federated import (
    Client,
    FederatedPlan,
    Round,
    SecureClient,
    SecureServer,
    join_secret,
    make_identity,
    mask_numbers,
    split_secret,
)
from support.secure_hosts import ROUND, SIZE, host, numbers


def party(count=6, threshold=5, size=SIZE):
    names = [f"phone {n}" for n in range(count)]
    keys = {name: make_identity() for name in names}
    roster = {name: public for name, (_, public) in keys.items()}
    clients = {
        name: SecureClient(name, keys[name][0], roster, ROUND, threshold=threshold, size=size)
        for name in names
    }
    return clients, SecureServer(roster, ROUND, threshold=threshold, size=size), roster, keys


def until_masked(clients, server):
    adverts = server.collect_keys({n: c.advertise() for n, c in clients.items()})
    inboxes = server.route({n: c.share_keys(adverts) for n, c in clients.items()})
    return {n: c.mask(numbers(n), inboxes[n]) for n, c in clients.items()}


def finish(clients, server, arrived):
    signatures = {n: clients[n].confirm(arrived) for n in arrived}
    return server.open({n: clients[n].unmask(signatures) for n in arrived})


@pytest.mark.parametrize("dropped", [(), ("phone 2",)])
def test_the_sum_of_those_who_arrived_is_exact(dropped):
    clients, server, *_ = party()
    masked = until_masked(clients, server)
    for name, one in masked.items():
        assert (np.abs(one - numbers(name)) > 2**40).mean() > 0.5  # nothing of it is seen
    arrived = server.collect({n: one for n, one in masked.items() if n not in dropped})
    total = finish(clients, server, arrived)
    assert (total == sum(numbers(n) for n in clients if n not in dropped)).all()


def test_clients_that_drop_out_before_their_shares_are_nobody():
    clients, server, *_ = party()
    adverts = server.collect_keys({n: c.advertise() for n, c in clients.items()})
    sent = {n: c.share_keys(adverts) for n, c in clients.items() if n != "phone 0"}
    inboxes = server.route(sent)
    masked = {n: clients[n].mask(numbers(n), inboxes[n]) for n in sent}
    total = finish(clients, server, server.collect(masked))
    assert (total == sum(numbers(n) for n in sent)).all()


def test_too_few_end_a_round_without_a_sum():
    clients, server, *_ = party()
    masked = until_masked(clients, server)
    with pytest.raises(MechanismHalted, match="fewer than 5"):
        server.collect(dict(list(masked.items())[:4]))
    arrived = server.collect(masked)
    signatures = {n: clients[n].confirm(arrived) for n in arrived}
    answers = {n: clients[n].unmask(signatures) for n in arrived[:4]}
    with pytest.raises(MechanismHalted, match="answers"):
        server.open(answers)


STEPS = ("advertise", "share_keys", "mask", "confirm", "unmask")


def run_round(spoil, bad=("phone 3",), count=7, threshold=5):
    """Run a round in which some clients' messages of each step go through ``spoil(step, what)``.

    None is a client that stays away from then on.
    """
    clients, server, *_ = party(count=count, threshold=threshold)

    def sent(step, made):
        found = {n: spoil(step, one) if n in bad else one for n, one in made.items()}
        return {n: one for n, one in found.items() if one is not None}

    adverts = server.collect_keys(sent("advertise", {n: c.advertise() for n, c in clients.items()}))
    shares = sent("share_keys", {n: clients[n].share_keys(adverts) for n in adverts})
    inboxes = server.route(shares)
    masked = {n: clients[n].mask(numbers(n), inboxes[n]) for n in inboxes}
    arrived = server.collect(sent("mask", masked))
    signatures = sent("confirm", {n: clients[n].confirm(arrived) for n in arrived})
    answers = sent(
        "unmask", {n: clients[n].unmask(signatures) for n in arrived if signatures.get(n)}
    )
    return server.open(answers), arrived


@pytest.mark.parametrize("bad", [("phone 3",), ("phone 0", "phone 6")])
@pytest.mark.parametrize("at", STEPS)
def test_drop_outs_at_every_step_leave_the_exact_sum_of_those_who_arrived(at, bad):
    total, arrived = run_round(lambda step, what: None if step == at else what, bad)
    gone = set(bad) if STEPS.index(at) <= STEPS.index("mask") else set()
    assert set(arrived) == {f"phone {n}" for n in range(7)} - gone
    assert (total == sum(numbers(n) for n in arrived)).all()


@pytest.mark.parametrize("at", STEPS)
def test_drop_outs_below_the_threshold_end_the_round_at_any_step(at):
    three = ("phone 0", "phone 3", "phone 6")
    with pytest.raises((MechanismHalted, PlanViolation)):
        run_round(lambda step, what: None if step == at else what, three)


LOW_ORDER = bytes(32)
HOSTILE = {
    "no advert": ("advertise", lambda what: b"keys"),
    "a point of low order": ("advertise", lambda what: what._replace(masks=LOW_ORDER)),
    "a short key": ("advertise", lambda what: what._replace(channel=b"key")),
    "another's signature": ("advertise", lambda what: what._replace(signature=bytes(64))),
    "shares for some": ("share_keys", lambda what: dict(list(what.items())[:2])),
    "shares that are long": ("share_keys", lambda what: dict.fromkeys(what, bytes(10_000))),
    "numbers of another type": ("mask", lambda what: what.astype(np.float64) * np.nan),
    "numbers of another shape": ("mask", lambda what: what[:-1]),
    "more numbers": ("mask", lambda what: np.tile(what, 100)),
    "no numbers": ("mask", lambda what: what.tolist()),
    "no signature": ("confirm", lambda what: b""),
    "shares that are wrong": (
        "unmask",
        lambda what: {n: one._replace(value=bytes(65) + b"\1") for n, one in what.items()},
    ),
    "shares of the other kind": (
        "unmask",
        lambda what: {n: one._replace(kind="key") for n, one in what.items()},
    ),
    "no shares": ("unmask", lambda what: dict.fromkeys(what)),
    "a share without end": (
        "unmask",
        lambda what: {n: one._replace(value=b"\1" * 100_000) for n, one in what.items()},
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_client_spoils_no_sum_of_the_others_with_what_is_no_message(name):
    at, change = HOSTILE[name]
    total, arrived = run_round(lambda step, what: change(what) if step == at else what)
    assert len(arrived) >= 6
    assert (total == sum(numbers(n) for n in arrived)).all()


def test_a_signed_point_of_low_order_is_left_out_by_the_server():
    clients, server, _, keys = party(count=7, threshold=5)
    adverts = {n: c.advertise() for n, c in clients.items()}
    text = server._setting.text("keys", b"phone 3", adverts["phone 3"].channel, LOW_ORDER)
    signature = keys["phone 3"][0].sign(text)
    adverts["phone 3"] = adverts["phone 3"]._replace(masks=LOW_ORDER, signature=signature)
    assert set(server.collect_keys(adverts)) == set(clients) - {"phone 3"}


def test_more_lies_than_spare_shares_end_the_round():
    wrong = HOSTILE["shares that are wrong"][1]
    with pytest.raises(MechanismHalted, match="too many clients lied"):
        run_round(
            lambda step, what: wrong(what) if step == "unmask" else what,
            ("phone 0", "phone 3", "phone 6"),
        )


def test_replayed_messages_of_another_round_count_for_nothing():
    second, server, roster, _ = party()
    again = SecureServer(roster, b"another round", threshold=5, size=SIZE)
    adverts = {n: c.advertise() for n, c in second.items()}
    with pytest.raises(MechanismHalted, match="keys"):
        again.collect_keys(adverts)
    assert set(server.collect_keys(adverts)) == set(second)


def attack_with_a_late_message(*, self_mask):
    """A server that calls a slow client dropped, and gets its numbers after its key."""
    from discreet.federated import _secure

    clients, server, *_ = party()
    if not self_mask:  # the mutant: pairwise masks only
        for client in clients.values():
            client._seed = None
    real = _secure.mask_numbers

    def without_self_mask(key, size):
        return np.zeros(size, dtype=np.int64) if key is None else real(key, size)

    with pytest.MonkeyPatch.context() as patch:
        if not self_mask:
            patch.setattr(_secure, "mask_numbers", without_self_mask)
            patch.setattr(
                _secure,
                "split_secret",
                lambda secret, **k: split_secret(secret or bytes(32), **k),
            )
        masked = until_masked(clients, server)
    late = "phone 4"
    arrived = server.collect({n: one for n, one in masked.items() if n != late})
    signatures = {n: clients[n].confirm(arrived) for n in arrived}
    answers = {n: clients[n].unmask(signatures) for n in arrived}
    assert {given[late].kind for given in answers.values()} == {"key"}
    for name in arrived:  # asked again, for the self-mask this time
        with pytest.raises(MechanismHalted, match="each step once"):
            clients[name].unmask(signatures)
    names = sorted(clients)
    secret = join_secret({names.index(n): given[late].value for n, given in answers.items()})
    guess = masked[late].copy()
    private = _secure.X25519PrivateKey.from_private_bytes(secret)
    for other in arrived:
        shared = _secure._agree(private, server._adverts[other].masks, server._setting.text("mask"))
        pairwise = mask_numbers(shared, SIZE)
        guess = guess - pairwise if late < other else guess + pairwise
    return bool((guess == numbers(late)).all())


def test_a_lying_server_with_a_late_message_learns_nothing():
    assert not attack_with_a_late_message(self_mask=True)


def test_pairwise_masks_alone_are_refuted_by_the_same_attack():
    assert attack_with_a_late_message(self_mask=False)


def test_one_list_is_confirmed_and_no_share_is_given_for_another_one():
    clients, server, *_ = party(count=6, threshold=5)
    masked = until_masked(clients, server)
    server.collect(masked)
    names = sorted(clients)
    # Five of six in either list: every two of them have four clients in common.
    first, second = names[:5], names[1:]
    signed = {n: clients[n].confirm(first) for n in names[:4]}
    signed |= {n: clients[n].confirm(second) for n in names[4:] if n in second}
    for name in names[1:4]:
        with pytest.raises(MechanismHalted):
            clients[name].confirm(second)
        with pytest.raises(PlanViolation, match="one list"):
            clients[name].unmask(signed)


def test_signatures_of_another_round_and_of_strangers_do_not_count():
    clients, server, roster, keys = party()
    until_masked(clients, server)
    names = sorted(clients)
    other = SecureClient("phone 0", keys["phone 0"][0], roster, b"round 4", threshold=5, size=SIZE)
    signed = {n: clients[n].confirm(names) for n in names}
    old = keys["phone 0"][0].sign(other._setting.write_list(names))
    few = {n: signed[n] for n in names[1:5]}
    with pytest.raises(PlanViolation):
        clients["phone 1"].unmask({**few, "phone 0": old, "stranger": old})
    assert clients["phone 2"].unmask(signed)


def test_keys_that_the_server_made_up_are_seen():
    clients, server, *_ = party()
    adverts = server.collect_keys({n: c.advertise() for n, c in clients.items()})
    forged, *_ = party()
    adverts["phone 3"] = forged["phone 3"].advertise()
    with pytest.raises(PlanViolation, match="phone 3"):
        clients["phone 0"].share_keys(adverts)
    with pytest.raises(MechanismHalted):
        clients["phone 0"].share_keys(adverts)  # it is over
    short = {n: adverts[n] for n in list(adverts)[:4]}
    with pytest.raises(PlanViolation, match="too few"):
        clients["phone 1"].share_keys(short)


def test_messages_that_the_server_changed_or_exchanged_are_seen():
    clients, server, *_ = party()
    adverts = server.collect_keys({n: c.advertise() for n, c in clients.items()})
    inboxes = server.route({n: c.share_keys(adverts) for n, c in clients.items()})
    broken = dict(inboxes["phone 0"])
    broken["phone 1"], broken["phone 2"] = broken["phone 2"], broken["phone 1"]
    with pytest.raises(PlanViolation, match="is not the one"):
        clients["phone 0"].mask(numbers("phone 0"), broken)


def test_thresholds_at_two_thirds_are_refused():
    for threshold in (4, 7):
        with pytest.raises(InvalidValue, match="two thirds"):
            party(count=6, threshold=threshold)


def test_shares_below_the_threshold_say_nothing_and_any_at_it_say_all():
    secret = bytes(range(32))
    shares = split_secret(secret, threshold=3, holders=5)
    for chosen in combinations(range(5), 3):
        assert join_secret({n: shares[n] for n in chosen}) == secret
    for few in combinations(range(5), 2):
        with pytest.raises(PlanViolation):  # fails with probability 2^-265
            join_secret({n: shares[n] for n in few})


def folded_mask(seed, size):
    """Flower 1.41: a seed of 256 bits is folded to 32 by XOR, and drives a Mersenne twister."""
    folded = 0
    for place in range(0, 32, 4):
        folded ^= int.from_bytes(seed[place : place + 4], "little")
    return np.random.RandomState(folded).randint(0, 2**31 - 1, size)


def test_masks_have_full_width_and_two_seeds_never_share_one():
    one, two = bytes(32), bytes([7, 0, 0, 0, 7, 0, 0, 0, *[0] * 24])
    assert (folded_mask(one, 50) == folded_mask(two, 50)).all()  # the peer's, refuted
    assert (mask_numbers(one, 50) != mask_numbers(two, 50)).all()
    seen = mask_numbers(bytes(range(32)), 4096).view(np.uint64)
    for bit in range(64):
        ones = int(((seen >> np.uint64(bit)) & np.uint64(1)).sum())
        assert abs(ones - 2048) < 6 * 32  # each bit is a fair coin, the highest too


def test_the_sum_is_bit_for_bit_what_a_trusted_adder_would_have():
    plan = FederatedPlan(
        trust="aggregation", clients=6, expected_cohort=6, rounds=1, clip_norm=1.0, delta=1e-5,
        noise_multiplier=2.0, threshold=5, dimension=SIZE,
    )  # fmt: skip
    clients, server, *_ = party()
    sent = {n: Client(plan).reply(np.full(SIZE, 0.1))["update"] for n in clients}
    adverts = server.collect_keys({n: c.advertise() for n, c in clients.items()})
    inboxes = server.route({n: c.share_keys(adverts) for n, c in clients.items()})
    masked = {n: c.mask(sent[n], inboxes[n]) for n, c in clients.items()}
    arrived = server.collect({n: masked[n] for n in list(masked)[:5]})
    secure, direct = (Round(plan, 0, size=SIZE, asked=sorted(clients)) for _ in range(2))
    secure.receive_sum(finish(clients, server, arrived), len(arrived))
    for name in arrived:
        direct.receive(name, {"update": sent[name]})
    assert (secure.finish().update == direct.finish().update).all()


@pytest.mark.slow
def test_clients_on_hosts_of_their_own():
    _, server, roster, keys = party()
    names = sorted(roster)
    raw = {name: key.private_bytes_raw() for name, (key, _) in keys.items()}
    context = multiprocessing.get_context("spawn")
    hosts = []
    for start in (0, 2, 4):
        near, far = context.Pipe()
        process = context.Process(target=host, args=(far, names[start : start + 2], raw, roster))
        process.start()
        hosts.append((process, near))

    def ask(step, arguments):
        for _, pipe in hosts:
            pipe.send((step, arguments))
        return {name: one for _, pipe in hosts for name, one in pipe.recv().items()}

    adverts = server.collect_keys(ask("advertise", dict.fromkeys(names, ())))
    inboxes = server.route(ask("share_keys", dict.fromkeys(names, (adverts,))))
    arrived = server.collect(ask("mask", {n: (inboxes[n],) for n in names}))
    signatures = ask("confirm", dict.fromkeys(names, (arrived,)))
    total = server.open(ask("unmask", dict.fromkeys(names, (signatures,))))
    for process, pipe in hosts:
        pipe.send(None)
        process.join(60)
        assert process.exitcode == 0
    assert (total == sum(numbers(n) for n in names)).all()
