# SPDX-License-Identifier: Apache-2.0
"""What is on a wire gives the same over letters as in a simulation: steps, rules and sums.

Parties are lost between messages, and restarted in the middle of a round.
"""

import asyncio
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.aggregation.secure import SecureSum
from archipel.aggregation.summation import Total
from archipel.conformance import check_over_the_wire
from archipel.core import places
from archipel.engines.engine import Cause
from archipel.engines.network.coding import Coding
from archipel.engines.network.engine import NetworkEngine
from archipel.engines.network.fitting import fitted
from archipel.engines.network.in_process import Circle
from archipel.engines.network.letters import Letter, decode, encode
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.transport import Refused
from archipel.engines.plan import Plan
from archipel.exchange.uploads import Chosen
from archipel.graphs import topology
from archipel.tree import leaves, tree_map
from archipel.wire.wire import Wire
from problems import classification, network

PARTIES = 5
DATA = classification(PARTIES, 4, 3, 0)
FEDAVG = ar.FedAvg(lr=0.1, batch_size=4)
SCALE = 2.0**32  # of numbers that are added up as whole ones
PRIME, BASE = 2**31 - 1, 7


@dataclass(frozen=True)
class Int8:
    """Eight bits a number, with a dither that both ends know; what is lost goes with the next."""

    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def init(self, form):
        return tuple(map(torch.zeros_like, form))

    def send(self, me, upload, own):
        whole = tuple(map(torch.add, upload, own))
        scales = tuple(x.abs().amax(dim=-1, keepdim=True) / 120 + 1e-12 for x in whole)
        coded = tuple(
            (x / scale + self.dither(me, x)).floor().to(torch.int8)
            for x, scale in zip(whole, scales, strict=True)
        )
        payload = tuple(zip(coded, scales, strict=True))
        return payload, tuple(map(torch.sub, whole, self.receive(me, payload, upload)))

    def receive(self, them, payload, form):
        return tuple(
            (code.to(scale.dtype) + 0.5 - self.dither(them, code)) * scale
            for code, scale in payload
        )

    def dither(self, who, x):
        return who.uniform(x[(0,) * len(who.lead)].numel(), "dither").reshape(x.shape)

    def bound(self, before):
        return None


@dataclass(frozen=True)
class Largest:
    """The largest numbers alone, and where they stand."""

    count: int = 3
    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False

    def init(self, form):
        return None

    def send(self, me, upload, own):
        flat = tuple(x.reshape(*me.lead, -1) for x in upload)
        at = tuple(x.abs().topk(min(self.count, x.shape[-1]), dim=-1).indices for x in flat)
        return tuple((i, x.gather(-1, i)) for i, x in zip(at, flat, strict=True)), None

    def receive(self, them, payload, form):
        return tuple(
            torch.zeros(*i.shape[:-1], one.numel(), dtype=one.dtype)
            .scatter(-1, i, values)
            .reshape(*i.shape[:-1], *one.shape)
            for (i, values), one in zip(payload, form, strict=True)
        )

    def bound(self, before):
        return before


@dataclass(frozen=True)
class Noise:
    """A little noise."""

    sigma: float = 0.01
    linear: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def init(self, form):
        return None

    def send(self, me, upload, own):
        return tuple(x + self.sigma * me.noise(x) for x in upload), None

    def receive(self, them, payload, form):
        return tuple(payload)

    def bound(self, before):
        return None


@dataclass(frozen=True)
class WithoutTheLargest:
    """A rule: the upload with the largest norm has no say."""

    def __call__(self, uploads):
        rows = uploads.stack()
        norms = sum(leaf.flatten(1).square().sum(dim=1) for leaf in leaves(rows))
        at = norms.argsort()[:-1].sort().values
        return Chosen(uploads, tree_map(lambda leaf: leaf[at], rows), at)


def power(base, exponent):
    """base^exponent modulo a prime, number by number."""
    flat = zip(base.flatten().tolist(), exponent.flatten().tolist(), strict=True)
    return torch.tensor([pow(b, e, PRIME) for b, e in flat]).view(base.shape)


def mask(key, size):
    """A stream of whole numbers that whoever has the key can draw."""
    random = torch.Generator().manual_seed(key)
    return torch.randint(-(2**62), 2**62, (size,), generator=random)


