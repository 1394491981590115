# SPDX-License-Identifier: Apache-2.0
"""Steps over letters and over gRPC: the simulation's numbers, and the bytes that really pass."""

import asyncio

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.conformance import check_over_the_wire
from archipel.engines.network.in_process import play
from archipel.engines.plan import Plan, threads
from archipel.exchange.varying import size_of, travelling
from archipel.federation.coordinator.coordinator import Coordinator
from archipel.federation.site import service
from archipel.federation.site.site import Site
from archipel.tree import leaves
from archipel.wire import (
    Clip,
    Entropy,
    Float16,
    LowRank,
    PowerSGD,
    Quantise,
    RandomK,
    RandomMask,
    Rotate,
    Sign,
    Subsample,
    TopK,
)
from archipel.wire.wire import Wire
from network.processes import Drill
from network.test_proofs_grpc import (
    NAMES,
    ROUNDS,
    assert_bytes,
    assert_same,
    between_sites,
    study_of,
)
from network.test_wire import DATA, PARTIES, Federation, party_of
from problems import network

FEDAVG, SCAFFOLD = ar.FedAvg(lr=0.1, batch_size=4), ar.Scaffold(lr=0.05, batch_size=4)
ALL = (Rotate(), Subsample(0.5), Quantise(4), Entropy())
STEPS = [
    (Clip(1.0),), (Entropy(),), (Float16(),), (LowRank(0.5),), (PowerSGD(1),), (Quantise(4),),
    (RandomK(0.5),), (RandomMask(0.5),), (Rotate(),), (Sign(),), (Subsample(0.5),), (TopK(0.2),),
    (Sign(), Entropy()), ALL,
]  # fmt: skip
FEEDBACK = [(TopK(0.2), Entropy()), (Sign(),), (PowerSGD(1),), (RandomK(0.3), Quantise(4))]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small matrices are quicker alone."""
    with threads(1):
        yield


# -- over letters ----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", [FEDAVG, SCAFFOLD], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("steps", STEPS, ids=repr)
def test_steps_over_letters_are_those_of_a_simulation(steps, algorithm):
    """With equal bytes; a party is lost in the second round, and one restarts at every message."""
    wire = Wire(up=steps)
    rounds = [(range(5), {}, ()), ([0, 2, 3, 4], {3: 0}, (2,)), (range(5), {}, (0, 4))]
    if algorithm is SCAFFOLD and hasattr(steps[0], "restrict"):
        with pytest.raises(ar.ArchipelError, match=r"wire.up: .* restricts training"):
            Federation(wire, algorithm)
        return
    model = network(4, 3)
    with ar.LocalEngine(algorithm, DATA, model, plan=Plan("one", 1, 1), wire=wire) as engine:
        simulated = [
            engine.round(t, list(ids), answers=np.array([lost.get(k, 9) for k in ids]))
            for t, (ids, lost, _) in enumerate(rounds)
        ]
        shared, own = leaves(engine.shared), leaves(engine.own_states(range(PARTIES)))

    async def play():
        federation = Federation(wire, algorithm)
        return federation, [
            await federation.round(t, list(ids), lost, restarts)
            for t, (ids, lost, restarts) in enumerate(rounds)
        ]

    federation, outcomes = asyncio.run(asyncio.wait_for(play(), 60))
    found = list(leaves(federation.engine.shared))
    torch.testing.assert_close(found, list(shared), rtol=1e-6, atol=1e-6)
    for k, party in enumerate(federation.parties):
        mine, theirs = leaves(party.own.state), [leaf[k] for leaf in own]
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
    for found, expected in zip(outcomes, simulated, strict=True):
        assert found.arrived.tolist() == expected.arrived.tolist()
        assert (found.up, found.down) == (expected.up, expected.down)


@pytest.mark.parametrize("steps", [(Float16(),), (Rotate(), Quantise(8), Entropy())], ids=repr)
def test_both_ways_and_between_peers(steps):
    check_over_the_wire(FEDAVG, Wire(up=ALL, down=steps))
    check_over_the_wire(ar.DSGD(lr=0.1, batch_size=4), Wire(up=steps))


@pytest.mark.parametrize("steps", FEEDBACK, ids=repr)
def test_what_was_left_out_is_added_once_whatever_a_party_is_asked_again(steps):
    """Asked twice, restarted, or told that its upload did not count."""
    wire = Wire(up=steps)
    party = party_of(1, wire)
    model = leaves(party.anatomy.sent)

    def errors(each):
        return [leaf.clone() for leaf in leaves(each.own.state)]

    before = errors(party)
    sent, _ = party.work(0, 0, model, attempt=1)
    again, _ = party.work(0, 0, model, attempt=1)
    other = party_of(1, wire)
    other.restore(party.state())
    restarted, _ = other.work(0, 0, model, attempt=1)
    for each in (again, restarted):
        assert len(each) == len(sent) and all(map(torch.equal, sent, each))

    party.verdict(0, False)
    assert all(map(torch.equal, errors(party), before))
    other.verdict(0, True)
    kept = errors(other)
    assert any(bool(leaf.any()) for leaf in kept)
    other.verdict(0, True)
    assert all(map(torch.equal, errors(other), kept))

    third = party_of(1, wire)
    third.restore(other.state())
    assert all(map(torch.equal, errors(third), kept))
    one, two = (each.work(1, 0, model, attempt=1)[0] for each in (other, third))
    assert all(map(torch.equal, one, two))


@pytest.mark.parametrize("steps", FEEDBACK, ids=repr)
def test_uploads_that_are_cut_on_their_way_are_sent_again_and_count_once(steps):
    """Streams of every party break after some bytes, there or back."""
    wire, cohorts, inf = Wire(up=steps), [range(PARTIES)] * 3, float("inf")
    model = network(4, 3)
    with ar.LocalEngine(FEDAVG, DATA, model, plan=Plan("one", 1, 1), wire=wire) as engine:
        simulated = [engine.round(t, range(PARTIES)) for t in range(3)]
        shared, own = leaves(engine.shared), leaves(engine.own_states(range(PARTIES)))
    cuts = [(inf, inf), (300, inf), (inf, 40), (420, inf), (inf, inf), (inf, 10), (200, inf)]
    played = asyncio.run(
        asyncio.wait_for(play(FEDAVG, DATA, network(4, 3), cohorts, cuts, wire=wire), 60)
    )

    found = list(leaves(played.engine.shared))
    torch.testing.assert_close(found, list(shared), rtol=1e-6, atol=1e-6)
    for k, party in enumerate(played.party_states):
        mine, theirs = leaves(party.own.state), [leaf[k] for leaf in own]
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
    assert [each.up for each in played.outcomes] == [each.up for each in simulated]


def test_what_is_counted_is_what_travels():
    federation = Federation(Wire(up=ALL))
    outcome = asyncio.run(federation.round(0, range(PARTIES)))
    counted = sum(
        x.numel() * x.element_size()
        for party in federation.parties
        for x in travelled(party, federation)
    )
    assert outcome.up == counted
    assert counted < PARTIES * federation.engine.anatomy.bytes_up  # which has room for the longest


def travelled(party, federation):
    """What a party sends in the first round."""
    fresh = party_of(party.party, federation.wire)
    return fresh.work(0, 0, leaves(fresh.anatomy.sent))[0]


def test_sizes_of_what_varies_are_those_of_its_bytes():
    federation = Federation(Wire(up=(Entropy(),)))
    boxes, sent = federation.parties[0].boxes, federation.parties[0].anatomy.messages[0].sent
    assert boxes is not None
    assert size_of(sent) == sum(x.numel() * x.element_size() for x in travelling(sent))


# -- over gRPC -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "wire"),
    [
        ("fedavg", {"up": ["rotate", "subsample:0.5", "quantise:4", "entropy"]}),
        ("scaffold", {"up": ["top_k:0.2", "quantise:8"], "down": ["float16"]}),
    ],
    ids=["all", "top k"],
)
def test_a_study_between_sites_is_its_simulation(tmp_path, algorithm, wire):
    study = study_of(tmp_path, algorithm, wire)

    run, noted = between_sites(tmp_path, study)

    expected = study.run(None, baselines=False)
    assert_same(run, expected)
    assert_bytes(run, expected)
    assert noted == run.spent.up < 0.75 * 4 * len(run.vector) * ROUNDS * len(NAMES) * 2


WIDTH = 40_000
PARAMETERS = (20 + 1) * WIDTH + 2 * WIDTH + 2  # about a million
CHANGES = {
    "round.quorum": 1.0, "round.on_missing": "wait", "study.rounds": 3, "study.evaluate_every": 3,
    "model.name": "mlp", "model.widths": [WIDTH], "data.standardise": False,
    "algorithm.batch_size": 64,
}  # fmt: skip


async def in_process(drill, sites):
    """A coordinator and sites of this process, over the drill's lines."""
    await drill.enrol()
    coordinator, stop = Coordinator(drill.home, silence=60.0), asyncio.Event()
    await coordinator.up(drill.home.address)
    there = [
        asyncio.create_task(service.up(Site(drill.path(k)), stop, lambda _: None))
        for k in range(sites)
    ]
    try:
        run = await coordinator.run(drill.hash)
        await drill.finished()
    finally:
        stop.set()
        await asyncio.gather(*there)
        await coordinator.down()
    return run


