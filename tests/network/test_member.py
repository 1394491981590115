# SPDX-License-Identifier: Apache-2.0
"""One member cannot end a study, hold it, or speak for others: the coordinator's side."""

import asyncio
import copy
import resource
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import archipel as ar
from archipel.algorithms import FedAvg, FedOpt, PeFLL, Scaffold
from archipel.algorithms.fedopt import Shared
from archipel.cli import main
from archipel.data.scaling import Sums
from archipel.data.schema import Schema
from archipel.data.shadow import MOST_ROWS, Facts, shadow
from archipel.engines.engine import Cause
from archipel.engines.network.answers import Answers
from archipel.engines.network.bounds import LARGEST, LONGEST, MOST_GRADIENTS
from archipel.engines.network.engine import NetworkEngine
from archipel.engines.network.fitting import fitted
from archipel.engines.network.in_memory import MemoryLink
from archipel.engines.network.letters import Letter
from archipel.engines.network.opened import Patience
from archipel.engines.network.party_loop import PartyLoop
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.server import Steps, Upload
from archipel.engines.network.transport import Partials, Refused
from archipel.federation.coordinator.rescale import rescale
from archipel.federation.scale import Scale, digest, path_of, read
from archipel.federation.site.binding import schema_of
from archipel.federation.site.site import signed
from archipel.runs.listing import open_run
from archipel.tree import leaves
from network.test_coming_and_going import Clinics, scaling_of
from network.test_coming_and_going import play as at_most_90_seconds
from network.test_federation import attend, coordinator, members, text_of

DATA = ar.load("heart_disease").standardised()
MALLORY = 3  # the last of four parties


def linear():
    torch.manual_seed(0)
    return ar.Model(nn.Linear(13, 2))


class Spoiling(MemoryLink):
    """The link of a member that changes what it uploads: `change(round, message, array)`."""

    change: Any = None

    async def ask(self, letter):
        if letter.kind == "upload" and self.change is not None:
            t, number = letter["round"], letter["number"]
            arrays = [self.change(t, number, array) for array in letter.arrays]
            letter = replace(letter, arrays=arrays, hashed=None)
        return await super().ask(letter)


async def played(algorithm, cohorts, change=None, patience=None):
    """A coordinator's engine and what came of its rounds, with a member that spoils uploads."""
    model = linear()
    boxes, anatomy = fitted(algorithm, DATA, model, 0, 0)
    engine = NetworkEngine(boxes, model, anatomy, DATA.training, "s")
    answers, tasks, outcomes = Answers(engine), [], []

    async def answer(who, letter):
        return await answers.answer(int(who), letter)

    for k in range(DATA.training):
        party_state = PartyState(
            algorithm, DATA.select(np.array([k])), copy.deepcopy(model), party=k
        )
        link = Spoiling(str(k), answer, Partials())
        link.change = change if k == MALLORY else None
        tasks.append(asyncio.create_task(PartyLoop(party_state, link, "s", pause=0.01).run()))
    try:
        for t, cohort in enumerate(cohorts):
            outcomes.append(await asyncio.wait_for(engine.round(t, cohort, patience), 600))
            answers.verdicts[t] = frozenset(outcomes[-1].arrived.tolist())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return engine, outcomes


EVERYBODY, HONEST = [[0, 1, 2, 3]] * 3, [[0, 1, 2]] * 3
WORK = {"lr": 0.05, "local_steps": 2, "batch_size": 8}


# -- uploads that the shared model does not survive ------------------------------------------------


@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(**WORK), FedOpt(**WORK), FedOpt(server_optimiser="yogi", **WORK), Scaffold(**WORK),
     PeFLL(local_steps=2, batch_size=8, size=4, hidden=5)],
    ids=["fedavg", "adam", "yogi", "scaffold", "pefll"],
)  # fmt: skip
@pytest.mark.parametrize("value", [1e30, float("nan"), float("-inf")])
def test_h3_an_upload_of_absurd_numbers_is_left_out_and_its_sender_named(algorithm, value):
    """H3: finite 1e30 ended a study with FedOpt, whose moments square it."""
    engine, outcomes = asyncio.run(
        played(algorithm, EVERYBODY, lambda t, number, x: torch.full_like(x, value))
    )
    without, _ = asyncio.run(played(algorithm, HONEST))

    assert [outcome.missing for outcome in outcomes] == [{MALLORY: Cause("diverged")}] * 3
    assert [outcome.diverged.tolist() for outcome in outcomes] == [[MALLORY]] * 3
    torch.testing.assert_close(leaves(engine.shared), leaves(without.shared), rtol=0, atol=0)


