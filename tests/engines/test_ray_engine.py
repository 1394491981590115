"""The Ray engine gives the vectors of the local one, whatever it runs and whoever is lost."""

import os
import re
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock, Timer

import numpy as np
import pytest
import torch
from torch import nn

import archipel as ar
from archipel import adversaries as attacks
from archipel import rules
from archipel.aggregation.secure import SecureSum
from archipel.algorithms import ALGORITHMS
from archipel.algorithms.fedbuff import FedBuff
from archipel.data import shards
from archipel.engines.local.engine import LocalEngine
from archipel.engines.plan import Plan
from archipel.errors import RunFailed
from archipel.exchange.boxes import clock_of, is_peer
from archipel.exchange.uploads import Chosen
from archipel.graphs import topology
from archipel.privacy.promise import Privacy
from archipel.report.frame import Pace, Still, cost
from archipel.tree import tree_map
from archipel.wire.quantise import Quantise
from archipel.wire.rotate import Rotate
from problems import classification, network

ray = pytest.importorskip("ray")
from archipel.engines.ray.parcels import packed  # noqa: E402

FEW = {"local_steps": 3, "tune_steps": 2}
DATA = classification(6, 3, 3, seed=1)
NET = network(3, 3)
PLAN = Plan("one", 2, 2)
SAID = []  # while Ray starts
MAIN = os.getpid()
SGD = ar.FedAvg(local_steps=3, batch_size=2)
DSGD = ar.DSGD(batch_size=2)


@pytest.fixture(scope="module")
def cluster():
    """One Ray for all tests of this file."""
    from archipel.engines.ray.cluster import connected

    with connected(workers=2, say=SAID.append) as found:
        yield found


def small(make):
    default = make()
    given = {name: getattr(default, name, None) for name in FEW}
    return replace(default, **{k: FEW[k] for k, v in given.items() if v and v > FEW[k]})


def played(algorithm, pools=None, *, plan=PLAN, data=DATA, model=NET, asked=None, **options):
    """The state after two rounds, how each went, and what everybody's models say."""
    if is_peer(algorithm):
        options.setdefault("topology", topology("ring", data.training))
    with LocalEngine(algorithm, data, model, plan=plan, pools=pools, **options) as engine:
        outcomes = [engine.round(t, range(data.training), **(asked or {})) for t in range(2)]
        sweeps = options.get("sweep") is not None
        scores = [engine.evaluate(engine.vector(0) if sweeps else None, split="train")]
        if engine.has_own and not sweeps:
            scores.append(engine.evaluate(own=True, split="train"))
        return engine.state(), outcomes, scores


def same(one, other):
    """Bit for bit."""
    (state, outcomes, scores), (state2, outcomes2, scores2) = one, other
    assert state.keys() == state2.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, state2[name]), name
    for ours, theirs in zip(outcomes, outcomes2, strict=True):
        assert ours.arrived.tolist() == theirs.arrived.tolist()
        assert ours[1:] == theirs[1:]
    for ours, theirs in zip(scores, scores2, strict=True):
        assert ours.pooled == theirs.pooled


ONE_OF_EACH = {  # by what crosses between driver and workers; the others are among the slow tests
    "alone", "choco", "dsgd", "fedavg", "fedbn", "fedbuff", "pefll", "scaffold",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ONE_OF_EACH else [pytest.mark.slow])
        for name, made in ALGORITHMS.items()
        if clock_of(made()) == "rounds"
    ],
)
def test_every_algorithm_has_the_bits_of_the_local_engine(cluster, name):
    algorithm = small(ALGORITHMS[name])

    same(played(algorithm), played(algorithm, cluster.pool))


def median(uploads):
    """A rule over single uploads."""
    rows = uploads.stack()
    middle = tree_map(lambda leaf: leaf.median(dim=0, keepdim=True).values, rows)
    return Chosen(uploads, middle, torch.arange(1))


