"""Two machines of a Ray cluster, on this one: one goes in mid-round, another comes."""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

import pytest
import torch

from archipel.engines.local.engine import LocalEngine
from archipel.engines.plan import Plan
from problems import classification, network

ray = pytest.importorskip("ray")
COMMAND = str(Path(sys.executable).parent / "archipel")
DATA, NET = classification(8, 3, 3, seed=1), network(3, 3)
PLAN = Plan("one", 2, 4)


@dataclass(frozen=True)
class Slowly:
    """Something kept at each party, and time to be lost in the middle."""

    lr: float = 0.1
    seconds: float = 0.0

    def init(self, w):
        return w, torch.zeros_like(w)

    def party(self, me, w, own):
        time.sleep(self.seconds)
        step = -self.lr * me.grad(w, me.batch(2)) + 0.1 * own
        return step, own + step

    def server(self, w, uploads):
        return w + uploads.mean()


@dataclass(frozen=True)
class SlowPeers:
    lr: float = 0.1
    seconds: float = 0.0

    def init(self, x):
        return x

    def party(self, me, x):
        x = me.mix(x - self.lr * me.grad(x, me.batch(2)))
        time.sleep(self.seconds)
        return me.mix(x)


@pytest.fixture(scope="module")
def machines():
    """A head and a second machine, of two processors each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "object_store_memory": 100 << 20},
    )
    yield cluster
    cluster.shutdown()


def rounds(algorithm, pools=None, during=None):
    """The state after three rounds; `during` is called at the beginning of the second."""
    from archipel.exchange.boxes import is_peer
    from archipel.graphs import topology

    graph = topology("ring", 8) if is_peer(algorithm) else None
    with LocalEngine(algorithm, DATA, NET, plan=PLAN, pools=pools, topology=graph) as engine:
        for t in range(3):
            if t == 1 and during is not None:
                during()
            engine.round(t, range(8))
        scores = engine.evaluate(split="train")
        return engine.state(), scores.pooled


def same(one, other):
    assert one[1] == other[1] and one[0].keys() == other[0].keys()
    assert all(torch.equal(tensor, other[0][name]) for name, tensor in one[0].items())


def nodes(crew):
    """The machines that workers are on, by Ray's names."""
    return [ray.get(seat.handle.__ray_call__.remote(_node)) for seat in crew.there]


def _node(_):
    return ray.get_runtime_context().get_node_id()


@pytest.mark.slow
def test_a_machine_that_goes_in_mid_round_changes_no_bit_and_one_that_comes_gets_work(machines):
    from archipel.engines.ray.cluster import connected

    second = machines.add_node(num_cpus=2, object_store_memory=100 << 20)
    machines.wait_for_nodes()
    with connected(machines.address) as cluster:
        assert cluster.count == 4
        same(rounds(Slowly()), rounds(Slowly(), cluster.pool))
        assert len({*nodes(cluster.crew)}) == 2

        def leave():
            Timer(0.7, machines.remove_node, (second, False)).start()

        same(rounds(Slowly()), rounds(Slowly(seconds=0.5), cluster.pool, leave))
        assert len({*nodes(cluster.crew)}) == 1

        third = machines.add_node(num_cpus=2, object_store_memory=100 << 20)
        until = time.time() + 120
        while len({*nodes(cluster.crew)}) < 2:  # between rounds it is seen who has come
            cluster.crew.look()
            assert time.time() < until
            time.sleep(0.5)

        def leave_again():
            Timer(0.7, machines.remove_node, (third, False)).start()

        same(rounds(SlowPeers()), rounds(SlowPeers(seconds=0.5), cluster.pool, leave_again))


@pytest.mark.slow
def test_other_versions_at_the_address_are_refused(machines, tmp_path):
    """By a process that joins; the cluster is told to be of another Ray."""
    ray.init(machines.address, log_to_driver=False, configure_logging=False)
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

    key, space = b"CLUSTER_METADATA", b"cluster"
    told = _internal_kv_get(key, namespace=space)
    other = told.replace(ray.__version__.encode(), b"2.99.9")
    assert other != told
    _internal_kv_put(key, other, overwrite=True, namespace=space)
    try:
        there = ["--engine", "ray", "--ray-address", machines.address]
        command = [COMMAND, "run", "fedavg", "--data", "heart_disease", *there]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
    finally:
        _internal_kv_put(key, told, overwrite=True, namespace=space)
        ray.shutdown()

    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "the cluster has other versions than this process" in line and "2.99.9" in line