@pytest.mark.parametrize(
    "algorithm",
    [FedOpt(server_optimiser="sgd", server_lr=1e3, **WORK), Scaffold(server_lr=1e3, **WORK)],
    ids=["fedopt", "scaffold"],
)
def test_h3_a_server_step_that_one_upload_spoils_is_computed_again_without_it(algorithm):
    """H3: every number of the upload is in bounds, what the server makes of it is not."""
    engine, outcomes = asyncio.run(
        played(algorithm, EVERYBODY, lambda t, number, x: torch.full_like(x, 0.9 * LARGEST))
    )
    without, _ = asyncio.run(played(algorithm, HONEST))

    assert [outcome.missing for outcome in outcomes] == [{MALLORY: Cause("diverged")}] * 3
    torch.testing.assert_close(leaves(engine.shared), leaves(without.shared), rtol=0, atol=0)


def test_h3_a_later_message_that_spoils_a_round_is_left_out_and_others_answer_nothing_twice():
    """H3: PeFLL's second upload makes the reply absurd; the round goes on without its sender."""
    algorithm = PeFLL(local_steps=2, batch_size=8, size=4, hidden=5)

    def change(t, number, x):
        return torch.full_like(x, 0.9 * LARGEST) if (t, number) == (1, 1) else x

    engine, outcomes = asyncio.run(played(algorithm, EVERYBODY, change))

    assert [outcome.missing for outcome in outcomes] == [{}, {MALLORY: Cause("diverged")}, {}]
    assert outcomes[1].arrived.tolist() == [0, 1, 2]
    assert all(float(leaf.abs().max()) < 1e3 for leaf in leaves(engine.shared))


@dataclass(frozen=True)
class Late:
    """What parties say first shows in the server's last step, to the fourth power."""

    def init(self, w):
        return w, None

    def party(self, me, w, _):
        yield 0 * w + 1e-3
        return 0 * w, None

    def server(self, w, uploads):
        said = uploads.mean()
        yield 0 * w
        return w + said**4


def test_h3_a_round_that_an_earlier_message_spoils_is_done_again_without_its_sender():
    def change(t, number, x):
        return torch.full_like(x, 0.9 * LARGEST) if (t, number) == (1, 0) else x

    engine, outcomes = asyncio.run(played(Late(), EVERYBODY, change))
    without, _ = asyncio.run(played(Late(), [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2]]))

    missing = [outcome.missing for outcome in outcomes]
    assert missing == [{}, {MALLORY: Cause("diverged")}, {MALLORY: Cause("diverged before")}]
    assert [outcome.diverged.tolist() for outcome in outcomes] == [[], [MALLORY], []]
    torch.testing.assert_close(engine.vector(), without.vector())


def test_the_quorum_holds_after_somebody_was_left_out():
    algorithm = FedOpt(server_optimiser="sgd", server_lr=1e3, **WORK)

    def change(t, number, x):
        return torch.full_like(x, 0.9 * LARGEST)

    engine, outcomes = asyncio.run(played(algorithm, [[0, 1, MALLORY]], change, Patience(needed=3)))

    (outcome,) = outcomes
    assert outcome.arrived.tolist() == []
    assert outcome.missing == {MALLORY: Cause("diverged")}
    assert torch.equal(engine.vector(), linear().w)


def test_a_member_that_is_alone_in_a_round_does_not_end_the_study():
    algorithm = FedOpt(server_optimiser="sgd", server_lr=1e3, **WORK)
    _, outcomes = asyncio.run(
        played(algorithm, [[MALLORY], [0]], lambda t, number, x: torch.full_like(x, 0.9 * LARGEST))
    )

    assert [outcome.arrived.tolist() for outcome in outcomes] == [[], [0]]


