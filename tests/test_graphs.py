# SPDX-License-Identifier: Apache-2.0
"""Topologies: doubly stochastic at every round, the rates they promise, the seeds, the refusals."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from math import cos, pi
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from archipel.errors import ArchipelError
from archipel.graphs import (
    TOPOLOGIES,
    Topology,
    alternate,
    changing_regular,
    complete,
    drop,
    erdos_renyi,
    exponential,
    hypercube,
    local_steps,
    matching,
    one_peer_exponential,
    own,
    random_regular,
    ring,
    small_world,
    star,
    topology,
    torus,
    weighted,
)
from archipel.graphs.fixed import fixed
from archipel.graphs.summary import summary
from archipel.graphs.weights import given as given_weights
from archipel.graphs.weights import joined

SPECS = [
    "alternate:ring,matching",
    "changing_regular:4",
    "complete",
    "erdos_renyi:0.5",
    "exponential",
    "hypercube",
    "local_steps:3:matching",
    "matching",
    "one_peer_exponential",
    "peer_sampling:6",
    "random_regular:4",
    "ring",
    "small_world:4",
    "star",
    "torus",
]
QUICK = settings(max_examples=12, deadline=None)


def fits(spec: str, n: int) -> bool:
    if spec in ("hypercube", "one_peer_exponential"):
        return n & (n - 1) == 0
    if spec in ("random_regular:4", "changing_regular:4", "small_world:4"):
        return n > 4
    if spec == "erdos_renyi:0.5":
        return n == 1 or n > 5
    return spec != "torus" or n < 4 or any(n % r == 0 for r in range(2, n))


def test_every_name_is_tested() -> None:
    assert {spec.partition(":")[0] for spec in SPECS} | {"edges"} == set(TOPOLOGIES)


def test_edges_may_be_written_out() -> None:
    graph = topology("edges:0-1,2-1*0.5,1-0", 3)

    assert graph.affinity().toarray().tolist() == [[0, 1, 0], [1, 0, 0.5], [0, 0.5, 0]]
    names = ["Ulm", "Bad-Ems", "2"]
    named = topology("edges:Ulm-Bad-Ems, 2-Bad-Ems*0.5", 3, names=names)
    assert named.affinity().toarray().tolist() == graph.affinity().toarray().tolist()
    with pytest.raises(ArchipelError, match="row 1 has an unknown party 'Bonn'"):
        topology("edges:Ulm-Bonn", 3, names=names)
    with pytest.raises(ArchipelError, match="is not understood: write edges"):
        topology("edges:a-a-a", 3, names=["a", "a-a", "b"])


@pytest.mark.parametrize("spec", SPECS)
@given(n=st.integers(1, 24), seed=st.integers(0, 2**63), t=st.integers(0, 1000), data=st.data())
@QUICK
def test_doubly_stochastic_at_every_round(
    spec: str, n: int, seed: int, t: int, data: st.DataObject
) -> None:
    n = {"hypercube": 1 << n % 5, "one_peer_exponential": 1 << n % 5}.get(spec, n)
    assume(fits(spec, n))
    t = t % 12 if spec == "peer_sampling:6" else t  # a round takes all cycles before it
    weights = data.draw(st.sampled_from(["metropolis", "max_degree"]))
    graph = topology(spec, n, seed).weighed(weights)
    absent = data.draw(st.sets(st.integers(0, n - 1)))

    for away in (set(), absent):
        W = graph.weights(t, away)
        assert W.shape == (n, n)
        assert W.dtype == torch.float64
        assert torch.equal(W, W.T)
        assert (W >= 0).all()
        torch.testing.assert_close(W.sum(dim=-1), torch.ones(n, dtype=torch.float64))
        for i in away:
            assert W[i, i] == 1
            assert graph.neighbours(i, t, away) == []
        pairs = {tuple(pair) for pair in graph.edges(t, away).tolist()}
        assert pairs == {(i, j) for i in range(n) for j in graph.neighbours(i, t, away) if i < j}
        assert graph.row(0, t, away) == {j: w for j, w in enumerate(W[0].tolist()) if w}
    again = topology(spec, n, seed).weighed(weights)
    assert torch.equal(again.weights(t), graph.weights(t))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mixing_is_the_matrix_and_keeps_the_mean(spec: str, dtype: torch.dtype) -> None:
    graph = topology(spec, 64, seed=1)
    x = torch.randn(2, 64, 5, dtype=dtype)

    for t, absent in ((0, ()), (2, ()), (2, (3, 7))):
        mixed = graph.mix(x, t, absent)
        assert mixed.dtype == dtype
        torch.testing.assert_close(mixed, graph.weights(t, absent).to(dtype) @ x)
        torch.testing.assert_close(mixed.mean(dim=-2), x.mean(dim=-2), atol=1e-6, rtol=0)
    torch.testing.assert_close(graph.mix(x[0], 1), graph.mix(x, 1)[0])


def test_mixing_is_differentiable() -> None:
    x = torch.randn(40, 3, dtype=torch.float64, requires_grad=True)

    (grad,) = torch.autograd.grad(ring(40).mix(x)[0].sum(), x)

    torch.testing.assert_close(grad[:, 0], ring(40).weights()[0])


@pytest.mark.parametrize("spec", [s for s in SPECS if topology(s, 16).period == 1])
@given(seed=st.integers(0, 1000))
@QUICK
def test_consensus_error_falls_at_the_rate_of_the_gap(spec: str, seed: int) -> None:
    graph = topology(spec, 16, seed)
    rho = 1 - graph.spectral_gap
    x = torch.randn(16, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    start = (x - x.mean(dim=0)).norm()

    assert graph.connected
    assert graph.spectral_gap > 0
    for k in range(1, 30):
        x = graph.mix(x)
        assert (x - x.mean(dim=0)).norm() <= rho**k * start + 1e-12


def test_gaps_in_closed_form() -> None:
    for n in (3, 4, 7, 16, 50):
        assert complete(n).spectral_gap == pytest.approx(1)
        assert ring(n).spectral_gap == pytest.approx(1 - (1 + 2 * cos(2 * pi / n)) / 3)
        assert star(n).spectral_gap == pytest.approx(1 / n)
    assert torus(64).spectral_gap == pytest.approx(2 * (1 - cos(2 * pi / 8)) / 5)
    assert hypercube(32).spectral_gap == pytest.approx(2 / 6)
    assert ring(9).p == pytest.approx(1 - ((1 + 2 * cos(2 * pi / 9)) / 3) ** 2)


def test_gaps_of_many_parties() -> None:
    assert ring(5000).spectral_gap == pytest.approx(1 - (1 + 2 * cos(2 * pi / 5000)) / 3, rel=1e-4)
    assert hypercube(4096).spectral_gap == pytest.approx(2 / 13)
    assert random_regular(3000, 4).spectral_gap > 0.05


def test_rates_of_graphs_that_change() -> None:
    def averaged(graph: Topology, rounds: int) -> float:
        """Koloskova et al.'s p from its definition, over that many rounds."""
        squares = sum((graph.weights(t) @ graph.weights(t) for t in range(rounds)), torch.zeros(()))
        return 1 - float(torch.linalg.eigvalsh(squares / rounds)[-2])

    assert matching(7).p == pytest.approx(averaged(matching(7), 1000), abs=0.05)
    assert matching(2).p == 1
    assert one_peer_exponential(8).p == pytest.approx(1 / 3)
    for n, degree in ((8, 3), (9, 2)):
        regular = changing_regular(n, degree)
        assert regular.p == pytest.approx(averaged(regular, 1000), abs=0.05)
    assert local_steps(4, ring(8)).p == pytest.approx(ring(8).p / 4)
    assert local_steps(4, matching(8)).p == pytest.approx(matching(8).p / 4)
    both = alternate([ring(8), complete(8)])
    assert both.p == pytest.approx(averaged(both, 2))
    assert both.p == pytest.approx((ring(8).p + 1) / 2)
    swaps = matching(8).weighed("given")  # edges of weight 1: two that meet change places
    assert swaps.p == pytest.approx(averaged(swaps, 400), abs=1e-12) == 0


