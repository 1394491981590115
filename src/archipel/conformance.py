# SPDX-License-Identifier: Apache-2.0
"""What every algorithm must satisfy, ours or yours: `check_algorithm(MyAlgorithm())`.

And every step of a wire: `check_step(MyStep())`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from archipel.core import Algorithm
from archipel.data.federation import Federation
from archipel.engines import schedule
from archipel.engines.lines import Code
from archipel.engines.local.engine import LocalEngine
from archipel.engines.network.in_process import meet, play
from archipel.engines.party import LocalParty, blueprint
from archipel.engines.plan import Plan
from archipel.engines.probe import probe
from archipel.errors import ArchipelError
from archipel.exchange.boxes import Boxes, clock_of, has_personal, is_asynchronous, is_peer
from archipel.exchange.neighbours import Trial
from archipel.graphs import topology
from archipel.models.model import Model
from archipel.tree import Tree, leaves, tree_map
from archipel.wire.conformance import check_step
from archipel.wire.wire import Wire

__all__ = ["check_algorithm", "check_step"]

ROUNDS = 3
PLAIN = Wire()
_ONE = Plan("one", 1, 1)


def check_algorithm(algorithm: Algorithm, wire: Wire = PLAIN) -> None:
    """Run every check, on this wire; an AssertionError names the one that fails, in a sentence."""
    name = type(algorithm).__name__
    checks: tuple[tuple[Callable[..., None], tuple[Wire, ...]], ...] = (
        (check_parties_apart, ()),
        (check_stacked_equals_looped, (wire,)),
        (check_workers_agree, (wire,)),
        (check_same_seed_same_result, (wire,)),
        (check_order_of_parties, (wire,)),
        (check_arguments_unchanged, ()),
        (check_sweep_equals_separate_runs, (wire,)),
        (check_states_are_plain_tensors, ()),
        (check_own_models, (wire,)),
        (check_turns_one_by_one, ()),
        (check_heard_is_told, ()),
        (check_older_versions, (wire,)),
        (check_over_the_wire, (wire,)),
    )
    for check, on in checks:
        try:
            check(algorithm, *on)
        except AssertionError as error:
            raise AssertionError(f"{name}: {check.__name__}: {error}") from None
        except ArchipelError as error:
            raise AssertionError(f"{check.__name__}: {error}") from None
        except Exception as error:
            line = Code(algorithm).blame(error.__traceback__)
            where = "" if line is None else f"{line}: "
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise AssertionError(f"{name}: {check.__name__}: {where}{reason}") from error


def check_parties_apart(algorithm: Algorithm) -> None:
    """Neither another party in the stack nor a global random generator has a say; see `probe`."""
    data, model = _problem()
    probe(algorithm, data, model)


def check_stacked_equals_looped(algorithm: Algorithm, wire: Wire = PLAIN) -> None:
    """One party at a time, through torch.func and in batched layers: the same numbers."""
    one = _learn(algorithm, wire, _ONE)
    for way in ("vmapped", "stacked"):
        _close(one, _learn(algorithm, wire, Plan(way, 3, 1)), way)


def check_workers_agree(algorithm: Algorithm, wire: Wire = PLAIN) -> None:
    """Two processes give what one gives."""
    _close(
        _learn(algorithm, wire, _ONE), _learn(algorithm, wire, Plan("stacked", 2, 2)), "two workers"
    )


def check_same_seed_same_result(algorithm: Algorithm, wire: Wire = PLAIN) -> None:
    """A run repeats bit for bit."""
    first, again = _learn(algorithm, wire, _ONE), _learn(algorithm, wire, _ONE)
    assert _equal(first, again), "not repeatable"


def check_order_of_parties(algorithm: Algorithm, wire: Wire = PLAIN) -> None:
    """The server's result does not depend on the order in which uploads come."""
    _close(
        _learn(algorithm, wire, _ONE, ids=[0, 1, 2, 3, 4]),
        _learn(algorithm, wire, _ONE, ids=[3, 0, 4, 2, 1]),
        "another order",
    )


def check_arguments_unchanged(algorithm: Algorithm) -> None:
    """`party` does not write into the states it is given."""
    data, model = _problem()
    boxes = Boxes(algorithm)
    me = LocalParty(data, model, model.one, np.arange(2), 0, 0, (2,), mixing=lambda x: x, edges=2)
    given = boxes.init(model.w.clone(), me.blueprint)
    if boxes.clock == "wakes":
        me.neighbours = Trial(boxes.told(given), 2, boxes.asks(0), model.dtype, (2,))
    elif boxes.clock == "meetings":
        me.neighbours = Trial(None, 2, 0, model.dtype, (2,))
    if not is_peer(algorithm):
        given = boxes.broadcast(given[0], 0), given[1]
    elif boxes.clock != "walk":
        given = (given,)
    own = tree_map(lambda leaf: leaf.expand(2, *leaf.shape).clone(), given[-1])
    before = [leaf.clone() for leaf in leaves((*given[:-1], own))]
    party: Any = algorithm.party
    started = party(me, *given[:-1], own)
    if isinstance(started, Iterator):
        next(started)
    for old, new in zip(before, leaves((*given[:-1], own)), strict=True):
        assert torch.equal(old, new), "party() wrote into its arguments"