def test_all_who_spoil_a_round_are_left_out_and_nobody_else():
    """Two together are found as well; a large upload that does no harm stays."""
    algorithm, model = FedOpt(server_optimiser="sgd", server_lr=1e3, **WORK), linear()
    steps = Steps(*fitted(algorithm, DATA, model, 0, 0), Shared(*[model.w] * 3), 5, 0)
    sizes = [1e-3, 0.5 * LARGEST, 1e6, 0.6 * LARGEST, 1e-3]
    _, out = steps.take(
        {k: Upload([torch.full_like(model.w, size)], 9.0, 1) for k, size in enumerate(sizes)}
    )

    assert out == [1, 3]
    assert steps.there == [0, 2, 4]


def test_a_study_whose_every_upload_diverges_says_so():
    with pytest.raises(ar.errors.RunFailed, match="no longer finite, or beyond 1e\\+12, after 3"):
        asyncio.run(played(FedOpt(server_optimiser="sgd", server_lr=1e30, **WORK), HONEST))


# -- numbers that are none -------------------------------------------------------------------------


def opened(algorithm=None, **options):
    """An engine with a desk, an open round of two parties, and an upload that fits it."""
    algorithm, model = algorithm or FedAvg(**WORK), linear()
    boxes, anatomy = fitted(algorithm, DATA, model, 0, 0)
    engine = NetworkEngine(boxes, model, anatomy, 2, "s")
    answers = Answers(engine, **options)
    fields = {"study": "s", "round": 0, "number": 0, "n": 9.0, "gradients": 1, "signature": b""}

    async def upload(party, t=0, **changes):
        while engine.opened is None or engine.opened.round != t:
            await asyncio.sleep(0)
        right = {"attempt": engine.opened.attempt, "answers": engine.opened.letters[party].name}
        changed = {**fields, **right, "round": t, **changes}
        return await answers.answer(party, Letter("upload", changed, [model.w]))

    return engine, answers, upload


@pytest.mark.parametrize(
    "changes",
    [{"gradients": 1 << 63}, {"gradients": -1}, {"gradients": MOST_GRADIENTS + 1},
     {"n": 2.0**40}, {"n": 1.5}, {"n": 0.0}, {"n": float("inf")}, {"n": float("nan")},
     {"round": -1}, {"round": 1 << 63}, {"number": -1}, {"number": 1}, {"number": (1 << 64) - 1},
     {"attempt": -1}, {"attempt": 1 << 63}],
    ids=str,
)  # fmt: skip
def test_h3_a_number_that_cannot_be_is_refused_and_the_round_goes_on(changes):
    async def play():
        engine, _, upload = opened()
        running = asyncio.create_task(engine.round(0, [0, 1]))
        with pytest.raises(Refused):
            await upload(1, **changes)
        await upload(0)
        await upload(1, gradients=MOST_GRADIENTS)
        return await running

    outcome = asyncio.run(play())
    assert outcome.arrived.tolist() == [0, 1]
    assert outcome.gradients == MOST_GRADIENTS + 1 < 1 << 63  # SQLite holds it
    assert not outcome.missing


@pytest.mark.parametrize("pending", [-(1 << 63), -1, 7, (1 << 63) - 1, (1 << 64) - 1])
def test_a_party_may_ask_for_the_verdict_of_any_round_and_gets_its_work(pending):
    async def play():
        engine, answers, _ = opened()
        running = asyncio.create_task(engine.round(0, [0, 1]))
        while engine.opened is None:
            await asyncio.sleep(0)
        asks = Letter("next", {"study": "s", "pending": pending, "busy": None})
        found = await answers.answer(1, asks)
        running.cancel()
        return found is engine.opened.letters[1]

    assert asyncio.run(play())


def test_a_party_that_is_refused_again_and_again_is_not_waited_for():
    async def play():
        engine, _, upload = opened()
        running = asyncio.create_task(engine.round(0, [0, 1]))
        await upload(0)
        for _ in range(16):
            with pytest.raises(Refused):
                await upload(1, n=0.5)
        return await asyncio.wait_for(running, 600)

    outcome = asyncio.run(play())
    assert outcome.arrived.tolist() == [0]
    assert outcome.missing == {1: Cause("refused", "its uploads are no answer")}


def test_a_party_has_as_many_points_in_every_round_also_after_a_restart():
    """A member's weight in the mean is what it told at first."""

    async def play(engine, upload, t, n):
        running = asyncio.create_task(engine.round(t, [0]))
        try:
            await upload(0, t, n=n)
            await running
        finally:
            running.cancel()

    engine, _, upload = opened()
    asyncio.run(play(engine, upload, 0, 9.0))
    again, _, anew = opened()
    again.restore(engine.state())

    for each, send in ((engine, upload), (again, anew)):
        with pytest.raises(Refused, match="n = 10, where this party told 9 training points"):
            asyncio.run(play(each, send, 1, 10.0))