def test_the_rate_of_a_large_graph_counts_what_oscillates() -> None:
    """An even ring without weight at home: the eigenvalue -1, and the second near 1."""
    n = 2002
    pairs = np.arange(n), (np.arange(n) + 1) % n
    swinging = fixed("swinging", joined(n, *pairs, np.full(n, 0.5)), given_weights)
    assert swinging.p == pytest.approx(0, abs=1e-9)
    assert "differ by stays for ever" in str(summary(swinging))


@given(n=st.integers(1, 30), seed=st.integers(0, 100), t=st.integers(0, 100))
@QUICK
def test_a_matching_pairs_all_but_one(n: int, seed: int, t: int) -> None:
    graph = matching(n, seed)

    assert len(graph.edges(t)) == n // 2
    assert all(len(graph.neighbours(i, t)) <= 1 for i in range(n))


def test_random_graphs_follow_their_seed_and_round() -> None:
    makers: list[Callable[[int], Topology]] = [
        lambda seed: matching(20, seed),
        lambda seed: random_regular(20, 3, seed),
        lambda seed: erdos_renyi(20, 0.4, seed),
        lambda seed: small_world(20, 4, 0.5, seed),
        lambda seed: changing_regular(20, 3, seed),
    ]
    for make in makers:
        assert torch.equal(make(1).weights(), make(1).weights())
        assert not torch.equal(make(1).weights(), make(2).weights())
    assert not torch.equal(matching(20).weights(0), matching(20).weights(1))
    assert not torch.equal(changing_regular(20, 3).weights(0), changing_regular(20, 3).weights(1))