LINKS = {
    "quantise:8": (["quantise:8"], 1.0),
    "rotate, subsample:0.25, quantise:4": (["rotate", "subsample:0.25", "quantise:4"], 0.125),
    "quantise:8, entropy": (["quantise:8", "entropy"], None),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if "entropy" in n else []) for n in LINKS]
)
def test_bytes_on_the_link_are_the_reported_ones(tmp_path, name):
    """To two in a hundred: TLS, gRPC, questions and answers are what else passes."""
    steps, per = LINKS[name]

    async def main():
        async with Drill(tmp_path, 1, {**CHANGES, "wire.up": steps}) as drill:
            async with asyncio.timeout(240):
                return drill, await in_process(drill, 1)

    drill, run = asyncio.run(main())
    reported, passed = run.spent.up, drill.lines[0].up.passed
    print(f"{name}: {reported} bytes reported, {passed} on the link: {passed / reported - 1:+.2%}")
    assert reported == sum(e["bytes"] for e in drill.entries(0, "sent") if e["kind"] == "upload")
    biases = 4 * (WIDTH + 2)
    matrices = PARAMETERS - (WIDTH + 2)
    most = 3 * ((per or 1.0) * matrices + biases)
    assert (0.5 if per is None else 0.99) * most < reported < 1.01 * most
    assert reported <= passed <= 1.02 * reported