@pytest.mark.parametrize("number", [-1, 1, 1 << 62])
def test_a_letter_with_a_message_that_the_algorithm_has_not_leaves_a_seat_as_it_was(number):
    """`number = -1` was an IndexError and emptied the round that was open."""
    data = DATA.select(np.array([0]))
    party_state = PartyState(FedAvg(**WORK), data, linear(), party=0, rounds=3)
    sent, _ = party_state.work(0, 0, [party_state.model.w])
    for t in (0, 1):
        with pytest.raises(Refused, match="is none of the algorithm's"):
            party_state.work(t, number, [party_state.model.w])

    assert party_state.work(0, 0, [party_state.model.w])[0] is sent


# -- scores ----------------------------------------------------------------------------------------

SCORES = {"study": "s", "round": 1, "metrics": {"accuracy": 0.5, "loss": 0.7}, "own": None,
          "points": 3, "signature": b""}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [{"metrics": {"loss": 0.7}}, {"metrics": {}}, {"metrics": {"accuracy": 1.5}},
     {"metrics": {"accuracy": -0.1}}, {"metrics": {"accuracy": 0.5, "r2": 2.0}},
     {"metrics": {"accuracy": 0.5, "weight": 1.0}}, {"metrics": {"accuracy": 1}},
     {"own": {"accuracy": 0.5}}, {"points": 4}, {"points": 2**40}],
    ids=str,
)  # fmt: skip
def test_h3_scores_that_lack_the_studys_metric_or_cannot_be_are_refused(changes):
    """H3: scores without the study's metric ended the study."""

    async def play():
        _, answers, _ = opened(metric="accuracy")
        answers.points[0] = 3
        running = asyncio.create_task(answers.evaluate(1, [0]))
        await asyncio.sleep(0)
        with pytest.raises(Refused, match="the scores are not"):
            await answers.answer(0, Letter("scores", {**SCORES, **changes}))
        await answers.answer(0, Letter("scores", SCORES))
        return await asyncio.wait_for(running, 600)

    assert list(asyncio.run(play())) == [0]


def test_a_site_without_test_points_sends_no_scores_and_one_that_diverged_undefined_ones():
    async def play():
        _, answers, _ = opened(metric="accuracy")
        running = asyncio.create_task(answers.evaluate(1, [0, 1]))
        await asyncio.sleep(0)
        await answers.answer(0, Letter("scores", {**SCORES, "metrics": {}, "points": 0}))
        huge = {"accuracy": float("nan"), "loss": float("inf"), "rmse": 1e300}
        await answers.answer(1, Letter("scores", {**SCORES, "metrics": huge}))
        return await asyncio.wait_for(running, 600)

    found = asyncio.run(play())
    assert found[0]["metrics"] == {}
    assert all(value != value for value in found[1]["metrics"].values())


def test_scores_of_own_models_are_there_where_parties_have_them():
    async def play():
        _, answers, _ = opened(PeFLL(local_steps=1, size=4, hidden=5), metric="accuracy")
        running = asyncio.create_task(answers.evaluate(1, [0]))
        await asyncio.sleep(0)
        for own in (None, {}, {"loss": 1.0}):
            with pytest.raises(Refused, match="accuracy is missing"):
                await answers.answer(0, Letter("scores", {**SCORES, "own": own}))
        await answers.answer(0, Letter("scores", {**SCORES, "own": {"accuracy": 0.5}}))
        return await asyncio.wait_for(running, 600)

    assert list(asyncio.run(play())) == [0]


# -- time ------------------------------------------------------------------------------------------


def test_m1_an_evaluation_ends_with_its_deadline_whatever_a_member_says():
    """M1: "busy" letters held a study in its evaluation without an end."""

    async def play():
        _, answers, _ = opened(silence=60.0, limit=0.2)
        running = asyncio.create_task(answers.evaluate(1, [0, 1]))
        await asyncio.sleep(0)
        await answers.answer(0, Letter("scores", SCORES))
        said = 0
        while not running.done():
            said += 1
            busy = {"study": "s", "pending": -1, "busy": f"evaluates, {said}", "reached": said}
            await answers.answer(1, Letter("next", busy))
            await asyncio.sleep(0.01)
        return await running

    assert list(asyncio.run(asyncio.wait_for(play(), 600))) == [0]


