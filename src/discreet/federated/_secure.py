"""Secure aggregation: the server learns the sum of its clients' numbers and none of them.

The protocol of Bonawitz et al. (2017) against a server that lies, for one round, with fresh keys:

1. ``advertise``: two X25519 keys, signed by the client's key on the roster (Ed25519).
2. ``share_keys``: Shamir shares of the mask key and of the seed of a *self-mask*, encrypted to each
   peer.
3. ``mask``: the numbers, plus the self-mask, plus a mask with each peer that one of the two adds
   and the other one subtracts. Masks are AES-256 in counter mode, 64 bits a number.
4. ``confirm``: the client signs the one list of those whose numbers arrived.
5. ``unmask``: it looks for signatures of ``threshold`` peers under that same list, and then gives
   of each peer one share: of the self-mask if its numbers arrived, of its key if they did not.
   Never both, whatever it is asked later.

Without the self-mask, a server that calls a slow client dropped, collects the shares of its key and
then gets its numbers late, could take off all masks. With a threshold above two thirds (and above
half of clients and colluders together) no two lists can both be confirmed.

A hostile client can stay away at any step, and then its numbers are in no sum; messages of another
shape count as staying away, and wrong shares are left out while enough right ones are there. What
it sends under a mask nobody sees, so numbers that are too large spoil the sum; and a message that a
peer cannot open ends the round for that peer, who cannot know which of sender and server lied.

Sums are modulo 2^64. The server of a round is one object, a client another one; what goes between
them are bytes, arrays and mappings, whatever carries them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations, islice
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from discreet import _validate
from discreet.errors import InvalidValue, MechanismHalted, PlanViolation
from discreet.randomness import source, uniform_integers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

_PRIME = 2**521 - 1
_SHARE_BYTES = 66
_KEY_BYTES = 32
# A nonce, the two shares, and the tag of AES-GCM.
_MESSAGE_BYTES = 12 + 2 * _SHARE_BYTES + 16
_MOST_TRIES = 5000
_STEPS = ("advertise", "share_keys", "mask", "confirm", "unmask")


class Advert(NamedTuple):
    """The public keys of a client for one round, with its signature."""

    channel: bytes
    masks: bytes
    signature: bytes


class Share(NamedTuple):
    """One client's share of a secret of another one: of its ``key`` or of its ``self-mask``."""

    kind: str
    value: bytes


def make_identity() -> tuple[Ed25519PrivateKey, bytes]:
    """Return a client's long-lived signing key, and the public half for the roster.

    Returns
    -------
    (Ed25519PrivateKey, bytes)
    """
    key = Ed25519PrivateKey.generate()
    return key, key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def mask_numbers(key: bytes, size: int) -> Numbers:
    """Return a mask of 64 bits a number: AES-256 in counter mode under a key that is used once.

    Parameters
    ----------
    key : bytes
        32 of them.
    size : int
        How many numbers.

    Returns
    -------
    array of int64
    """
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(8 * size)), dtype="<i8").astype(np.int64)


def split_secret(secret: bytes, *, threshold: int, holders: int) -> list[bytes]:
    """Return Shamir shares of 32 bytes, of which ``threshold`` give them back.

    Parameters
    ----------
    secret : bytes
        32 of them.
    threshold, holders : int
        How many shares are needed, and how many there are.

    Returns
    -------
    list of bytes
        The share of holder 0, 1, ...
    """
    points = [int.from_bytes(secret, "big")]
    points += [uniform_integers(_PRIME) for _ in range(threshold - 1)]
    shares = []
    for x in range(1, holders + 1):
        value = 0
        for coefficient in reversed(points):
            value = (value * x + coefficient) % _PRIME
        shares.append(value.to_bytes(_SHARE_BYTES, "big"))
    return shares