# -- a site that is killed -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_site_killed_in_the_middle_of_a_coded_upload_goes_on(tmp_path):
    """What it left out is added once: the study ends as its simulation, where nothing fails."""
    steps = ["top_k:0.1", "quantise:8", "entropy"]
    changes = {**CHANGES, "wire.up": steps, "model.widths": [12_000], "algorithm.local_epochs": 1}
    about = 12_000 * 4  # bytes of an upload's biases, which travel as they are

    async def main():
        async with Drill(tmp_path, 2, changes) as drill:
            async with asyncio.timeout(240):
                await drill.enrol()
                await drill.start()
                await drill.until_round(1)
                up = drill.lines[1].up
                up.hold_at = up.passed + about // 2
                await up.reaches(up.hold_at)
                await drill.processes[1].kill()
                drill.lines[1].cut()  # what has not passed yet never does
                up.release()
                sent = drill.sent(1)
                await drill.processes[1].start()
                await drill.finished()
                return drill, sent

    drill, sent = asyncio.run(main())
    assert 2 in sent or 3 in sent  # it had signed what it was sending
    uploads = [e for e in drill.entries(1, "sent") if e["kind"] == "upload"]
    uploads = [(e["round"], e["bytes"]) for e in uploads]
    assert [t for t, _ in uploads] in ([1, 2, 2, 3], [1, 2, 3, 3])
    assert len(set(uploads)) == 3  # what went twice was the same
    assert not any(row["missing"] for row in drill.rows)
    expected = drill.study.run(None, baselines=False, workers=1)
    torch.testing.assert_close(drill.vector(), expected.vector, rtol=1e-5, atol=1e-5)
    with ar.LocalEngine(
        drill.study.algorithm_object, drill.study.federation(),
        drill.study.build_model(drill.study.federation()), plan=Plan("one", 1, 1),
        wire=drill.study.wire_object,
    ) as engine:  # fmt: skip
        for t in range(3):
            engine.round(t, range(2))
        own = leaves(engine.own_states(range(2)))
    for k in range(2):
        for mine, theirs in zip(drill.own(k), own, strict=True):
            torch.testing.assert_close(mine, theirs[k], rtol=1e-4, atol=1e-5)