def test_m1_the_deadline_of_a_study_bounds_its_evaluations(tmp_path):
    text = text_of(**{"round.deadline": 7.5})

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, _ = await members(one, tmp_path, text, 1)
            one.registry.number(digest)
            return one._server_study(digest, asyncio.get_running_loop())[0].answers._limit

    assert asyncio.run(play()) == 7.5
    assert Patience().limit == LONGEST


@pytest.mark.parametrize("deadline", [None, 50.0])
def test_m1_a_round_ends_although_a_member_goes_on_and_on(deadline):
    async def play():
        engine, answers, _ = opened()
        now, limit = 0.0, deadline or LONGEST
        engine.clock = lambda: now
        patience = Patience(deadline, silence=limit / 2)
        running = asyncio.create_task(engine.round(0, [1], patience))
        while engine.opened is None:
            await asyncio.sleep(0)
        for said in range(1, 5):
            assert not running.done()
            now += limit / 4
            busy = {"study": "s", "pending": -1, "busy": "trains", "reached": said}
            await answers.answer(1, Letter("next", busy))
            engine.opened.moved.set()  # have it look at the clock
            await asyncio.sleep(0.01)
        return await asyncio.wait_for(running, 600)

    outcome = asyncio.run(play())
    assert outcome.missing == {1: Cause("too slow", "trains")}


def test_words_that_change_are_no_progress():
    async def play():
        engine, answers, _ = opened()
        now = 0.0
        engine.clock = lambda: now
        running = asyncio.create_task(engine.round(0, [1], Patience(silence=10.0)))
        while engine.opened is None:
            await asyncio.sleep(0)
        for said in range(3):
            now += 4.0
            busy = {"study": "s", "pending": -1, "busy": f"trains, {said} gradients", "reached": 7}
            await answers.answer(1, Letter("next", busy | ({} if said else {"reached": None})))
            engine.opened.moved.set()
            await asyncio.sleep(0.01)
        now += 8.0  # 12 since the number grew, 8 since the words changed
        engine.opened.moved.set()
        return await asyncio.wait_for(running, 600)

    outcome = asyncio.run(play())
    assert outcome.missing == {1: Cause("silent", "trains, 2 gradients")}


# -- a whole study with a member that lies, over TLS -----------------------------------------------

LIES = {
    "gradients of 2^63": ("fedavg", "upload", {"gradients": 1 << 63}),
    "another n in every round": ("fedavg", "upload", lambda letter: {"n": 7.0 + letter["round"]}),
    "1e30 with FedOpt": ("fedopt", "upload", 1e30),
    "no metric of the study": ("fedavg", "scores", {"metrics": {"loss": 0.1}}),
    "scores beyond all": ("fedavg", "scores", {"metrics": {"accuracy": 1e308, "loss": 1e308}}),
}


def lying(site, kind, lie):
    """The site's links change letters of a kind, and sign what they say."""
    link_of = site.link

    def link():
        found = link_of()
        ask = found.ask

        async def lies(letter):
            if letter.kind == kind:
                arrays, fields = letter.arrays, lie(letter) if callable(lie) else lie
                if isinstance(lie, float):
                    arrays, fields = [torch.full_like(each, lie) for each in arrays], {}
                letter = Letter(kind, {**letter.fields, **fields}, arrays)
                signature = site.identity.sign(signed(letter))
                letter = Letter(kind, {**letter.fields, "signature": signature}, arrays)
            return await ask(letter)

        found.ask = lies
        return found

    site.link = link