def join_secret(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of which holders with these numbers (from 0) have these shares.

    Parameters
    ----------
    shares : mapping of int to bytes
        At least as many as the threshold.

    Returns
    -------
    bytes

    Raises
    ------
    PlanViolation
        If they are not shares of one secret.
    """
    total = 0
    for holder, share in shares.items():
        x, over, under = holder + 1, 1, 1
        for other in shares:
            if other != holder:
                over = over * (other + 1) % _PRIME
                under = under * (other + 1 - x) % _PRIME
        total += int.from_bytes(share, "big") * over * pow(under, -1, _PRIME)
    found = total % _PRIME
    if found >> (8 * _KEY_BYTES):
        raise PlanViolation("the shares do not fit together: a client or the server lied")
    return found.to_bytes(_KEY_BYTES, "big")


def _is_share(given: object, kind: str) -> bool:
    """Whether a client gave a share of this kind; anything may arrive."""
    known = isinstance(given, Share) and given.kind == kind and isinstance(given.value, bytes)
    return known and len(given.value) == _SHARE_BYTES  # type: ignore[attr-defined]


def _join_some(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret of which at least ``threshold`` shares are right, whatever the others are.

    A wrong share gives a number of 521 bits, of which a secret has 256: it is seen.
    """
    for holders in islice(combinations(sorted(shares), threshold), _MOST_TRIES):
        try:
            return join_secret({holder: shares[holder] for holder in holders})
        except PlanViolation:
            continue
    raise MechanismHalted(
        "the shares of a secret do not fit together: too many clients lied. The sum is not "
        "opened, and the loss of the round is spent"
    )


def _agree(private: X25519PrivateKey, public: bytes, purpose: bytes) -> bytes:
    secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(hashes.SHA256(), _KEY_BYTES, salt=None, info=purpose).derive(secret)


class _Setting:
    """What both sides know of a round: who may take part, its name and its threshold."""

    def __init__(
        self, roster: Mapping[str, bytes], round_id: bytes, *, threshold: int, size: int
    ) -> None:
        self.names = sorted(roster)
        self.roster = dict(roster)
        self.round_id = bytes(round_id)
        self.size = _validate.integer("size", size, at_least=1)
        self.threshold = _validate.integer("threshold", threshold, at_least=1)
        if not 2 * len(roster) < 3 * self.threshold <= 3 * len(roster):
            raise InvalidValue(
                "threshold", threshold, f"above two thirds of the {len(roster)} clients"
            )

    def text(self, kind: str, *parts: bytes) -> bytes:
        """Return what is signed: every part with its length, so that none can be moved."""
        head = b"discreet secure aggregation 1 " + kind.encode()
        return b"".join(len(p).to_bytes(8, "big") + p for p in (head, self.round_id, *parts))

    def write_list(self, names: Iterable[str]) -> bytes:
        """Return the text of a list of clients."""
        return self.text("list", *(name.encode() for name in sorted(names)))

    def is_good(self, name: str, one: object) -> bool:
        """Whether a client of the roster advertised keys that its peers can use."""
        if not isinstance(one, Advert) or not all(isinstance(part, bytes) for part in one):
            return False
        if not self.is_signed(name, one.signature, self.text("keys", name.encode(), *one[:2])):
            return False
        try:
            for public in one[:2]:
                _agree(X25519PrivateKey.generate(), public, b"trial")
        except ValueError:  # of another length, or a point that gives every peer the same secret
            return False
        return True

    def is_signed(self, name: str, signature: bytes, text: bytes) -> bool:
        """Whether a client of the roster signed this."""
        try:
            Ed25519PublicKey.from_public_bytes(self.roster[name]).verify(signature, text)
        except (InvalidSignature, KeyError, ValueError):
            return False
        return True


@final
class SecureClient:
    """A client's side of one round. Its steps come in their order, each once.

    Parameters
    ----------
    name : str
        That of the client on the roster.
    key : Ed25519PrivateKey
        The key that belongs to it.
    roster : mapping of str to bytes
        The public keys of the clients that were asked.
    round_id : bytes
        The name of the round, which no other round has.
    threshold : int
        The least number of clients in a sum, above two thirds of the roster.
    size : int
        How many numbers each client has.
    """

    def __init__(
        self,
        name: str,
        key: Ed25519PrivateKey,
        roster: Mapping[str, bytes],
        round_id: bytes,
        *,
        threshold: int,
        size: int,
    ) -> None:
        self._setting = _Setting(roster, round_id, threshold=threshold, size=size)
        if roster.get(name) != key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw):
            raise InvalidValue("name", name, "the client of the roster that has this key")
        self.name, self._signing = name, key
        self._next = 0
        self._channel, self._masks = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = source().read(_KEY_BYTES)
        self._peers: dict[str, Advert] = {}
        self._held: dict[str, tuple[bytes, bytes]] = {}
        self._arrived: frozenset[str] = frozenset()

    def _step(self, name: str) -> None:
        if self._next >= len(_STEPS) or _STEPS[self._next] != name:
            raise MechanismHalted(
                f"{name} was called twice or out of order: a client answers each step once"
            )
        self._next += 1

    def _require_enough(self, names: Iterable[str], within: Iterable[str], what: str) -> None:
        found = set(names)
        if len(found) < self._setting.threshold or self.name not in found or found - set(within):
            self._next = len(_STEPS)
            raise PlanViolation(f"{what}: too few clients, unknown ones, or without this one")

    def advertise(self) -> Advert:
        """Return the public keys of the round, signed.

        Returns
        -------
        Advert
        """
        self._step("advertise")
        channel, masks = (
            one.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
            for one in (self._channel, self._masks)
        )
        text = self._setting.text("keys", self.name.encode(), channel, masks)
        return Advert(channel, masks, self._signing.sign(text))

    def share_keys(self, adverts: Mapping[str, Advert]) -> dict[str, bytes]:
        """Return shares of this client's secrets, encrypted to each peer.

        Parameters
        ----------
        adverts : mapping
            What the server says that clients advertised.

        Returns
        -------
        dict
            A message for each peer.

        Raises
        ------
        PlanViolation
            If a signature is wrong, or there are too few.
        """
        self._step("share_keys")
        setting = self._setting
        self._require_enough(adverts, setting.names, "the keys of the round")
        for name, one in adverts.items():
            text = setting.text("keys", name.encode(), one.channel, one.masks)
            if not setting.is_signed(name, one.signature, text):
                self._next = len(_STEPS)
                raise PlanViolation(f"the keys of {name!r} are not signed by its key on the roster")
        self._peers = dict(adverts)
        secret = self._masks.private_bytes_raw()
        holders = len(setting.names)
        split = [
            split_secret(one, threshold=setting.threshold, holders=holders)
            for one in (secret, self._seed)
        ]
        messages = {}
        for name, one in adverts.items():
            place = setting.names.index(name)
            shares = split[0][place], split[1][place]
            if name == self.name:
                self._held[name] = shares
                continue
            box = AESGCM(_agree(self._channel, one.channel, setting.text("channel")))
            nonce = source().read(12)
            about = setting.text("shares", self.name.encode(), name.encode())
            messages[name] = nonce + box.encrypt(nonce, b"".join(shares), about)
        return messages

    def mask(self, numbers: Numbers, inbox: Mapping[str, bytes]) -> Numbers:
        """Return this client's numbers under all masks.

        Parameters
        ----------
        numbers : array of int64
            What is to be added up, with this client's share of the noise.
        inbox : mapping of str to bytes
            What peers sent to this client.

        Returns
        -------
        array of int64

        Raises
        ------
        PlanViolation
            If too few peers sent shares, or a message is not theirs.
        """
        if numbers.dtype != np.int64 or numbers.shape != (self._setting.size,):
            raise InvalidValue(
                "numbers", f"{numbers.dtype} {numbers.shape}", f"int64 ({self._setting.size},)"
            )
        self._step("mask")
        setting = self._setting
        self._require_enough({*inbox, self.name}, self._peers, "the shares of peers")
        for name, message in inbox.items():
            box = AESGCM(_agree(self._channel, self._peers[name].channel, setting.text("channel")))
            about = setting.text("shares", name.encode(), self.name.encode())
            try:
                shares = box.decrypt(message[:12], message[12:], about)
            except InvalidTag:
                self._next = len(_STEPS)
                raise PlanViolation(f"a message is not the one that {name!r} sent") from None
            self._held[name] = shares[:_SHARE_BYTES], shares[_SHARE_BYTES:]
        total = numbers + mask_numbers(self._seed, setting.size)
        for name in inbox:
            shared = _agree(self._masks, self._peers[name].masks, setting.text("mask"))
            pairwise = mask_numbers(shared, setting.size)
            total = total + pairwise if self.name < name else total - pairwise
        return total

    def confirm(self, arrived: Iterable[str]) -> bytes:
        """Return a signature under the list of those whose numbers arrived.

        Parameters
        ----------
        arrived : iterable of str
            The list that the server states; this client signs one, and no other.

        Returns
        -------
        bytes

        Raises
        ------
        PlanViolation
            If the list is too short, or lists somebody whose shares this client does not hold.
        """
        self._step("confirm")
        self._arrived = frozenset(arrived)
        self._require_enough(self._arrived, self._held, "the list of those who arrived")
        return self._signing.sign(self._setting.write_list(self._arrived))

    def unmask(self, signatures: Mapping[str, bytes]) -> dict[str, Share]:
        """Return one share of each peer: of the self-mask if it arrived, of its key if not.

        Parameters
        ----------
        signatures : mapping of str to bytes
            Those of the peers under the same list.

        Returns
        -------
        dict

        Raises
        ------
        PlanViolation
            If fewer than the threshold signed this list.
        """
        self._step("unmask")
        text = self._setting.write_list(self._arrived)
        good = {
            name
            for name, signature in signatures.items()
            if name in self._arrived and self._setting.is_signed(name, signature, text)
        }
        self._require_enough(good, self._arrived, "signatures under one list")
        return {
            name: Share("self-mask", shares[1])
            if name in self._arrived
            else Share("key", shares[0])
            for name, shares in self._held.items()
        }