AROUND = {
    "steps": {"wire": ar.Wire(up=(Rotate(), Quantise(4)))},
    "rule": {"wire": ar.Wire(rule=median)},
    "exact sum": {"wire": ar.Wire(sum=SecureSum())},
    "secure sum": {"wire": ar.Wire(sum=SecureSum()), "protocols": True},
    "noise by party": {"privacy": Privacy("party", noise=1.0, clip=0.1), "rounds": 2},
    "noise by record": {"privacy": Privacy("record", noise=1.0, clip=0.1), "rounds": 2},
    "correlated": {"privacy": Privacy("record", noise=1.0, correlated="banded"), "rounds": 2},
    "sweep": {"sweep": {"lr": [0.1, 0.03, 0.01]}},
    "stacked": {"plan": Plan("stacked", 3, 2)},
    "one share": {"plan": Plan("vmapped", 4, 1)},
    "more shares than parties": {"plan": Plan("one", 2, 8)},
    "some lost": {"asked": {"answers": np.array([0, 1, 1, 0, 1, 1])}},
    "stragglers": {"asked": {"effort": np.array([0.5, 1, 1, 0.2, 1, 1])}},
}


@pytest.mark.parametrize("how", AROUND)
def test_what_is_around_an_algorithm_is_the_same_on_ray(cluster, how):
    same(played(SGD, **AROUND[how]), played(SGD, cluster.pool, **AROUND[how]))


ATTACKED = {
    "what is sent": (SGD, attacks.SignFlip(3.0), {}),
    "wrong labels": (SGD, attacks.LabelFlip(), {}),
    "other training": (SGD, attacks.FreeRider("delta"), {}),
    "omniscient": (SGD, attacks.ALIE(2.0), {"wire": ar.Wire(rule=rules.TrimmedMean(1))}),
    "peers": (DSGD, attacks.Dissensus(), {}),
    "noise by neighbour": (DSGD, attacks.Gaussian(), {"wire": ar.Wire(rule=rules.TrimmedMean(1))}),
    "clipped": (DSGD, attacks.IPM(), {"wire": ar.Wire(rule=rules.ClippedGossip(1))}),
}


@pytest.mark.parametrize("how", ATTACKED)
def test_adversaries_do_the_same_on_ray(cluster, how):
    algorithm, attack, options = ATTACKED[how]
    options = {"adversary": ar.Adversary(attack, 2), **options}
    if algorithm is DSGD:
        options["topology"] = topology("complete", 6)

    attacked = played(algorithm, cluster.pool, **options)
    same(played(algorithm, **options), attacked)
    honest = played(algorithm, **{**options, "adversary": None})[0]
    assert any(not torch.equal(x, honest[name]) for name, x in attacked[0].items())


@pytest.mark.parametrize("name, parties", [("ring", 40), ("complete", 6)])
def test_peers_mix_across_shares(cluster, name, parties):
    data, algorithm = classification(parties, 3, 3, seed=2), ar.DSGD(batch_size=2)
    options = {"data": data, "topology": topology(name, parties), "plan": Plan("one", 4, 3)}

    same(played(algorithm, **options), played(algorithm, cluster.pool, **options))


@dataclass(frozen=True)
class Talks:
    """Three messages, with a reply to all and one to each; parties keep what they heard."""

    lr: float = 0.1

    def init(self, w):
        return w, torch.zeros_like(w)

    def party(self, me, w, own):
        mean = yield me.grad(w)
        mine = yield mean + own
        return -self.lr * mine, own + mine

    def server(self, w, uploads):
        uploads = yield uploads.mean()
        uploads = yield ar.Each(uploads.stack() * 2)
        return w + uploads.mean()


def test_several_messages_and_a_reply_to_each(cluster):
    same(played(Talks()), played(Talks(), cluster.pool))


def test_a_round_that_does_not_count_leaves_no_trace(cluster):
    asked = {"needed": 6, "answers": np.array([3, 3, 2, 3, 3, 3])}

    found = played(Talks(), cluster.pool, asked=asked)

    same(played(Talks(), asked=asked), found)
    assert len(found[0]["visited"]) == 0 and len(found[1][0].arrived) == 0