@pytest.mark.parametrize("name", LIES)
def test_h3_a_study_with_a_member_that_lies_is_done_with_the_others(tmp_path, name):
    """H3: each of these ended a study at a real coordinator."""
    algorithm, kind, lie = LIES[name]
    text = text_of(algorithm, **{"study.rounds": 3})

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, sites = await members(one, tmp_path, text, 3)
            lying(sites[2][0], kind, lie)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            try:
                run = await asyncio.wait_for(one.run(digest), 600)
                assert await asyncio.gather(*attending[:2]) == [3, 3]
            finally:
                for each in attending:
                    each.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.gather(*attending, return_exceptions=True)
            return run, one.registry.study(digest).state

    run, state = asyncio.run(play())
    assert state == "done"
    assert run.done == 3
    assert bool(torch.isfinite(run.vector).all())
    assert 0 <= run.metrics["accuracy"] <= 1
    missing = [set(cohort.missing) for cohort in run.participation]
    assert missing == ([{2}] * 3 if kind == "upload" else [set()] * 3)
    assert bool(run.parties["accuracy"][:2].isfinite().all())


def test_what_a_site_tells_at_approval_holds_in_every_round(tmp_path):
    text = text_of(**{"study.rounds": 2})

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, sites = await members(one, tmp_path, text, 2)
            one.registry.number(digest)
            server_study, _ = one._server_study(digest, asyncio.get_running_loop())
            return server_study.engine, [int(data.n.sum()) for _, data in sites], sites

    remote, counts, sites = asyncio.run(play())
    assert remote.engine.rows == {0: counts[0], 1: counts[1]}
    assert remote.answers.points == {k: int(data.n_test.sum()) for k, (_, data) in enumerate(sites)}


def test_low_a_site_that_claims_very_many_rows_makes_nobody_take_memory_for_them(tmp_path):
    """A claimed n of 2^40 made the report take terabytes."""
    data = DATA.select(np.array([0]))
    facts = replace(Facts.of(data), n=MOST_ROWS, n_test=MOST_ROWS)
    with pytest.raises(ar.ArchipelError, match="a count below 0, or above 1,000,000,000"):
        Facts.of_json(facts.to_json() | {"n": 1 << 40})
    assert len(shadow("s", {str(k): facts for k in range(50)}).x) == 100 * MOST_ROWS
    text = text_of("scaffold", **{"study.rounds": 1})

    async def play():
        async with coordinator(tmp_path / "c") as one:
            digest, sites = await members(one, tmp_path, text, 2)
            decided = one.registry.decisions(digest)[0]
            one.registry.decide(digest, "site-0", "approved", facts.to_json(), decided.signature)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            await asyncio.wait_for(one.run(digest), 600)
            for each in attending:
                each.cancel()
            await asyncio.gather(*attending, return_exceptions=True)
            return one.home.run_of(digest)

    folder = asyncio.run(play())
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 30), limits[1]))  # 1e9 rows take 8 GB
    try:
        page = open_run(folder).report(tmp_path / "report.html").read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert "1,000,000,000" in page


# -- the scale -------------------------------------------------------------------------------------

SCHEMA = Schema.of({"age": "number", "kind": ["a", "b"], "ill": [0, 1]}, "ill")
RIGHT = [[12.0, 12.0], [600.0, 5.0], [31000.0, 5.0]]  # of age and kind=b


def sums_of(columns):
    return [torch.tensor(column, dtype=torch.float64) for column in columns]


@pytest.mark.parametrize(
    ("index", "column", "value", "said"),
    [
        (1, 0, 1.7e308, "squares of such totals"),
        (2, 0, 1.7e308, "totals of values up to 1e\\+12"),
        (1, 0, float("nan"), "not those of 2 columns"),
        (0, 0, -1.0, "counts up to"),
        (0, 0, 12.5, "counts up to"),
        (0, 0, 2.0**40, "counts up to"),
        (0, 0, 0.0, "squares of such totals"),
        (2, 0, 29000.0, "squares of such totals"),  # less than 600^2 / 12
        (2, 0, -1.0, "squares of such totals"),
        (1, 1, 13.0, "squares of such totals"),
        (1, 1, 4.0, "totals of zeros and ones"),
        (2, 1, 6.0, "totals of zeros and ones"),
        (1, 1, -5.0, "totals of zeros and ones"),
    ],
)
def test_h3_sums_that_no_table_has_are_refused(tmp_path, index, column, value, said):
    """H3: sums with totals of 1.7e308 made a scale of 4.6e305, for ever."""
    scale, sums = Scale(tmp_path / "scale.safetensors", "s", SCHEMA), sums_of(RIGHT)
    sums[index][column] = value
    with pytest.raises(Refused, match=said):
        scale.answer(0, Letter("sums", {"study": "s", "signature": b""}, sums), "ulm")

    assert scale.sent == {}