@final
class SecureServer:
    """The server's side of one round: it passes messages on, and opens the sum.

    Parameters
    ----------
    roster, round_id, threshold, size
        As those of :class:`SecureClient`.
    """

    def __init__(
        self, roster: Mapping[str, bytes], round_id: bytes, *, threshold: int, size: int
    ) -> None:
        self._setting = _Setting(roster, round_id, threshold=threshold, size=size)
        self._adverts: dict[str, Advert] = {}
        self._shared: set[str] = set()
        self._sum = np.zeros(size, dtype=np.int64)
        self.arrived: tuple[str, ...] = ()
        """Whose numbers arrived in time."""

    def _require(self, names: Iterable[str], what: str) -> None:
        if len(set(names)) < self._setting.threshold:
            raise MechanismHalted(
                f"{what} from fewer than {self._setting.threshold} clients: the sum is not opened, "
                "and the loss of the round is spent"
            )

    def collect_keys(self, adverts: Mapping[str, Advert]) -> dict[str, Advert]:
        """Return the keys that every client is to see.

        Parameters
        ----------
        adverts : mapping
            Those that arrived.

        Returns
        -------
        dict
        """
        good = sorted(name for name, one in adverts.items() if self._setting.is_good(name, one))
        self._require(good, "keys")
        self._adverts = {name: adverts[name] for name in good}
        return dict(self._adverts)

    def route(self, messages: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, bytes]]:
        """Return the inbox of each client that sent its shares.

        Parameters
        ----------
        messages : mapping
            By sender, then by receiver.

        Returns
        -------
        dict
            By receiver, then by sender.
        """
        peers = set(self._adverts)
        good = {
            name: sent
            for name, sent in messages.items()
            if name in peers
            and set(sent) == peers - {name}
            and all(isinstance(one, bytes) and len(one) == _MESSAGE_BYTES for one in sent.values())
        }
        self._require(good, "shares")
        self._shared = set(good)
        return {to: {name: sent[to] for name, sent in good.items() if name != to} for to in good}

    def collect(self, masked: Mapping[str, Any]) -> tuple[str, ...]:
        """Add up masked numbers, and return whose arrived: the list to be confirmed.

        Parameters
        ----------
        masked : mapping of str to array of int64
            What arrived in time. What comes later is thrown away.

        Returns
        -------
        tuple of str
        """
        fits = {
            name: one
            for name, one in masked.items()
            if name in self._shared
            and isinstance(one, np.ndarray)
            and one.dtype == np.int64
            and one.shape == self._sum.shape
        }
        self._require(fits, "numbers")
        for one in fits.values():
            self._sum = self._sum + one
        self.arrived = tuple(sorted(fits))
        return self.arrived

    def open(self, answers: Mapping[str, Mapping[str, Share]]) -> Numbers:
        """Take all masks off the sum and return it.

        Parameters
        ----------
        answers : mapping
            What clients gave in their last step, by client.

        Returns
        -------
        array of int64
            The sum of the numbers of ``arrived``, modulo 2^64.

        Raises
        ------
        MechanismHalted
            If too few clients answered, or too many of them lied.
        """
        self._require(set(answers) & set(self.arrived), "answers")
        setting = self._setting
        total = self._sum.copy()
        for name in sorted(self._shared):
            wanted = "self-mask" if name in self.arrived else "key"
            shares = {
                setting.names.index(holder): given[name].value
                for holder, given in answers.items()
                if holder in self.arrived and _is_share(given.get(name), wanted)
            }
            self._require(map(str, shares), f"shares of a {wanted}")
            secret = _join_some(shares, setting.threshold)
            if wanted == "self-mask":
                total -= mask_numbers(secret, setting.size)
                continue
            private = X25519PrivateKey.from_private_bytes(secret)
            for other in self.arrived:
                shared = _agree(private, self._adverts[other].masks, setting.text("mask"))
                pairwise = mask_numbers(shared, setting.size)
                # What those who arrived added or subtracted for the one who did not.
                total = total - pairwise if other < name else total + pairwise
        return total