def test_parties_that_began_from_older_states(cluster):
    def run(pools=None):
        with LocalEngine(FedBuff(), DATA, NET, plan=PLAN, pools=pools) as engine:
            engine.step(0, [0, 1, 2], [0, 0, 0], held=[0])
            engine.step(1, [3, 4, 1], [0, 0, 1], held=[0, 1])
            engine.step(2, [5, 2, 0, 4], [0, 1, 1, 2])
            return engine.state()

    state, found = run(), run(cluster.pool)
    assert all(torch.equal(tensor, found[name]) for name, tensor in state.items())


def test_points_that_are_mapped_are_read_where_they_are(cluster, tmp_path):
    shards.write(DATA, tmp_path / "shards", size=200)
    data = ar.Federation.open(tmp_path / "shards")

    found = played(ar.Scaffold(batch_size=2), cluster.pool, data=data)

    same(played(ar.Scaffold(batch_size=2)), found)
    assert data.lazy and len(packed(data)[0]) < 20_000  # a path travels, and no point


@pytest.mark.parametrize("statistics", ["averaged", "own"])
def test_statistics_of_batchnorm(cluster, statistics):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    data = replace(classification(5, 3, 3, seed=3), training=4)
    options = {"data": data, "model": ar.Model(module, statistics=statistics)}

    same(played(SGD, **options), played(SGD, cluster.pool, **options))


# -- who is lost -----------------------------------------------------------------------------------


def killing(cluster, at, seconds=0.1):
    """Pools whose first worker is killed so many seconds after message number `at` is sent."""

    def pools(job, memory):
        pool = cluster.pool(job, memory)
        run, calls = pool._run, []

        def during(messages):
            calls.append(messages)
            if len(calls) == at:
                process = ray.get(pool._crew.look()[0].handle.process.remote())
                kill = Timer(seconds, os.kill, (process, signal.SIGKILL))
                kill.start()
                if not seconds:
                    kill.join()
            return run(messages)

        pool._run = during
        return pool

    return pools


@dataclass(frozen=True)
class Slowly:
    """FedSGD whose parties take their time, so that there is a middle to be killed in."""

    lr: float = 0.1
    seconds: float = 0.5

    def init(self, w):
        return w, torch.zeros_like(w)

    def party(self, me, w, own):
        time.sleep(self.seconds)
        step = -self.lr * me.grad(w, me.batch(2))
        return step, own + step

    def server(self, w, uploads):
        return w + uploads.mean()


def test_a_worker_that_dies_costs_its_share_alone(cluster):
    plan = Plan("one", 4, 2)

    found = played(Slowly(), killing(cluster, at=2), plan=plan)

    same(played(Slowly(seconds=0.0), plan=plan), found)


def test_a_worker_that_dies_between_two_messages_says_again_what_it_said(cluster):
    """The share is run again from its first message: with the secrets that others know it by."""
    options = AROUND["secure sum"]

    found = played(SGD, killing(cluster, at=3, seconds=0), **options)

    same(played(SGD, **options), found)


@dataclass(frozen=True)
class SlowPeers:
    lr: float = 0.1
    seconds: float = 0.5

    def init(self, x):
        return x

    def party(self, me, x):
        time.sleep(self.seconds)
        x = me.mix(x - self.lr * me.grad(x, me.batch(2)))
        time.sleep(self.seconds)
        return me.mix(x)


def test_peers_of_a_worker_that_dies_mix_again(cluster):
    found = played(SlowPeers(), killing(cluster, at=2))

    same(played(SlowPeers(seconds=0.0)), found)


def test_one_worker_runs_all_shares_where_there_is_room_for_no_more(cluster):
    plan = Plan("one", 1, 6)

    same(played(SGD, plan=plan), played(SGD, cluster.pool, plan=plan))


# -- whole runs ------------------------------------------------------------------------------------