@dataclass(frozen=True)
class Masked:
    """A sum under masks that cancel: keys for all, masked uploads, keys with those that are lost.

    A toy: the numbers are far too small to hide anything, and one that is lost late is not mended.
    """

    def party(self, me, x, number):
        flat = torch.cat([v.reshape(*me.lead, -1) for v in leaves(x)], dim=-1)
        secret = me.secret(f"key {number}")[..., :3].long() @ torch.tensor([1, 256, 65536])
        mine = power(torch.full_like(secret, BASE), secret)[..., None]
        everybody = yield torch.cat([me.number, mine], dim=-1)  # [m, 2] to all
        numbers, keys = everybody.unbind(dim=-1)  # [..., m]
        wide = (*me.lead, keys.shape[-1])
        shared = power(keys.expand(wide), secret[..., None].expand(wide))
        signs = torch.sign(numbers - me.number).expand(wide)
        masked = (flat * SCALE).round().long().reshape(-1, flat.shape[-1])
        each = (masked, shared.view(-1, wide[-1]), signs.reshape(-1, wide[-1]))
        for row, pairs, sides in zip(*each, strict=True):
            for key, sign in zip(pairs.tolist(), sides.tolist(), strict=True):
                row += sign * mask(key, len(row))
        there = yield masked.view(flat.shape)
        is_lost = (numbers[..., None] != there[..., None, :]).all(dim=-1)
        return shared * signs.abs() * is_lost

    def server(self, uploads, form, number):
        everybody = uploads.stack()  # [m, 2]
        uploads = yield everybody
        there, masked = uploads.present, uploads.stack()
        total = masked.sum(dim=0)
        uploads = yield there
        for i, keys in zip(uploads.present, uploads.stack(), strict=True):
            for j, key in zip(everybody[:, 0], keys.tolist(), strict=True):
                total = total - (key > 0) * torch.sign(j - i) * mask(key, len(total))
        sums = (total / SCALE).split([leaf.numel() for leaf in leaves(form)])
        parts = zip(sums, leaves(form), strict=True)
        return Total(tuple(x.view(one.shape).to(one.dtype) for x, one in parts), there)


WIRES = {
    "steps": Wire(up=(Int8(),)),
    "two steps": Wire(up=(Noise(), Int8())),
    "down": Wire(up=(Largest(),), down=(Largest(40),)),
    "rule": Wire(rule=WithoutTheLargest()),
    "rule after steps": Wire(up=(Int8(),), rule=WithoutTheLargest()),
    "sum": Wire(sum=Masked()),
    "sum of noisy uploads": Wire(up=(Noise(),), sum=Masked()),
    "secure": Wire(sum=SecureSum()),
    "secure, of noisy uploads": Wire(up=(Noise(),), sum=SecureSum(bits=64)),
}
MESSAGES = {name: 5 if "secure" in name else 3 if "sum" in name else 1 for name in WIRES}


def party_of(k, wire, algorithm=FEDAVG, **options):
    data, options = DATA.select(np.array([k])), {"private": False, **options}
    return PartyState(
        algorithm, data, network(4, 3), party=k, wire=wire, parties=PARTIES, study="s", **options
    )


class Federation:
    """An engine and its parties; letters pass as bytes."""

    def __init__(self, wire, algorithm=FEDAVG):
        self.wire, self.algorithm, model = wire, algorithm, network(4, 3)
        boxes, anatomy = fitted(algorithm, DATA, model, 0, 0, wire, PARTIES)
        self.engine = NetworkEngine(boxes, model, anatomy, PARTIES, "s")
        self.parties = [party_of(k, wire, algorithm) for k in range(PARTIES)]

    async def round(self, t, cohort, lost=None, restarts=()):
        """`lost`: party -> the message before which it goes; some restart at every message."""
        running = asyncio.create_task(self.engine.round(t, cohort))
        while not running.done():
            await asyncio.sleep(0.001)
            for k in cohort:
                sealed = self.engine.work_for(k)
                if sealed is None:
                    continue
                letter = decode(b"".join(sealed.pieces))
                if (lost or {}).get(k) == letter["number"]:
                    self.engine.lose(k, Cause("left"))
                else:
                    self.engine.upload(k, self.answer(k, letter, k in restarts))
        outcome = await running
        for k in cohort:
            self.parties[k].verdict(t, k in outcome.arrived)
        return outcome

    def answer(self, k, letter, restarts=False):
        asked = (letter["round"], letter["number"], list(letter.arrays), letter["attempt"])
        if restarts:
            self.restart(k)
        arrays, gradients = self.parties[k].work(*asked)
        if restarts:
            self.restart(k)
            again, _ = self.parties[k].work(*asked)
            assert all(map(torch.equal, arrays, again))
        fields = {name: letter[name] for name in ("study", "round", "number", "attempt")}
        told = {"n": self.parties[k].n, "gradients": gradients, "answers": letter.name}
        upload = Letter("upload", {**fields, **told, "log": None, "signature": b""}, arrays)
        return decode(encode(upload))

    def restart(self, k):
        kept = self.parties[k].state()
        self.parties[k] = party_of(k, self.wire, self.algorithm)
        self.parties[k].restore(kept)