def check_sweep_equals_separate_runs(algorithm: Algorithm, wire: Wire = PLAIN) -> None:
    """`[s, m, p]`: several values of any decimal field at once are several runs."""
    if clock_of(algorithm) != "rounds":
        return
    for field in fields(algorithm):  # type: ignore[arg-type]
        value = getattr(algorithm, field.name)
        if not isinstance(value, float) or field.name == "batch_size":
            continue
        values = [0.5 * value + 0.01, value]
        for plan in (_ONE, Plan("stacked", 2, 1)):
            together = _learn(algorithm, wire, plan, sweep={field.name: values})
            for index, each in enumerate(values):
                one = replace(algorithm, **{field.name: each})  # type: ignore[type-var]
                part = [leaf[:, index] if is_peer(one) else leaf[index] for leaf in together]
                _close(_learn(one, wire, plan), part, f"{field.name} = {each}")


def check_states_are_plain_tensors(algorithm: Algorithm) -> None:
    """States can be written to a file or a wire: trees of tensors, nothing else."""
    data, model = _problem()
    for leaf in leaves(Boxes(algorithm).init(model.w, blueprint(model, data, 0))):
        if leaf.numel() == 0:
            continue
        restored = torch.frombuffer(
            bytearray(leaf.contiguous().numpy().tobytes()), dtype=leaf.dtype
        ).view(leaf.shape)
        assert torch.equal(leaf, restored), "a state does not survive its bytes"


def check_own_models(algorithm: Algorithm, wire: Wire = PLAIN) -> None:
    """Parties' own models, also of those that never trained, are the same however they are made.

    To make them changes nothing: neither the models that are made next nor a later round.
    """
    if not has_personal(algorithm):
        return
    scores, states = _evaluated(algorithm, wire, _ONE, times=1)
    for plan in (Plan("stacked", 3, 1), Plan("stacked", 10, 2)):
        _close(scores, _evaluated(algorithm, wire, plan, times=1)[0], f"own models, {plan}")
    for times in (0, 2):
        again, after = _evaluated(algorithm, wire, _ONE, times)
        assert _equal(states, after), "states differ once own models were made"
        assert times == 0 or _equal(scores, again), "own models differ once they were made before"


def check_turns_one_by_one(algorithm: Algorithm) -> None:
    """Where parties have their turns one by one: turns that run together give the same."""
    if clock_of(algorithm) == "rounds":
        return
    plan = Plan("stacked", 5, 1)
    together = _learn(algorithm, PLAIN, plan)

    def apart(blocks: Callable[..., list[NDArray[Any]]]) -> Callable[..., list[NDArray[Any]]]:
        return lambda *turns: [turn for block in blocks(*turns) for turn in block[:, None]]

    with ExitStack() as stack:
        for name in ("disjoint", "independent", "following"):
            stack.enter_context(patch.object(schedule, name, apart(getattr(schedule, name))))
        _close(_learn(algorithm, PLAIN, plan), together, "turns one by one")


def check_heard_is_told(algorithm: Algorithm) -> None:
    """What neighbours make of what a party says is what it tells."""
    boxes = Boxes(algorithm)
    if boxes.clock != "wakes":
        return
    data, model = _problem()
    me = LocalParty(data, model, model.one, np.arange(1), 0, 0, (), edges=2)
    own = boxes.init(model.w.clone(), me.blueprint)
    copy = boxes.told(own)
    for t in range(2 * ROUNDS):
        me.round, me.neighbours = t, Trial(boxes.told(own), 2, boxes.asks(t), model.dtype)
        own = boxes.party(me, own)
        if not boxes.asks(t):  # those that are asked are told all
            copy = boxes.hear(copy, boxes.said(own))
        _close(leaves(boxes.told(own)), leaves(copy), f"what is heard in round {t}")