HOW = {"data": "heart_disease", "rounds": 3, "workers": 2, "sample": 3}


def test_a_run_with_its_baselines_recorded_and_opened(cluster, tmp_path):
    here = ar.simulate(ar.Scaffold(), baselines=True, **HOW)

    run = ar.simulate(ar.Scaffold(), baselines=True, engine="ray", out=tmp_path / "run", **HOW)

    assert [e["metrics"] for e in run.history] == [e["metrics"] for e in here.history]
    assert torch.equal(run.vector, here.vector)
    assert run.baselines["local"].pooled == here.baselines["local"].pooled
    assert run.to_json()["engine"] == "ray" and here.to_json()["engine"] == "local"
    again = ar.simulate(ar.Scaffold(), baselines=True, out=tmp_path / "run", **HOW)
    assert again.done == 3 and torch.equal(again.vector, run.vector)  # it is the same run


def test_the_picture_tells_of_workers_and_memory(cluster):
    seen = []

    class Watch:
        def __call__(self, run):
            seen.append("".join(text for text, _ in cost(Still.of(run, Pace(0.0, 0.0)))))

        def say(self, text):
            SAID.append(text)

    ar.simulate(ar.FedAvg(), engine="ray", watch=Watch(), **HOW)

    assert all(re.search(r"Ray: [12] of 2 workers, \d\.\d GB", line) for line in seen[1:])
    assert SAID[0] == "Ray starts"


def test_sweeps_and_comparisons(cluster):
    grid, options = {"lr": [0.1, 0.01]}, {"data": "heart_disease", "rounds": 2, "workers": 2}
    runs = [
        ar.sweep(ar.FedAvg(), model=None, settings=grid, engine=engine, **options)
        for engine in ("local", "ray")
    ]
    assert all(torch.equal(a.vector, b.vector) for a, b in zip(*runs, strict=True))

    tables = [
        ar.compare(["fedavg"], seeds=1, grid=grid, out=None, engine=engine, **options).table("csv")
        for engine in ("local", "ray")
    ]
    assert _without_seconds(tables[0]) == _without_seconds(tables[1])


def _without_seconds(table):
    head, *rows = (line.split(",") for line in table.splitlines())
    keep = [i for i, name in enumerate(head) if "second" not in name]
    return [[row[i] for i in keep] for row in (head, *rows)]


# -- errors ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wrong:
    lr: float = 0.1

    def init(self, w):
        return w, None

    def party(self, me, w, own):
        if me.round == 1 and 5 in me.ids:
            raise ValueError("no such column")
        return me.grad(w), None

    def server(self, w, uploads):
        return w + uploads.mean()


@pytest.mark.parametrize("on_ray", [False, True])
def test_an_error_of_the_users_is_told_with_round_and_party(cluster, on_ray):
    with pytest.raises(RunFailed) as told:
        played(Wrong(), cluster.pool if on_ray else None)

    file = Path(__file__).name
    said = str(told.value)
    assert said.startswith("round 2, party ")
    assert "5: ValueError: no such column" in said and f"({file}, line" in said


def test_after_an_error_the_next_engine_runs(cluster):
    with pytest.raises(RunFailed):
        played(Wrong(), cluster.pool)

    same(played(SGD), played(SGD, cluster.pool))


def test_what_no_process_can_be_given_is_refused(cluster):
    @dataclass(frozen=True)
    class Holds(Slowly):
        lock: object = field(default_factory=Lock)

    with pytest.raises(ar.ArchipelError, match="no other process can be given"):
        played(Holds(), cluster.pool)


@pytest.mark.slow
def test_a_worker_that_always_dies_is_given_up(cluster):
    @dataclass(frozen=True)
    class Dies(Slowly):
        def party(self, me, w, own):
            if os.getpid() != MAIN:
                os._exit(1)
            return me.grad(w), own

    with pytest.raises(RunFailed, match="was lost 4 times"):
        played(Dies(), cluster.pool)