@given(n=st.integers(3, 30), degree=st.integers(2, 29), seed=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_random_regular_graphs_are_regular_and_connected(n: int, degree: int, seed: int) -> None:
    assume(degree < n and n * degree % 2 == 0)
    graph = random_regular(n, degree, seed)

    assert graph.connected
    assert {len(graph.neighbours(i)) for i in range(n)} == {degree}
    assert (graph.weights() > 0).sum(dim=-1).tolist() == [degree + 1] * n


@given(
    n=st.integers(5, 40),
    degree=st.sampled_from([2, 4]),
    rewired=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 100),
)
@QUICK
def test_small_worlds_keep_their_edges(n: int, degree: int, rewired: float, seed: int) -> None:
    graph = small_world(n, degree, rewired, seed)
    near = {tuple(sorted((i, (i + k) % n))) for i in range(n) for k in range(1, degree // 2 + 1)}
    edges = {tuple(pair) for pair in graph.edges().tolist()}

    assert graph.connected
    assert len(edges) == len(near)
    if rewired == 0:
        assert edges == near


def test_a_small_world_has_some_edges_rewired() -> None:
    n, near = 1000, set(map(tuple, small_world(1000, 4, 0.0).edges().tolist()))
    moved = {tuple(pair) for pair in small_world(n, 4).edges().tolist()} - near

    assert 0.07 < len(moved) / (2 * n) < 0.13
    assert small_world(n, 4).spectral_gap > 20 * small_world(n, 4, 0.0).spectral_gap


def test_weights_by_the_maximum_degree_stay_when_parties_leave() -> None:
    graph = star(5).weighed("max_degree")

    np.testing.assert_allclose(graph.weights()[1], [0.2, 0.8, 0, 0, 0])
    np.testing.assert_allclose(graph.weights(absent=[4])[0], [0.4, 0.2, 0.2, 0.2, 0])
    np.testing.assert_allclose(star(5).weights(absent=[4]), graph.weights(absent=[4]))
    np.testing.assert_allclose(ring(6).weighed("max_degree").weights(), ring(6).weights())
    alike = weighted([[0, 0.3, 0], [0.3, 0, 0.2], [0, 0.2, 0]]).weighed("given")
    np.testing.assert_allclose(alike.weights(), [[0.7, 0.3, 0], [0.3, 0.5, 0.2], [0, 0.2, 0.8]])
    with pytest.raises(ArchipelError, match="edges of party 1 weigh 3 together, and W has room"):
        weighted([[0, 1, 0], [1, 0, 2], [0, 2, 0]]).weighed("given").weights()
    with pytest.raises(ArchipelError, match=r"topology\.weights 'max': did you mean 'max_degree'"):
        ring(5).weighed("max")


def test_neighbours() -> None:
    assert ring(6).neighbours(0) == [1, 5]
    assert ring(2).neighbours(0) == [1]
    assert ring(1).neighbours(0) == []
    assert torus(12, rows=3).neighbours(0) == [1, 3, 4, 8]
    assert topology("torus:2x4", 8).neighbours(0) == [1, 3, 4]
    assert star(4).neighbours(0) == [1, 2, 3]
    assert star(4).neighbours(2) == [0]
    assert hypercube(8).neighbours(5) == [1, 4, 7]
    assert exponential(16).neighbours(0) == [1, 2, 4, 8, 12, 14, 15]
    assert ring(6).row(0) == pytest.approx({0: 1 / 3, 1: 1 / 3, 5: 1 / 3})


def test_one_peer_reaches_the_mean_in_log2_rounds() -> None:
    graph, x = one_peer_exponential(16), torch.randn(16, 3, dtype=torch.float64)

    mixed = x
    for t in range(5, 9):
        mixed = graph.mix(mixed, t)

    torch.testing.assert_close(mixed, x.mean(dim=0).expand(16, 3))


def test_local_steps_mix_in_every_third_round() -> None:
    inner = matching(8, seed=1)
    graph = local_steps(3, inner)

    assert [len(graph.edges(t)) for t in range(6)] == [0, 0, 4, 0, 0, 4]
    assert torch.equal(graph.weights(2), inner.weights(0))
    assert torch.equal(graph.weights(5), inner.weights(1))


def test_alternation_takes_each_in_turn() -> None:
    graph = alternate([ring(8), one_peer_exponential(8)])

    assert torch.equal(graph.weights(4), ring(8).weights())
    assert torch.equal(graph.weights(3), one_peer_exponential(8).weights(1))
    assert graph.period == 6


def test_who_is_away_is_left_out() -> None:
    graph = ring(5)

    W = graph.weights(absent=[1])

    assert W[1].tolist() == [0, 1, 0, 0, 0]
    assert graph.neighbours(0, absent=[1]) == [4]
    assert W[0, 4] == pytest.approx(1 / 3)  # Metropolis: party 4 has two neighbours
    assert graph.neighbours(2, absent=np.array([1, 3])) == []
    assert torch.equal(graph.weights(absent=[1, 3])[2], torch.eye(5, dtype=torch.float64)[2])
    with pytest.raises(ArchipelError, match="absent parties are \\[5\\]: give numbers from 0 to 4"):
        graph.weights(absent=[5])


def test_absences_may_change_with_the_round() -> None:
    graph = drop(complete(4), lambda t: [t % 4])
    always = drop(ring(4), {0})

    assert graph.neighbours(0, t=0) == []
    assert graph.neighbours(0, t=1) == [2, 3]
    assert graph.connected
    assert not always.connected
    assert always.p == 0


def test_own_matrices() -> None:
    path = own([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
    third, half = 1 / 3, 0.5
    W = [[2 * third, third, 0], [third, third, third], [0, third, 2 * third]]

    np.testing.assert_allclose(path.weights(), W)
    np.testing.assert_allclose(own(torch.tensor(W)).weights(), W, atol=1e-7)
    np.testing.assert_allclose(own([[half, half], [half, half]]).weights(), half)


def test_edges_weigh_what_was_said() -> None:
    alike = [[9, 2.5, 0], [2.5, 0, 0.1], [0, 0.1, 7]]
    W = np.array([[0.7, 0.3, 0], [0.3, 0.5, 0.2], [0, 0.2, 0.8]])

    assert weighted(alike).affinity().toarray().tolist() == [
        [0, 2.5, 0],
        [2.5, 0, 0.1],
        [0, 0.1, 0],
    ]
    np.testing.assert_allclose(
        weighted(alike).weights(), own([[0, 1, 0], [1, 0, 1], [0, 1, 0]]).weights()
    )
    np.testing.assert_allclose(own(W).affinity().toarray(), W - np.diag(np.diag(W)))
    np.testing.assert_allclose(own(W).weights(), W)
    assert ring(4).affinity(absent=[1]).toarray()[3].tolist() == [1, 0, 1, 0]
    assert own(W).affinity(absent=[0]).toarray().tolist() == [[0, 0, 0], [0, 0, 0.2], [0, 0.2, 0]]
    np.testing.assert_allclose(own(W).weights(absent=[0])[1], [0, 0.8, 0.2])


@pytest.mark.parametrize("spec", SPECS)
def test_edges_of_graphs_by_name_weigh_one(spec: str) -> None:
    graph = topology(spec, 16, seed=2)
    for t, absent in ((0, ()), (5, (2, 9))):
        A = graph.affinity(t, absent).toarray()

        np.testing.assert_array_equal(
            A, (graph.sparse(t, absent).toarray() > 0) & ~np.eye(16, dtype=bool)
        )


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        ([[0.5, 0.5]], r"shape \[1, 2\]: give \[n, n\]"),
        ([[1.5, -0.5], [-0.5, 1.5]], "negative"),
        ([[0, 1, 1], [0, 0, 1], [1, 1, 0]], r"entry \(0, 1\) is 1 but \(1, 0\) is 0"),
        ([[0.5, 0.4], [0.4, 0.6]], "a row, 0, that sums to 0.9"),
        ([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], "parties apart"),
    ],
)
def test_own_matrices_are_checked(matrix: list[list[float]], words: str) -> None:
    with pytest.raises(ArchipelError, match=words):
        own(matrix)


@pytest.mark.parametrize(
    ("spec", "n", "words"),
    [
        ("rign", 8, "unknown topology 'rign': did you mean 'ring'"),
        ("random_matching", 8, "did you mean 'matching'"),
        ("ring:3", 8, "topology 'ring:3' is not understood: write ring."),
        ("matching:3", 8, "write matching."),
        ("torus:3x3", 8, "9 places for 8 parties: write 'torus'"),
        ("torus:3", 8, "write torus or torus:ROWSxCOLUMNS"),
        ("torus", 7, "n is 7, a prime: use 'ring', or 6 parties"),
        ("hypercube", 12, "needs a power of two but n is 12: use 'exponential', or take 8 or 16"),
        ("one_peer_exponential", 3, "needs a power of two"),
        ("random_regular", 8, "write random_regular:DEGREE"),
        ("random_regular:3", 7, "n x degree must be even, so take a degree of 4"),
        ("random_regular:9", 8, "cannot give 8 parties 9 neighbours each: take a degree of 2"),
        ("random_regular:1", 8, "take a degree of 2 or more, or 'matching'"),
        ("erdos_renyi:1.5", 8, "give one from 0 to 1"),
        ("erdos_renyi:0.001", 50, "raise the probability well above ln"),
        ("local_steps:0:ring", 8, "give 1 or more"),
        ("local_steps:ring", 8, "write local_steps:EVERY:SPEC"),
        ("local_steps:2:rung", 8, "did you mean 'ring'"),
        ("small_world:3", 8, "give an even number of neighbours from 2 on, below"),
        ("small_world:8", 8, "cannot be over 8 parties"),
        ("small_world:4:2", 8, "probability of rewiring of 2: give one from 0"),
        ("small_world", 8, "write small_world:DEGREE or small_world:DEGREE:PROBABILITY"),
        ("changing_regular:3", 7, "n x degree must be even"),
        ("edges:0-1,1", 3, "write edges:I-J,I-J,... with the parties' names"),
        ("edges:0-1,1-2*-1", 3, "is not understood: write edges:I-J"),
        ("edges:0-1,1-3", 3, "'edges': row 2 has an unknown party '3'"),
        ("edges:0-1", 3, "no way leads from party '0' to party '2'"),
        ("complete", 6000, "use an algorithm with a server"),
        ("ring", 0, "topology 'ring' has n = 0 parties: give 1 or more"),
    ],
)
def test_what_cannot_be_is_refused(spec: str, n: int, words: str) -> None:
    with pytest.raises(ArchipelError, match=words) as caught:
        topology(spec, n)
    assert str(caught.value).endswith(".")


def test_a_topology_is_taken_as_it_is_if_it_fits() -> None:
    graph = ring(5)

    assert topology(graph, 5) is graph
    with pytest.raises(ArchipelError, match="joins 5 parties, not 6"):
        topology(graph, 6)
    with pytest.raises(ArchipelError, match=r"parts of \[4, 5\] parties: give equal sizes"):
        alternate([ring(4), ring(5)])


@pytest.mark.parametrize("spec", SPECS)
def test_topologies_travel_to_other_processes(spec: str) -> None:
    graph = topology(spec, 16, seed=3)

    copy = pickle.loads(pickle.dumps(graph))

    assert torch.equal(copy.weights(5), graph.weights(5))


def test_many_parties_mix_sparsely() -> None:
    graph, x = ring(100_000), torch.ones(100_000, 2)

    torch.testing.assert_close(graph.mix(x), x)
    assert graph.neighbours(0) == [1, 99_999]


@pytest.mark.parametrize("spec", ["ring", "matching", "local_steps:2:star"])
def test_a_drawing_names_the_gap(spec: str, tmp_path: Path) -> None:
    graph = topology(spec, 8)

    figure = graph.plot(tmp_path / "graph.png")

    assert (tmp_path / "graph.png").stat().st_size > 1000
    assert f"spectral gap {graph.spectral_gap:.3g}" in figure.get_suptitle()