def check_older_versions(algorithm: Algorithm, wire: Wire = PLAIN) -> None:
    """Where parties do not wait for each other: those of several versions, stacked or one by one.

    Where all begin from the last one, a step is a round.
    """
    if not is_asynchronous(algorithm):
        return
    late = [([0, 1], [0, 0], [0]), ([2, 0], [0, 1], [0, 1]), ([3, 1, 4], [0, 1, 2], [])]
    one = _stepped(algorithm, wire, _ONE, late)
    for plan in (Plan("stacked", 3, 1), Plan("vmapped", 2, 2)):
        _close(one, _stepped(algorithm, wire, plan, late), f"older versions, {plan}")
    everybody, nobody = list(range(5)), list[int]()
    fresh = [(everybody, [t] * 5, nobody) for t in range(ROUNDS)]
    stepped, rounds = _stepped(algorithm, wire, _ONE, fresh), _learn(algorithm, wire, _ONE)
    assert _equal(stepped, rounds), "a step from the last version is no round"


def check_over_the_wire(algorithm: Algorithm, wire: Wire = PLAIN) -> None:
    """Between parties that send letters, rounds give what they give in one process."""
    if clock_of(algorithm) != "rounds":  # whose turn is next depends on everybody's clock
        return
    if is_peer(algorithm):
        data, model = _problem()
        states = asyncio.run(meet(algorithm, data, model, topology("ring", 5), ROUNDS, wire=wire))
        for i, leaf in enumerate(_learn(algorithm, wire, _ONE)):
            mine = [leaves(state)[i] for state in states]
            _close(list(leaf), mine, "own states of peers over the wire")
        return
    cohorts = [[0, 1, 2, 3, 4], [0, 1, 3], [2, 3, 4]]
    data, model = _problem()
    with LocalEngine(algorithm, data, model, plan=_ONE, wire=wire) as engine:
        for t, cohort in enumerate(cohorts):
            engine.round(t, cohort)
        shared, own = leaves(engine.shared), leaves(engine.own_states(range(5)))
    played = asyncio.run(play(algorithm, data, model, cohorts, wire=wire))  # type: ignore[arg-type]
    _close(shared, leaves(played.engine.shared), "shared state over the wire")
    for k, party_state in enumerate(played.party_states):
        mine = [leaf[k] for leaf in own]
        _close(mine, leaves(party_state.own.state), f"own state of party {k} over the wire")


def _stepped(
    algorithm: Algorithm,
    wire: Wire,
    plan: Plan,
    steps: list[tuple[list[int], list[int], list[int]]],
) -> list[Tensor]:
    """The shared state after these server steps: parties, versions they began from, and held."""
    data, model = _problem()
    with LocalEngine(algorithm, data, model, plan=plan, wire=wire) as engine:
        for t, (parties, versions, held) in enumerate(steps):
            engine.step(t, parties, versions, held)
        return [leaf.clone() for leaf in leaves(engine.shared)]


def _evaluated(
    algorithm: Algorithm, wire: Wire, plan: Plan, times: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Losses of own models, made so many times before every round, and the states at the end."""
    data, model = _problem(new=2)
    scores = []
    with LocalEngine(algorithm, data, model, plan=plan, wire=wire) as engine:
        for t in range(ROUNDS):
            for _ in range(times):
                found = engine.evaluate(own=True, split="train").parties["loss"]
            scores += [found] if times else []
            engine.round(t, [0, 1, 3])  # 2 and 4 never train, 5 and 6 are new
        return scores, list(engine.state().values())


def _problem(new: int = 0) -> tuple[Federation, Model]:
    """Five parties of unequal size in double precision, and a small network."""
    random = np.random.default_rng(0)
    sizes = [7, 3, 12, 5, 9, 4, 8][: 5 + new]
    xs = [torch.from_numpy(random.standard_normal((n, 4))) for n in sizes]
    ys = [torch.from_numpy(random.integers(0, 3, n)) for n in sizes]
    data = Federation.from_arrays(xs, ys, test=0.0, new=new)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    return data, Model(module)


def _learn(
    algorithm: Algorithm,
    wire: Wire,
    plan: Plan,
    ids: list[int] | None = None,
    sweep: dict[str, list[float]] | None = None,
) -> list[Tensor]:
    """The states after a few rounds: the shared one, or the peers' own."""
    data, model = _problem()
    graph = topology("ring", 5) if is_peer(algorithm) else None
    engine = LocalEngine(algorithm, data, model, plan=plan, topology=graph, sweep=sweep, wire=wire)
    with engine:
        for t in range(ROUNDS):
            engine.round(t, ids or range(5))
        state: Tree = engine.own_states(range(5)) if engine.peer else engine.shared
        return [leaf.clone() for leaf in leaves(state)]


def _equal(expected: list[Tensor], got: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def _close(expected: list[Tensor], got: list[Tensor], what: str) -> None:
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-9, atol=1e-10, msg=lambda m: f"{what}: {m}")
