"""The attacks of test_canaries.py on studies between institutions: over letters, with their noise.

What is attacked is what leaves: every upload by record and where nobody is trusted, and the models
where the coordinator adds the noise. Parties and coordinator draw as they do between institutions,
on a grid, of secrets; only the secrets are fixed here, so that a test says the same every time.

By record a party has many canaries: each of its records moves a coordinate of its own, or is
nothing, so that the clipped gradients of all are seen apart. By party, every round is an audit by
itself, of parties that pull up or down: what is claimed is one round's.
"""

import asyncio
from dataclasses import dataclass, field
from hashlib import sha256

import pytest
import torch
from auditing import DELTA, FAR, Asking, Found, bound, claim, likelier, rate_of
from test_canaries import everybody, halved, holds, is_found, silent, unbounded, unclipped

import archipel as ar
from archipel.engines import protection
from archipel.engines.network.in_process import play
from archipel.engines.party import LocalParty
from archipel.privacy.promise import Privacy
from archipel.privacy.sources import Keystream
from problems import linear

CLIP = 0.5
SECRETS = LocalParty._secrets_for


@pytest.fixture(autouse=True)
def fixed(monkeypatch):
    """Secrets of a party and round, and the coordinator's key, are always the same."""
    monkeypatch.setattr(LocalParty, "_secrets_for", partly_fixed(lambda me: (me.round, me.ids)))
    monkeypatch.setattr(protection, "System", lambda: Keystream(bytes(32)))


def partly_fixed(name):
    def secrets_for(me, purpose):
        if me.secrets is None:
            drawn = bytearray(sha256(repr(name(me)).encode()).digest())
            me.secrets = torch.frombuffer(drawn, dtype=torch.uint8).view(1, 32)
        return SECRETS(me, purpose)

    return secrets_for


def once(patch):
    """The secrets of all rounds are those of the first: its noise comes again."""
    patch.setattr(LocalParty, "_secrets_for", partly_fixed(lambda me: me.ids))


def played(algorithm, data, model, rounds, promise):
    cohorts = [range(data.training)] * rounds
    algorithm.seen.clear()
    found = asyncio.run(play(algorithm, data, model, cohorts, privacy=promise, private=True))
    seen = torch.stack(algorithm.seen[-rounds:])  # not what was tried before
    return seen, found


# -- by record -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AskingAll(Asking):
    """Asks for gradients at a point that is far in every direction."""

    def party(self, me, w, _):
        sign = (-1) ** me.round
        return (sign * me.grad(w + sign * FAR, me.batch(self.batch_size)),), None


def of_records(noise, rounds, batch_size=None, parties=3, n=1000):
    """Audit DP-SGD at sites that have n records each, of which every other one is a canary."""
    x = torch.diag((torch.arange(n) % 2 == 0).double())
    y = torch.zeros(n).double()
    data = ar.Federation.from_arrays([x] * parties, [y] * parties, test=0.0)
    promise = Privacy("record", noise=noise, clip=CLIP)
    seen, found = played(AskingAll(batch_size=batch_size), data, linear(n), rounds, promise)
    q = rate_of(batch_size, n)
    gradients = seen.reshape(rounds, 1, parties * n).numpy() * q * n / CLIP
    scores = likelier(gradients, q, noise)
    kept = found.party_states[0].kept
    return Found(bound(scores[::2], scores[1::2], DELTA), claim(kept, rounds, DELTA))


SAMPLES = {"noise": 0.8, "rounds": 3, "batch_size": 0.5}
ALL = {"noise": 1.0, "rounds": 2}


@pytest.mark.parametrize("how", [SAMPLES, ALL], ids=["Poisson samples", "all"])
def test_by_record_no_more_is_found_than_is_claimed(how):
    holds(of_records(**how))


@pytest.mark.parametrize(
    ("how", "breaks"),
    [
        (SAMPLES, silent),
        (SAMPLES, halved),
        (SAMPLES, unclipped),
        (SAMPLES, everybody),
        (ALL, halved),
        (ALL, once),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_by_record_what_is_broken_is_found(how, breaks, monkeypatch):
    breaks(monkeypatch)
    is_found(of_records(**how))


# -- by party --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pulling(ar.FedAvg):
    """FedAvg whose server keeps what it sees, and stays where it is."""

    alone: bool = True  # whether it looks at single uploads
    seen: list = field(default_factory=list, compare=False)

    def server(self, w, uploads):
        self.seen.append(uploads.stack() if self.alone else uploads.mean())
        return w


def of_rounds(trust, rounds=50, parties=24, noise=2.0):
    """Audit each round: of parties that pull a coordinate of their own, every other one down."""
    xs = list(torch.eye(parties).double()[:, None])
    ys = [torch.tensor([FAR if k % 2 == 0 else -FAR]).double() for k in range(parties)]
    data = ar.Federation.from_arrays(xs, ys, test=0.0)
    promise = Privacy("party", noise=noise, clip=CLIP, trust=trust)
    algorithm = Pulling(1.0, batch_size=None, alone=trust == "nobody")
    seen, found = played(algorithm, data, linear(parties), rounds, promise)
    scores = (seen if trust == "server" else seen.diagonal(dim1=1, dim2=2)).numpy()
    kept = found.party_states[0].kept
    inside, outside = scores[:, ::2].reshape(-1), scores[:, 1::2].reshape(-1)
    return Found(bound(inside, outside, DELTA), claim(kept, 1, DELTA))


def silent_coordinator(patch):
    patch.setattr(protection.grid, "gaussian", lambda values, scale, source: values)


def halved_coordinator(patch):
    gaussian = protection.grid.gaussian
    patch.setattr(
        protection.grid, "gaussian", lambda values, *of: (values + gaussian(values, *of)) / 2
    )


BROKEN = {"server": (silent_coordinator, halved_coordinator), "nobody": (silent, halved)}
TRUSTED = [pytest.param("server", marks=pytest.mark.slow), "nobody"]


@pytest.mark.parametrize("trust", TRUSTED)
def test_by_party_no_more_is_found_than_is_claimed(trust):
    holds(of_rounds(trust, noise=1.5))


@pytest.mark.parametrize("trust", TRUSTED)
def test_by_party_what_is_broken_is_found(trust, monkeypatch):
    silent, halved = BROKEN[trust]
    for breaks in (silent, unbounded):
        with monkeypatch.context() as patch:
            breaks(patch)
            is_found(of_rounds(trust, 16, parties=12))
    halved(monkeypatch)
    is_found(of_rounds(trust))