def close(found, expected):
    torch.testing.assert_close(list(found), list(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", WIRES)
def test_a_wire_over_letters_is_that_of_a_simulation(name):
    """With a party that is lost before the last message but one, and one that restarts."""
    wire, last = WIRES[name], MESSAGES[name] - 1
    rounds = [(range(5), {}, ()), ([0, 2, 3, 4], {3: max(0, last - 1)}, (2,)), (range(5), {}, (0,))]
    if last:
        rounds.append((range(5), {1: last}, (4,)))
    with ar.LocalEngine(
        FEDAVG, DATA, network(4, 3), plan=Plan("one", 1, 1), wire=wire, protocols=True
    ) as engine:
        simulated = [
            engine.round(t, list(ids), answers=np.array([lost.get(k, 9) for k in ids]))
            for t, (ids, lost, _) in enumerate(rounds)
        ]
        shared, own = leaves(engine.shared), leaves(engine.own_states(range(PARTIES)))

    async def play():
        federation = Federation(wire)
        outcomes = [
            await federation.round(t, list(ids), lost, restarts)
            for t, (ids, lost, restarts) in enumerate(rounds)
        ]
        return federation, outcomes

    federation, outcomes = asyncio.run(asyncio.wait_for(play(), 600))

    close(leaves(federation.engine.shared), shared)
    for k, party in enumerate(federation.parties):
        close(leaves(party.own.state), [leaf[k] for leaf in own])
    for found, expected in zip(outcomes, simulated, strict=True):
        assert found.arrived.tolist() == expected.arrived.tolist()
        assert (found.up, found.down) == (expected.up, expected.down)


@pytest.mark.parametrize("algorithm", [FEDAVG, ar.Scaffold(lr=0.05, batch_size=4)], ids=repr)
def test_a_coded_upload_takes_the_bytes_that_its_payload_has(algorithm):
    federation = Federation(WIRES["steps"], algorithm)
    outcome = asyncio.run(federation.round(0, range(PARTIES)))

    vectors = len(leaves(federation.engine.anatomy.messages[0].upload))
    assert outcome.up == PARTIES * vectors * (federation.engine.model.p + 8 * 9)
    assert outcome.down == PARTIES * vectors * 8 * federation.engine.model.p


def test_models_of_their_own_are_made_of_what_came_down_the_wire():
    check_over_the_wire(ar.PeFLL(local_steps=3, batch_size=4, size=4, hidden=5), WIRES["steps"])
    check_over_the_wire(ar.FedRep(lr=0.05, batch_size=4), Wire(down=(Largest(10),)))


# -- what does not fit -----------------------------------------------------------------------------


def test_a_payload_that_cannot_be_undone_is_refused_and_the_round_goes_on():
    federation = Federation(Wire(up=(Largest(),)))

    async def play():
        engine = federation.engine
        running = asyncio.create_task(engine.round(0, [0, 1]))
        while engine.opened is None:
            await asyncio.sleep(0)
        letter = decode(b"".join(engine.work_for(1).pieces))
        upload = federation.answer(1, letter)
        at, values, *rest = upload.arrays
        for bad in ([at + 10**6, values, *rest], [at - 10**6, values, *rest]):
            with pytest.raises(Refused, match="no step of the wire could have sent"):
                engine.upload(1, Letter("upload", upload.fields, bad))
        for bad in ([at.int(), values, *rest], [at, values[:2], *rest], [values, at, *rest], [at]):
            with pytest.raises(Refused, match="another form"):
                engine.upload(1, Letter("upload", upload.fields, bad))
        engine.upload(1, Letter("upload", upload.fields, [at, values * torch.inf, *rest]))
        engine.upload(0, federation.answer(0, decode(b"".join(engine.work_for(0).pieces))))
        return await running

    outcome = asyncio.run(asyncio.wait_for(play(), 600))
    assert outcome.arrived.tolist() == [0]
    assert outcome.missing == {1: Cause("diverged")}


def test_a_message_that_grows_has_room_for_the_round_and_for_no_more():
    federation = Federation(WIRES["sum"])
    engine, party = federation.engine, federation.parties[0]
    assert [any(grows) for grows in engine.anatomy.messages[0].grows] == [False, True]
    assert [any(grows) for grows in engine.anatomy.messages[2].grows] == [True, False]
    first = leaves(engine.boxes.broadcast(engine.shared, 0))
    (mine,), _ = party.work(0, 0, first)

    keys = torch.stack([mine, *(mine + k for k in range(1, PARTIES + 1))])
    for bad in (keys, keys[:, :1], keys.int(), keys[0]):
        with pytest.raises(Refused, match="reply 1 has another form"):
            party.work(0, 1, [bad])
    party.work(0, 1, [keys[:3]])

    async def play():
        running = asyncio.create_task(engine.round(0, [0, 1, 2]))
        while not running.done():
            await asyncio.sleep(0.001)
            for k in (0, 1, 2):
                sealed = engine.work_for(k)
                if sealed is None:
                    continue
                letter = decode(b"".join(sealed.pieces))
                upload = federation.answer(k, letter)
                if letter["number"] == 2 and k == 0:
                    with pytest.raises(Refused, match="another form"):
                        engine.upload(k, Letter("upload", upload.fields, [torch.zeros(4).long()]))
                engine.upload(k, upload)
        return await running

    federation.parties[0] = party_of(0, WIRES["sum"])
    outcome = asyncio.run(asyncio.wait_for(play(), 600))
    assert outcome.arrived.tolist() == [0, 1, 2]


@dataclass(frozen=True)
class Rows:
    """A server that reads everybody's last words by name."""

    def init(self, w):
        return w, None

    def party(self, me, w, own):
        mine = yield me.grad(w)
        return mine + me.number, None

    def server(self, w, uploads):
        first, among = uploads.stack(), uploads.present
        uploads = yield ar.Each(first)
        told = uploads.stack() - first[places(uploads.present, among)]  # everybody's number
        return w + (uploads.n * uploads.present) @ told


def test_rows_are_those_of_the_parties_that_are_there():
    with ar.LocalEngine(Rows(), DATA, network(4, 3), plan=Plan("one", 1, 1)) as engine:
        engine.round(0, range(5), answers=np.array([2, 1, 2, 2, 1]))
        simulated = engine.vector()
    federation = Federation(Wire(), Rows())

    outcome = asyncio.run(federation.round(0, range(5), {1: 1, 4: 1}))

    close([simulated], [network(4, 3).w + sum(k * k * DATA.n[k] for k in (0, 2, 3))])
    close([federation.engine.vector()], [simulated])
    assert outcome.arrived.tolist() == [0, 2, 3]
    assert federation.engine.points == {k: int(DATA.n[k]) for k in (0, 2, 3)}


# -- secrets and noise -----------------------------------------------------------------------------


def begun():
    """A party that has answered the first two messages of a masked sum, with what it was sent."""
    party = party_of(0, WIRES["sum"], rounds=3)
    first = leaves(party.anatomy.sent)
    (mine,), _ = party.work(0, 0, first, attempt=1)
    keys = [torch.stack([mine, mine + 1, mine + 2])]
    masked, _ = party.work(0, 1, keys, attempt=1)
    return party, first, mine, keys, masked


def test_a_round_that_is_begun_anew_has_fresh_secrets_from_its_first_message_on():
    party, first, mine, keys, masked = begun()
    again, _ = party.work(0, 0, [x.clone() for x in first], attempt=1)
    assert torch.equal(again[0], mine)  # what was sent is sent again

    with pytest.raises(Refused, match="is of another attempt than the messages before"):
        party.work(0, 1, keys, attempt=2)
    with pytest.raises(Refused, match="message 1: came again with other contents"):
        party.work(0, 0, [x + 1 for x in first], attempt=2)
    (other,), _ = party.work(0, 0, first, attempt=2)
    assert not torch.equal(other, mine)

    with pytest.raises(Refused, match="attempt 1 came after attempt 2"):
        party.work(0, 2, [torch.tensor([0, 1])], attempt=1)
    with pytest.raises(Refused, match="message 3 came before the ones before"):
        party.work(0, 2, [torch.tensor([0, 1])], attempt=2)
    anew, _ = party.work(0, 1, keys, attempt=2)
    assert not torch.equal(anew[0], masked[0])


def test_under_one_key_no_message_is_answered_twice_with_other_contents():
    party, _, _, keys, masked = begun()
    other = party_of(0, WIRES["sum"], rounds=3)
    other.restore(party.state())  # another process knows it as well
    for each in (party, other):
        with pytest.raises(Refused, match="message 2: came again with other contents"):
            each.work(0, 1, [keys[0][:2]], attempt=1)
        again, _ = each.work(0, 1, keys, attempt=1)
        assert torch.equal(again[0], masked[0])
        (revealed,), _ = each.work(0, 2, [torch.tensor([0, 1])], attempt=1)
        with pytest.raises(Refused, match="message 3: came again with other contents"):
            each.work(0, 2, [torch.tensor([0, 2])], attempt=1)
        assert (revealed > 0).tolist() == [False, False, True]


def test_a_round_that_a_version_without_attempts_left_goes_on():
    party, model = party_of(0, None), network(4, 3)
    sent, _ = party.work(0, 0, [model.w], attempt=7)
    kept = party.state()
    del kept["turn.attempt"]
    other = party_of(0, None)
    other.restore(kept)
    assert torch.equal(other.work(0, 0, [model.w], attempt=8)[0][0], sent[0])


def test_a_round_is_begun_anew_a_limited_number_of_times():
    party, first, *_ = begun()
    with pytest.raises(Refused, match="came again too often"):
        for attempt in range(2, 100):
            party.work(0, 0, first, attempt=attempt)
    assert attempt < 30


def test_noise_between_institutions_is_not_of_the_seed():
    wire = Wire(up=(Noise(),))
    one, other, seeded = (party_of(0, wire, private=yes) for yes in (True, True, False))
    first = leaves(one.anatomy.sent)
    (sent, *_), _ = one.work(0, 0, first)
    assert not torch.equal(other.work(0, 0, first)[0][0], sent)

    noise = (sent - seeded.work(0, 0, first)[0][0]) / Noise().sigma
    assert 0 < noise.abs().max() < 12
    assert one.turn.secrets is not None
    assert not one.turn.hides


@dataclass(frozen=True)
class Twice:
    """Two noisy messages, of which the second depends on the reply."""

    def init(self, w):
        return w, None

    def party(self, me, w, own):
        start = me.grad(w) + me.noise(w)
        reply = yield start
        return start + reply + me.noise(w), None

    def server(self, w, uploads):
        uploads = yield uploads.mean()
        return w - uploads.mean()


def test_noise_is_the_same_for_the_same_words_and_another_for_others():
    party, model = party_of(0, None, Twice(), private=True), network(4, 3)
    (start,), _ = party.work(0, 0, [model.w])
    zero = [torch.zeros_like(start)]
    (after,), _ = party.work(0, 1, zero)
    kept = party.state()
    forgotten = {key: x for key, x in kept.items() if ".1." not in key and "turn.own" not in key}
    forgotten["turn.gradients"] = kept["turn.gradients"][:1]

    restarted = party_of(0, None, Twice(), private=True)
    restarted.restore(forgotten)
    (same,), _ = restarted.work(0, 1, zero)
    (other,), _ = party.work(0, 1, [torch.ones_like(start)])

    assert torch.equal(same, after)
    assert (other - 1 - after).abs().min() > 0  # its own noise
    assert torch.equal(party.turn.outbox[0][0], start)


# -- peers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["steps", "two steps"])
def test_peers_over_letters_are_those_of_a_simulation(name):
    check_over_the_wire(ar.DSGD(lr=0.1, batch_size=4), WIRES[name])


@dataclass(frozen=True)
class Hidden:
    """Peers whose every vector has noise, and a secret behind it."""

    def init(self, w):
        return w

    def party(self, me, x):
        return me.mix(x + me.noise(x) + me.secret("pad")[..., :1].to(x.dtype))


def test_a_peers_secrets_are_the_same_after_a_crash_and_others_in_the_next_round():
    def mixed(party, t):
        found = []
        party.alone(t, lambda x: found.append((x, party.state())) or x)
        return found[0]

    party = party_of(0, None, Hidden(), private=True)
    sent, kept = mixed(party, 0)
    again, *others = (party_of(0, None, Hidden(), private=True) for _ in range(3))
    for each in (again, others[0]):
        each.restore(kept)

    assert torch.equal(mixed(again, 0)[0], sent)
    assert "secrets" not in again.state()  # the round is over
    for other, t in ((others[0], 1), (others[1], 0)):
        assert not torch.equal(mixed(other, t)[0], sent)


def test_a_peer_has_its_secrets_on_the_disk_before_anything_leaves():
    async def play():
        peers = Circle(Hidden(), DATA, network(4, 3), topology("ring", PARTIES), 2)
        kept = []
        for k, disk in enumerate(peers.disks):
            keep = disk.keep

            def watched(name, tensors, k=k, keep=keep):
                kept.append((k, name.partition("-")[0], "secrets" in tensors))
                keep(name, tensors)

            disk.keep = watched
            peers.begin(k)
        await peers.done()
        return kept

    kept = asyncio.run(asyncio.wait_for(play(), 600))
    for k in range(PARTIES):
        mine = [entry[1:] for entry in kept if entry[0] == k]
        assert mine[0] == ("own", True)
        assert mine[-1] == ("own", False)


def circle(rounds, **options):
    return Circle(
        ar.DSGD(lr=0.1, batch_size=4), DATA, network(4, 3), topology("ring", PARTIES), rounds,
        wire=WIRES["steps"], **options,
    )  # fmt: skip


def test_a_peer_that_restarts_sends_the_payload_that_it_sent():
    async def play(kill):
        peers = circle(3, silence=5.0)
        restarted = []

        def watch(k, report):
            if kill and k == 2 and report.round == 1 and not restarted:
                restarted.append(asyncio.create_task(again()))

        async def again():
            await peers.end(2)
            peers.begin(2)

        peers.watch = watch
        for k in range(PARTIES):
            peers.begin(k)
        while kill and not restarted:
            await asyncio.sleep(0.005)
        await asyncio.gather(*restarted)
        return await peers.done(), peers.reports

    (expected, reports), (found, _) = (
        asyncio.run(asyncio.wait_for(play(kill), 600)) for kill in (False, True)
    )
    for mine, theirs in zip(found, expected, strict=True):
        close(leaves(mine), leaves(theirs))
    assert reports[0][0].up == 2 * (network(4, 3).p + 8 * 9)


def test_peers_at_their_own_pace_send_payloads():
    async def play():
        peers = circle(3, asynchronous=True)
        for k in range(PARTIES):
            peers.begin(k)
        return await peers.done(), peers.reports

    states, reports = asyncio.run(asyncio.wait_for(play(), 600))
    size = network(4, 3).p
    assert all(bool(torch.isfinite(leaf).all()) for state in states for leaf in leaves(state))
    told = [report for each in reports for report in each]
    assert sum(report.up for report in told) > 0
    assert all(report.up * 8 * size == report.down * (size + 8 * 9) for report in told)


def test_a_peers_payload_that_cannot_be_undone_is_refused():
    party = party_of(0, Wire(up=(Largest(8),)), ar.DSGD(lr=0.1))
    coding, like = Coding.of(party.boxes, 0), network(4, 3).w
    at, values, *rest = leaves(coding.form(0, like))
    assert coding.undone(1, (0, 0), [at, values, *rest], like).shape == like.shape
    for bad in ([at + 10**6, values, *rest], [at, values * torch.nan, *rest]):
        with pytest.raises(Refused, match=r"no step of the wire|not finite"):
            coding.undone(1, (0, 0), bad, like)
    with pytest.raises(Refused, match="exchange 2 is none of the algorithm's"):
        coding.form(1, like)