def test_sums_of_real_columns_are_taken_whatever_they_hold(tmp_path):
    scale = Scale(tmp_path / "scale.safetensors", "s", SCHEMA)
    columns = [
        torch.full((5000,), 1e9 / 3),  # constant: equal but for rounding
        torch.full((5000,), float("nan")),  # empty
        1e11 * torch.randn(5000, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0.1] * 4999 + [1e7]),
    ]
    for party, column in enumerate(columns):
        marks = (torch.arange(5000) % 3 == 0).double()
        sums = list(Sums.of(torch.stack([column.double(), marks], dim=1)))
        scale.answer(party, Letter("sums", {"study": "s", "signature": b""}, sums), "ulm")

    assert sorted(scale.sent) == [0, 1, 2, 3]


class Senders(Clinics):
    """Sites that send sums by hand, and never train."""

    async def asks(self, k, sums=None):
        """Site k asks for the scale, with its sums where it gives them."""
        site, fields = self.sites[k], {"study": self.digest}
        letter = Letter("scale", fields)
        if sums is not None:
            signature = site.sign(Letter("sums", fields, list(sums)))
            letter = Letter("sums", {**fields, "signature": signature}, list(sums))
        link = site.link()
        try:
            return await link.ask(letter)
        finally:
            await link.close()

    async def told(self, k):
        """What site k hears once the scale is made."""
        while (answer := await self.asks(k)).kind == "wait":
            await asyncio.sleep(0.02)
        return answer

    def sums(self, k):
        study = self.sites[k].site_studies.read(self.digest)
        schema = schema_of(study)
        return schema.read(self.path / "tables" / f"clinic-{k}.csv").sums()

    async def starts(self, one):
        self.home.start("clinics")
        while self.digest not in one.server_studies:
            await asyncio.sleep(0.02)
        return one.server_studies[self.digest]

    async def made(self, one):
        path = path_of(self.home.path, self.digest)
        while not path.exists():
            await asyncio.sleep(0.02)
        return read(path)


def command(monkeypatch, *arguments):
    """The exit code of a command, in this process."""
    monkeypatch.setattr("sys.argv", ["archipel", *map(str, arguments)])
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    return 0


def test_h3_a_wrong_scale_is_made_anew_without_the_sums_of_a_site(tmp_path, monkeypatch, capsys):
    """H3: a wrong scale stayed for ever, also when its cause was shut out."""
    clinics = Senders(tmp_path, sites=3)
    asking = {"pending": -1, "busy": None, "reached": None}

    async def main():
        async with clinics.coordinator() as one:
            for k in range(3):
                await clinics.approves(k)
            await clinics.starts(one)
            units = torch.tensor([1000.0, 1.0, 1.0, 1.0])  # age in days or so
            counts, totals, squares = clinics.sums(2)
            days = Sums(counts, units * totals, units**2 * squares)
            for k, sums in ((0, clinics.sums(0)), (1, clinics.sums(1)), (2, days)):
                assert (await clinics.asks(k, sums)).kind == "wait"
            wrong = await clinics.made(one)
            assert torch.equal((await clinics.told(0)).arrays[0], wrong.mean)
            said = "is running; say 'archipel coordinator stop clinics'"
            with clinics.home.occupied(), pytest.raises(ar.ArchipelError, match=said):
                rescale(clinics.home, "clinics")
            clinics.home.stop("clinics")
            while clinics.digest in one.server_studies:
                await asyncio.sleep(0.02)
            with pytest.raises(ar.ArchipelError, match="unknown site of this study 'clinic-9'"):
                rescale(clinics.home, "clinics", ["clinic-9"])
            with pytest.raises(ar.ArchipelError, match="no site is left whose sums make"):
                rescale(clinics.home, "clinics", ["clinic-0", "clinic-1", "clinic-2"])
            without = ["--without", "clinic-2", "--home", clinics.home.path]
            assert command(monkeypatch, "coordinator", "rescale", "clinics", *without) == 0
            assert "sums again without those of clinic-2" in capsys.readouterr().out
            server_study = await clinics.starts(one)
            letter = Letter("next", {**asking, "study": clinics.digest, "scale": digest(wrong)})
            # one that waits for work with the old scale, too: or else it never sends its sums
            assert (await server_study.answer(0, letter)).kind == "rescaled"
            assert (await clinics.asks(0)).kind == "wanted"
            assert (await clinics.asks(2, days)).kind == "wait"
            assert "waits for sums since " in server_study.sites.waiting
            assert "0 of 2 sites have sent theirs" in server_study.sites.waiting
            for k in (0, 1):
                await clinics.asks(k, clinics.sums(k))
            right = await clinics.made(one)
            assert (await server_study.answer(0, letter)).kind == "rescaled"
            for k in range(3):  # whoever asks gets the scale that holds now
                assert torch.equal((await clinics.told(k)).arrays[0], right.mean)
            return wrong, right

    wrong, right = asyncio.run(asyncio.wait_for(main(), 600))
    expected = scaling_of(tmp_path, (0, 1))
    torch.testing.assert_close(right.mean, expected.mean)
    torch.testing.assert_close(right.scale, expected.scale)
    assert float(wrong.mean[0]) > 100 * float(right.mean[0])
    (entry,) = [each for each in clinics.home.audit.entries() if each.what == "rescaled"]
    assert entry.detail["without"] == "clinic-2"


def test_a_scale_by_which_rounds_were_done_stays(tmp_path, monkeypatch):
    clinics = Clinics(tmp_path, rounds=1, sites=1)

    async def main():
        async with clinics.coordinator() as one:
            await clinics.approves(0)
            clinics.goes_up(0)
            clinics.home.start("clinics")
            await clinics.done(one)
            await clinics.goes_down()

    at_most_90_seconds(main())
    before = path_of(clinics.home.path, clinics.digest).read_bytes()
    with pytest.raises(ar.ArchipelError, match="clinics: 1 rounds are done with its scale"):
        rescale(clinics.home, "clinics")
    code = command(monkeypatch, "coordinator", "rescale", "clinics", "--home", clinics.home.path)

    assert code == 2
    assert path_of(clinics.home.path, clinics.digest).read_bytes() == before


def test_h3_the_sums_of_a_revoked_site_are_not_in_the_scale(tmp_path):
    """H3: revoking a site did not undo what its sums had done."""
    clinics = Senders(tmp_path, sites=3)

    async def main():
        async with clinics.coordinator() as one:
            for k in range(3):
                await clinics.approves(k)
            server_study = await clinics.starts(one)
            for k in (0, 2):
                await clinics.asks(k, clinics.sums(k))
            clinics.home.revoke("clinic-2", "it lied")
            await clinics.asks(1, clinics.sums(1))
            found = await clinics.made(one)
            while server_study.presence()["clinic-2"] != "revoked (it lied)":
                await asyncio.sleep(0.02)
            return found

    found = asyncio.run(asyncio.wait_for(main(), 600))
    torch.testing.assert_close(found.mean, scaling_of(tmp_path, (0, 1)).mean)


# -- a study that waits ----------------------------------------------------------------------------


def test_a_study_below_its_quorum_says_so_and_who_is_away_is_shown_as_what_it_is(tmp_path):
    """A stalled study looked healthy, and a site that refused looked away."""
    text = text_of(**{"study.rounds": 2, "round.quorum": 2, "round.on_missing": "wait"})

    async def play():
        async with coordinator(tmp_path / "c", silence=3.0) as one:
            digest, sites = await members(one, tmp_path, text, 2)
            running = asyncio.create_task(one.run(digest))
            tasks = [asyncio.create_task(attend(*sites[0], digest))]
            while digest not in one.server_studies:
                await asyncio.sleep(0.02)
            server_study = one.server_studies[digest]
            link = sites[1][0].link()
            await link.ask(Letter("away", {"study": digest, "reason": "too few rows"}))
            await link.close()
            while "below quorum" not in server_study.sites.waiting:
                await asyncio.sleep(0.02)
            said, presence = server_study.sites.waiting, server_study.presence()
            tasks.append(asyncio.create_task(attend(*sites[1], digest)))
            await asyncio.wait_for(running, 600)
            await asyncio.gather(*tasks)
            return said, presence, server_study.sites.waiting

    said, presence, after = asyncio.run(asyncio.wait_for(play(), 600))
    assert said.startswith("below quorum since 20")
    assert " UTC: " in said
    assert "of 2 sites" in said
    assert presence["site-1"] == "away (too few rows)"
    assert after == ""
