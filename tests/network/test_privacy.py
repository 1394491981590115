"""Privacy between institutions: promises kept at each site, and a ledger that says no."""

import asyncio
import io
import json
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from safetensors.torch import save

import archipel as ar
from archipel.cli import main
from archipel.data.shadow import Facts, shadow
from archipel.engines.network.in_process import meet, play
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.server import Steps, Upload
from archipel.engines.network.transport import Refused
from archipel.engines.plan import Plan
from archipel.errors import BudgetSpent
from archipel.exchange.sender import Sender
from archipel.federation import approval
from archipel.federation.audit import Audit
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.coordinator.server_study import ServerStudy
from archipel.federation.coordinator.status import status_of
from archipel.federation.site import binding, ledger
from archipel.federation.site.account import epsilon_of, for_records
from archipel.federation.site.exposure import Rows
from archipel.federation.site.looking import exposure_at, review_at
from archipel.federation.site.part import party_state_at
from archipel.federation.site.policy import Overspent, Policy, Withheld
from archipel.privacy.promise import Privacy
from archipel.privacy.release import Gaussian, Release
from archipel.report import budget as report
from archipel.runs.listing import open_run, read_run
from archipel.runs.parts import build_model
from archipel.tree import leaves
from network.homes import made_site, study_text, table
from network.test_federation import attend, coordinator, members, simulated, text_of
from problems import classification, network

DATA = classification(5, 4, 3, 0)
ROUNDS = [[0, 1, 2, 3, 4], [0, 2, 3], [0, 1, 2, 3, 4]]
PRIVATE = {"unit": "record", "epsilon": 2.0}


# -- the same as in a simulation -------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm",
    [ar.FedAvg(lr=0.1, batch_size=4), ar.Scaffold(lr=0.05, batch_size=4), ar.FedSGD(lr=0.1)],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize(
    "promise",
    [
        Privacy("record", epsilon=3.0),
        Privacy("record", noise=1e-9, clip=1e3),
        Privacy("party", epsilon=8.0, trust="nobody"),
        Privacy("party", noise=1e-9, clip=1e3, trust="nobody"),
        Privacy("party", epsilon=8.0),
        Privacy("party", noise=1e-9, clip=1e3),
        Privacy("record", epsilon=3.0, correlated="banded:2"),
        Privacy("record", noise=1e-9, clip=1e3, correlated="tree"),
        Privacy("party", epsilon=8.0, correlated="tree"),
        Privacy("party", epsilon=8.0, clip="adaptive"),
    ],
    ids=lambda each: f"{each.unit} {each.trust} {each.epsilon} {each.correlated} {each.clip}",
)
def test_over_letters_it_is_the_simulation_with_the_same_releases(promise, algorithm):
    options = {"plan": Plan("one", 1, 1), "privacy": promise, "rounds": len(ROUNDS)}
    with ar.LocalEngine(algorithm, DATA, network(4, 3), **options) as engine:
        for t, cohort in enumerate(ROUNDS):
            engine.round(t, cohort)
        shared, kept = leaves(engine.shared), engine.kept

    played = asyncio.run(play(algorithm, DATA, network(4, 3), ROUNDS, privacy=promise))

    found = list(leaves(played.engine.shared))
    torch.testing.assert_close(found, list(shared), rtol=1e-6, atol=1e-6)
    for k, party in enumerate(played.party_states):
        for rounds in (1, 3):
            assert party.kept.releases(k, rounds) == kept.releases(k, rounds)
        assert party.kept.neighbours == kept.neighbours


@pytest.mark.parametrize(
    "privacy",
    [
        {"unit": "record", "noise": 1e-9, "clip": 100.0},
        {"unit": "party", "trust": "nobody", "noise": 1e-9, "clip": 100.0},
        {"unit": "party", "noise": 1e-9, "clip": 100.0},
    ],
    ids=lambda each: f"{each['unit']} {each.get('trust')}",
)
def test_between_sites_it_is_the_simulation_and_every_round_is_in_the_ledger(tmp_path, privacy):
    """All records of a batch, so that there is no sample, which is secret here and not there."""
    changes = {f"privacy.{key}": value for key, value in privacy.items()}
    text = text_of("scaffold", **{"algorithm.batch_size": "none", **changes})

    async def run():
        async with coordinator(tmp_path / "c") as one:
            digest, sites = await members(one, tmp_path, text, 4)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            run = await one.run(digest)
            await asyncio.gather(*attending)
            return run, [site for site, _ in sites]

    run, sites = asyncio.run(run())
    expected = simulated(text)
    torch.testing.assert_close(run.vector, expected.vector, rtol=1e-6, atol=1e-6)
    assert_same_ledger(run, sites, expected)


def assert_same_ledger(run, sites, expected):
    """Every site's ledger has, round by round, what the simulation counts for its party."""
    rounds, kept = expected.done, expected.kept
    for k, site in enumerate(sites):
        found = ledger.entries(site)
        assert [each.round for each in found] == list(range(1, rounds + 1))
        assert [list(each.releases) for each in found] == [kept.releases(k, 1)] * rounds
        assert {each.of for each in found} == {kept.rounds}
        (table,) = {each.table for each in found}
        (about,) = {(each.unit, each.neighbours, each.delta) for each in found}
        assert about == (kept.promise.unit, kept.neighbours, kept.promise.delta)
        spent = epsilon_of(ledger.account_of(site, "", table).others, kept.promise.delta)
        assert spent == pytest.approx(kept.spent({k: rounds})[k])
    told, simulated = run.scorecard.privacy, expected.scorecard.privacy
    assert told.epsilon == simulated.epsilon
    assert told.promise == replace(simulated.promise, simulated=False)
    assert "each one's own ledger says what it spent" in told.guarantee


@pytest.mark.parametrize(
    "privacy",
    [
        {"unit": "record", "epsilon": 3.0},
        {"unit": "record", "noise": 0.8},
        {"unit": "party", "trust": "nobody", "epsilon": 9.0},
        {"unit": "party", "epsilon": 9.0},
    ],
    ids=lambda each: " ".join(map(str, each.values())),
)
def test_the_ledgers_of_sites_are_that_of_the_simulation(tmp_path, privacy):
    """With the noise that is planned, and samples that are drawn; and so is the figure of ε."""
    changes = {f"privacy.{key}": value for key, value in privacy.items()}
    text = text_of("fedavg", **{"algorithm.batch_size": 20, "study.rounds": 3, **changes})

    async def run():
        async with coordinator(tmp_path / "c") as one:
            digest, sites = await members(one, tmp_path, text, 4)
            attending = [asyncio.create_task(attend(s, d, digest)) for s, d in sites]
            run, seen = await one.run(digest), status_of(one)["studies"][digest]
            await asyncio.gather(*attending)
            return run, seen, [site for site, _ in sites], one.home.run_of(digest)

    run, seen, sites, folder = asyncio.run(run())
    expected = simulated(text)
    assert_same_ledger(run, sites, expected)
    unit, planned = privacy["unit"], expected.kept.at_most(3)
    assert seen["epsilon"] == planned
    assert seen["privacy"] == f"ε ≤ {planned:.3g} of {planned:.3g} by {unit}, as sites plan"
    for again in (open_run(folder), read_run(folder)):
        assert again.scorecard.privacy.promise == run.scorecard.privacy.promise
    (spent, *_), _ = (axes.lines for axes in report.privacy(run).axes)
    curve = expected.scorecard.privacy.promise.curve
    assert spent.get_xydata().tolist() == [list(each) for each in curve] and len(curve) == 3


@pytest.mark.parametrize("trust", ["server", "nobody"])
def test_a_coordinator_that_is_trusted_adds_noise_of_its_own_to_the_mean(trust):
    """Uploads that all are 0, and one far beyond the clip, which it does not believe."""
    facts = Facts((4,), 3, "classification", 20, 5)
    sites = dict.fromkeys("abcd", facts)
    fed = shadow("study", sites)
    model = build_model("logistic", fed, None, 0)
    promise = Privacy("party", noise=3.0, clip=2.0, trust=trust)
    events = asyncio.new_event_loop()
    study = ServerStudy(
        ar.FedAvg(lr=0.1), fed, model, {"rounds": 4, "privacy": promise}, "s", sites, events
    )
    events.close()
    engine, found = study.engine.engine, []
    assert study.run.kept.noise == dict.fromkeys(range(4), 3.0)
    for _ in range(60):
        uploads = {}
        for k in range(4):
            far = torch.full_like(model.w, 1e6 if k == 3 else 0.0)
            came = engine.boxes.receive(0, Sender(0, 0, 0, np.array([k]), (), None), far)
            uploads[k] = Upload(leaves(came), 20.0, 0)
        steps = Steps(engine.boxes, engine.anatomy, engine.shared, 4, 0)
        shared, out = steps.take(uploads)
        assert out == []
        found.append(shared - model.w)
    drawn = torch.stack(found).double()  # [60, p]: clipped to 2, over 4, with noise of 6 over 4
    if trust == "nobody":
        assert float(drawn.std(dim=0).max()) == 0.0  # it came with the uploads
        return
    assert not engine.anatomy.messages[0].asks & {"mean by examples", "n", "stack"}
    assert float(drawn.mean(dim=0).norm()) < 2.0
    count = drawn.numel()
    spread = float(drawn.std())
    assert abs(spread / 1.5 - 1) < 3.9 / (2 * count) ** 0.5 + 0.01


# -- a party with its own ledger -------------------------------------------------------------------


@dataclass(frozen=True)
class Twice:
    """Two messages a round: a gradient, and one where the mean of the first leads."""

    lr: float = 0.1

    def init(self, w):
        return w, None

    def party(self, me, w, _):
        mean = yield me.grad(w)
        return me.grad(w - self.lr * mean), None

    def server(self, w, uploads):
        uploads = yield uploads.mean()
        return w - self.lr * uploads.mean()


def party_of(algorithm, charged, private=True, rounds=3, **promise):
    promise = Privacy(**{"unit": "record", "noise": 1.0, **promise})
    data = DATA.select(np.array([1]))

    def charge(t, kept, noise):
        """As the ledger does: the same noise is the same charge."""
        if (t, noise) not in charged:
            charged.append((t, noise))

    return PartyState(
        algorithm, data, network(4, 3), party=1, rounds=rounds, private=private, parties=5,
        privacy=promise, charge=charge,
    )  # fmt: skip


def rounds(charged):
    return [t for t, _ in charged]


def test_a_round_is_charged_again_only_where_its_noise_is_another():
    charged = []
    party = party_of(Twice(), charged)
    w = leaves(party.anatomy.sent)
    first, _ = party.work(0, 0, w)
    kept = party.state()
    reply = [torch.full_like(w[0], 0.1)]
    second, _ = party.work(0, 1, reply)

    again = party_of(Twice(), charged)
    again.restore(kept)
    assert torch.equal(again.work(0, 0, w)[0][0], first[0])
    assert torch.equal(again.work(0, 1, reply)[0][0], second[0])
    assert rounds(charged) == [0]  # the same noise on the same gradients, also after a restart

    other, _ = again.work(0, 1, [reply[0] + 1e-6])
    assert rounds(charged) == [0, 0]
    # with the noise of before, two uploads would differ by what the records make of the change
    assert float((other[0] - second[0]).norm()) > 1e-3
    again.verdict(0, True)
    again.work(1, 0, w)
    assert rounds(charged) == [0, 0, 1]


def test_nothing_is_computed_that_is_not_charged():
    party = party_of(ar.FedAvg(lr=0.1, batch_size=4), [])

    def refuse(t, kept, noise):
        raise Overspent("no.")

    party._charge = refuse
    party._advance = None  # would fail otherwise
    with pytest.raises(Overspent):
        party.work(0, 0, leaves(party.anatomy.sent))


def test_what_could_not_be_charged_is_charged_when_it_is_tried_again():
    """Also after a restart from what was on the disk at that moment."""
    charged = []
    party = party_of(ar.FedSGD(lr=0.1), charged)
    charge, party._charge = party._charge, lambda *_: (_ for _ in ()).throw(Overspent("no."))
    w = leaves(party.anatomy.sent)
    with pytest.raises(Overspent):
        party.work(0, 0, w)
    again = party_of(ar.FedSGD(lr=0.1), charged)
    again.restore({**party.state(), "last": torch.tensor([-1, 0])})
    again.work(0, 0, w)
    assert rounds(charged) == [0]
    party._charge = charge
    party.work(0, 0, w)
    assert rounds(charged) == [0]  # it has the same secrets, and says the same
    assert torch.equal(party.turn.outbox[0][0], again.turn.outbox[0][0])


def test_a_letter_that_is_none_costs_nothing():
    charged = []
    party = party_of(Twice(), charged)
    w = leaves(party.anatomy.sent)
    for number, arrays in ((1, w), (0, [w[0][:3]]), (0, [w[0] * float("nan")]), (7, w)):
        with pytest.raises(Refused):
            party_of(Twice(), charged).work(0, number, arrays)
    assert charged == []


@pytest.mark.parametrize("algorithm", [ar.FedAvg(lr=0.1, batch_size=4), ar.FedSGD(lr=0.1)], ids=str)
@pytest.mark.parametrize("promise", [{}, {"unit": "party", "trust": "nobody"}], ids=str)
def test_noise_differs_from_run_to_run(algorithm, promise):
    """A simulation draws it from the seed, which everybody has."""

    def upload(private):
        party = party_of(algorithm, [], private, **promise)
        return party.work(0, 0, leaves(party.anatomy.sent))[0][0]

    one, other = upload(True), upload(True)
    assert not torch.isclose(one, other).any()
    assert torch.equal(upload(False), upload(False))


def test_how_many_records_are_in_a_sample_does_not_leave():
    """Neither as a count of gradients, nor as a refusal of samples that came out small."""
    seen = []

    class Rules(Policy):
        def check_model(self, model, w):
            pass

        def check_upload(self, records, rows):
            seen.append(records)

    data = DATA.select(np.array([1]))
    party = PartyState(
        ar.FedSGD(lr=0.1, batch_size=2), data, network(4, 3), party=1, rounds=40, rules=Rules(),
        privacy=Privacy("record", noise=1.0),
    )  # fmt: skip
    counts = {party.work(t, 0, leaves(party.anatomy.sent))[1] for t in range(40)}
    assert counts == {2}  # on average
    assert set(seen) == {0}


@dataclass(frozen=True)
class Mixing:
    """A peer that mixes what it made of its records."""

    mixes: int = 1

    def init(self, w):
        return w

    def party(self, me, w):
        for _ in range(self.mixes):
            w = me.mix(w - 0.1 * me.grad(w))
        return w


@pytest.mark.parametrize("mixes", [1, 2])
def test_a_peer_that_is_killed_sends_the_same_and_pays_once_where_that_is_sure(mixes):
    """With two vectors a round, the second is made of what came, which may be another."""
    charged, left, kept = [], [], []

    def lost(x, *_):
        kept.append(party.state())  # before it leaves
        left.append(x.clone())
        raise Refused("killed.")

    party = party_of(Mixing(mixes), charged)
    with pytest.raises(Refused):
        party.alone(0, lost)
    again = party_of(Mixing(mixes), charged)
    again.restore(kept[0])

    def mixing(x, *_):
        left.append(x.clone())
        return x

    again.alone(0, mixing)
    assert torch.equal(left[0], left[1])
    assert rounds(charged) == [0] * mixes
    again.alone(1, mixing)
    assert rounds(charged) == [0] * mixes + [1]


def test_a_peer_that_hears_something_else_after_a_restart_draws_other_noise():
    """The same noise on two gradients would show the difference between them."""
    kept, left = [], []
    party = party_of(Mixing(2), [])
    party.alone(0, lambda x, *_: (kept.append(party.state()), x)[1])
    for change in (0.0, 0.0, 1e-6):
        again = party_of(Mixing(2), [])
        again.restore(kept[0])
        found, _ = again.alone(0, lambda x, *_, change=change: x + change)
        left.append(found.state)
    assert torch.equal(left[0], left[1])
    assert float((left[0] - left[2]).norm()) > 1e-3


def test_peers_over_letters_are_their_simulation():
    algorithm, promise = ar.DSGD(lr=0.1, batch_size=4), Privacy("record", noise=0.5)
    ring, model = ar.topology("ring", 5), network(4, 3)
    options = {"plan": Plan("one", 1, 1), "privacy": promise, "rounds": 2, "topology": ring}
    with ar.LocalEngine(algorithm, DATA, model, **options) as engine:
        for t in range(2):
            engine.round(t, range(5))
        (own,) = leaves(engine.own_states(range(5)))

    found = asyncio.run(meet(algorithm, DATA, model, ring, 2, privacy=promise))

    torch.testing.assert_close(torch.stack(found), own, rtol=1e-6, atol=1e-6)


# -- a site ----------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path):
    one = made_site(tmp_path / "ulm")
    Policy(least_sites=3).write(one.home)
    return one


@pytest.fixture
def run(site, capsys, monkeypatch):
    """A command of the site; returns exit code, output and errors."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["archipel", *arguments, "--home", str(site.home)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return command


class Desk:
    """A site in one study, with what is on its disk and what has left it."""

    def __init__(self, site, folder, rows=200, name="heart", privacy=None, **sections):
        self.site, self.left = site, set()
        promise = {**PRIVATE, **(privacy or {})}
        self.text = study_text(study={"name": name, "rounds": 5}, privacy=promise, **sections)
        self.digest, study = site.site_studies.put(self.text), approval.read(self.text)
        file = folder / f"{rows}.csv"
        binding.bind(site.home / "data", study, file if file.exists() else table(file, rows))
        records = binding.records(site.home / "data", study)
        self.data = records.federation(records.sums().scaling(), site.name)
        self.rows = Rows(int(self.data.n.sum()), int(self.data.n_test.sum()))
        self.empty = records.schema.empty()

    def approve(self):
        self.site.decide(self.text, "approved", None)
        self.site.site_studies.seated(self.digest, 0)
        return self

    def begin(self):
        return party_state_at(self.site, self.digest, self.data)

    def round(self, t, begun=None):
        party, path = begun or self.begin()
        sent = leaves(party.anatomy.sent)
        upload, _ = party.work(t, 0, sent)
        path.write_bytes(save(party.state()))
        self.left.add(b"".join(each.numpy().tobytes() for each in upload))
        return party

    def rounds(self, count):
        for t in range(count):
            party = self.round(t)
            party.verdict(t, True)
            (self.site.site_studies.folder(self.digest) / "state.safetensors").write_bytes(
                save(party.state())
            )

    @property
    def charged(self):
        return [e.round for e in ledger.entries(self.site) if e.study == self.digest]

    def exposure(self):
        return exposure_at(self.site, self.digest, self.empty, self.rows)

    def account(self):
        table = ledger.table_of(self.site, approval.read(self.text))
        return ledger.account_of(self.site, self.digest, table)


class Killed(BaseException):
    """The process is no more."""


MOMENTS = ["before the charge", "in the charge", "after the charge", "computed", "kept"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_site_that_is_killed_counts_every_round_once(site, tmp_path, monkeypatch, moment):
    desk = Desk(site, tmp_path).approve()
    desk.rounds(1)
    assert desk.charged == [1] and len(desk.left) == 1

    with monkeypatch.context() as patch:

        def die(*_, **__):
            raise Killed

        def torn(self, what, **detail):
            append(self, what, **detail)
            content = self.path.read_bytes()
            self.path.write_bytes(content[:-40])  # not all of it reached the disk
            raise Killed

        def late(self, what, **detail):
            append(self, what, **detail)
            raise Killed

        append = Audit.append
        if moment == "before the charge":
            patch.setattr(Audit, "append", die)
        elif moment == "in the charge":
            patch.setattr(Audit, "append", torn)
        elif moment == "after the charge":
            patch.setattr(Audit, "append", late)
        elif moment == "computed":
            patch.setattr(sys.modules[__name__], "save", die)
        else:
            desk.left = Dying(desk.left)
        with pytest.raises(Killed):
            desk.round(1)
    desk.left = set(desk.left)
    assert len(desk.left) == 1  # nothing left

    desk.round(1)
    desk.round(1)  # and once more, as it is

    assert len(desk.left) == 2  # of two rounds one upload each
    assert desk.charged == [1, 2]  # and one entry each


class Dying(set):
    def add(self, _):
        raise Killed


def test_a_study_spends_what_it_promised_and_no_more(site, tmp_path):
    desk = Desk(site, tmp_path).approve()
    desk.rounds(5)

    spent = epsilon_of(desk.account().own, 1e-5)
    assert 1.95 < spent <= 2.0
    assert desk.charged == [1, 2, 3, 4, 5]
    charging = ledger.Charging(site, desk.digest, "elsewhere")
    with pytest.raises(Overspent, match="planned for 5 rounds of this study, which are spent"):
        charging(5, desk.begin()[0].kept, b"other")


def test_rounds_that_were_begun_anew_are_missing_at_the_end(site, tmp_path):
    """What was counted twice was paid twice: the promise holds, and the site stops early."""
    desk = Desk(site, tmp_path).approve()
    desk.round(0)
    site.rescaled(desk.digest)
    desk.rounds(4)
    with pytest.raises(Overspent, match="some were begun anew"):
        desk.round(4)
    assert desk.charged == [1, 1, 2, 3, 4]
    assert len(desk.left) == 5


# -- budgets ---------------------------------------------------------------------------------------


def test_a_study_that_would_overspend_is_not_approved(site, run, tmp_path):
    desk = Desk(site, tmp_path)
    site.policy.changed(["epsilon=1.5"]).write(site.home)

    review = run("site", "review", desk.digest[:12])[1]
    code, _, err = run("site", "approve", desk.digest[:12], "--yes")

    assert code == 4 and site.site_studies.approved() == []
    said = "ε = 0 was spent by other studies, 2 with all rounds of this one, at most 1.5"
    assert said in err
    assert "NOT MET  epsilon" in review
    assert desk.charged == []

    site.policy.changed(["epsilon=2.0"]).write(site.home)
    assert run("site", "approve", desk.digest[:12], "--yes")[0] == 0


def test_whatever_the_coordinator_says_the_site_spends_no_more(site, tmp_path):
    desk = Desk(site, tmp_path).approve()
    site.policy.changed(["epsilon=1.5"]).write(site.home)
    with pytest.raises(BudgetSpent, match=r"epsilon = 1\.5"):  # approved somehow
        desk.begin()

    site.policy.changed(["epsilon=none"]).write(site.home)
    desk.rounds(2)
    party, path = desk.begin()
    site.policy.changed(["epsilon=0.5"]).write(site.home)
    with pytest.raises(Overspent, match=r"epsilon = 0\.5: .* at most 0\.5 for this table"):
        desk.round(2, (party, path))
    assert desk.charged == [1, 2] and len(desk.left) == 2


def test_studies_on_one_table_add_up_and_another_table_has_its_own_account(site, tmp_path):
    one = Desk(site, tmp_path).approve()
    one.rounds(5)
    two = Desk(site, tmp_path, name="lung", privacy={"epsilon": 1.0})
    other = {"schema": {"age": "number", "sex": ["f", "m"], "ill": [0, 1]}}
    three = Desk(site, tmp_path, rows=220, name="skin", data=other)

    site.policy.changed(["epsilon=2.2"]).write(site.home)
    with pytest.raises(Overspent, match=r"ε = 2 was spent by other studies, 2\.\d+ with all"):
        site.policy.refuse(two.exposure())
    site.policy.refuse(three.exposure())
    site.policy.changed(["epsilon=2.9"]).write(site.home)
    site.policy.refuse(two.exposure())
    two.approve().rounds(5)

    together = two.account()
    assert 2.0 < together.epsilon(1e-5) < 2.9
    assert together.epsilon(1e-5) == epsilon_of([*together.others, *together.own], 1e-5)
    assert three.account().epsilon(1e-5) == 0.0
    assert one.account().own == together.others


def test_a_table_in_the_place_of_another_has_its_account(site, tmp_path):
    """A row more would otherwise be a new budget for all the others."""
    Desk(site, tmp_path).approve().rounds(5)
    grown = Desk(site, tmp_path, rows=201, name="lung")

    assert grown.account().epsilon(1e-5) > 1.95
    back = Desk(site, tmp_path, rows=200, name="skin")
    assert back.account().epsilon(1e-5) > 1.95


def test_a_table_that_was_used_without_noise_has_no_budget_left(site, tmp_path):
    text = study_text(study={"rounds": 5})
    desk = Desk(site, tmp_path, name="lung")
    site.decide(text, "approved", None)
    digest = approval.hash_of(text)
    site.site_studies.seated(digest, 0)
    for _ in range(2):
        party_state_at(site, digest, desk.data)
    assert [e.what for e in site.audit.entries()].count("unbounded") == 1
    assert desk.account().epsilon(1e-5) == float("inf")

    site.policy.changed(["epsilon=100.0"]).write(site.home)
    with pytest.raises(Overspent, match="promises no privacy, so no ε is enough"):
        party_state_at(site, digest, desk.data)
    with pytest.raises(Overspent, match="inf was spent by other studies"):
        site.policy.refuse(desk.exposure())


def test_a_site_may_take_private_studies_alone(site, tmp_path):
    Policy(private=True).write(site.home)
    plain, study = study_text(), approval.read(study_text())
    desk = Desk(site, tmp_path)
    digest = site.site_studies.put(plain)
    with pytest.raises(Withheld, match="private = true: the study promises no privacy"):
        site.policy.refuse(exposure_at(site, digest, binding.schema_of(study).empty(), None))
    site.policy.refuse(desk.exposure())


def test_what_is_promised_of_a_site_counts_for_its_records():
    whole = (Release(Gaussian(3.0), None, 4),)
    from archipel.privacy.accounting import epsilon

    found = epsilon_of(for_records(whole, "replace"), 1e-5)
    assert found == pytest.approx(epsilon(whole, 1e-5, neighbours="replace"))
    assert found > 1.5 * epsilon(whole, 1e-5)


# -- a ledger that was changed ---------------------------------------------------------------------


def test_a_changed_ledger_is_noticed(site, run, tmp_path):
    desk = Desk(site, tmp_path).approve()
    desk.rounds(2)
    whole = site.audit.path.read_bytes()
    assert run("privacy", "ledger")[0] == 0

    spent = whole.replace(rb"\"times\": 8", rb"\"times\": 1", 1)
    assert spent != whole
    site.audit.path.write_bytes(spent)
    for command in (("privacy", "ledger"), ("site", "budget")):
        code, _, err = run(*command)
        assert code == 2 and err.count("\n") == 1
        assert "is not signed with this key: it was changed" in err
    with pytest.raises(ar.ArchipelError, match="it was changed, or someone else wrote it"):
        desk.begin()

    lines = whole.splitlines(keepends=True)
    last = max(i for i, line in enumerate(lines) if b'"what":"spent"' in line)
    site.audit.path.write_bytes(b"".join(lines[:last]))
    with pytest.raises(ar.ArchipelError, match="names nothing spent in round 2"):
        desk.begin()
    site.audit.path.write_bytes(whole)
    desk.begin()


def test_the_ledger_of_another_site_is_none(site, tmp_path):
    desk = Desk(site, tmp_path).approve()
    desk.rounds(1)
    another = made_site(tmp_path / "bonn", "bonn")
    Policy().write(another.home)
    Desk(another, tmp_path).approve().rounds(1)
    site.audit.path.write_bytes(another.audit.path.read_bytes())
    with pytest.raises(ar.ArchipelError, match=r"is not (signed with this key|an entry signed)"):
        desk.begin()


# -- what people see -------------------------------------------------------------------------------


def test_a_review_says_what_is_promised_what_it_costs_and_what_is_not_covered(site, tmp_path):
    Desk(site, tmp_path, name="lung").approve().rounds(5)
    desk = Desk(site, tmp_path)

    text = review_at(site, desk.text, desk.empty, [], desk.rows)

    said = " ".join(text.split())
    assert "(ε, δ) = (2, 1e-05) for each of your training records, whoever sees" in said
    assert "accuses 1 in 100 records that were not used, finds at most 3" in said
    assert "of this table other studies have spent ε = 2; with all of this one it is 2." in said
    assert "not covered: scores on your test rows, the sums of columns for the common scale" in said
    assert "how many rows you have" in said
    assert "No noise is added" not in said
    trusting = Desk(site, tmp_path, privacy={"unit": "party", "trust": "server"})
    said = " ".join(review_at(site, trusting.text, trusting.empty, [], None).split())
    assert "and NOT against the coordinator, which adds the noise" in said
    assert "The coordinator sees your uploads one by one" in said
    shared = {"unit": "party", "trust": "sum", "honest": 3}
    summed = Desk(site, tmp_path, privacy=shared, wire={"sum": "secure"})
    said = " ".join(review_at(site, summed.text, summed.empty, [], None).split())
    assert "the coordinator included, as long as 3 sites of every sum keep their share" in said
    assert "yours adds its own, and helps to no sum of fewer than 4" in said


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({"epsilon": None, "noise": 1e-9}, "finds at most 100 in 100"),
        ({"epsilon": None, "noise": 1e6}, "finds at most 1.1 in 100"),
        ({"epsilon": 0.01, "unit": "party", "trust": "nobody"}, "for this site with all its"),
    ],
    ids=str,
)
def test_a_review_says_what_little_or_much_noise_means(site, tmp_path, privacy, said):
    desk = Desk(site, tmp_path, privacy=privacy)
    text = review_at(site, desk.text, desk.empty, [], desk.rows)
    assert said in " ".join(text.split())
    before = " ".join(review_at(site, desk.text, desk.empty, [], None).split())
    assert "What is promised" in before


def test_a_budget_at_a_delta_that_is_too_large_for_a_table_is_none(site, tmp_path):
    desk = Desk(site, tmp_path)
    site.policy.changed(["epsilon=9.0", "delta=0.01"]).write(site.home)
    with pytest.raises(Withheld, match=r"delta = 0.01: 160 training rows here"):
        site.policy.refuse(desk.exposure())


@pytest.mark.parametrize(
    ("unit", "why"),
    [("record", "asks for me.examples, which are the records"), ("party", "asks the server for")],
)
def test_an_algorithm_that_cannot_be_private_is_refused(site, tmp_path, unit, why):
    algorithm = {"name": "pefll", "batch_size": 20}
    desk = Desk(site, tmp_path, privacy={"unit": unit}, algorithm=algorithm)
    text = " ".join(review_at(site, desk.text, desk.empty, [], desk.rows).split())
    assert f'NOTHING, though the study says so: privacy.unit = "{unit}": PeFLL {why}' in text
    with pytest.raises(Withheld, match=why):
        site.policy.refuse(desk.exposure())
    home = CoordinatorFolder.create(tmp_path / "c", "test", "localhost:1")
    with pytest.raises(ar.ArchipelError, match=f'^privacy.unit = "{unit}": PeFLL {why}'):
        home.submit(desk.text)


def test_a_delta_that_one_record_could_be_published_for_is_refused(site, tmp_path):
    desk = Desk(site, tmp_path, privacy={"delta": 0.01})
    with pytest.raises(Withheld, match=r"privacy.delta = 0.01: a party has 160 records"):
        site.policy.refuse(desk.exposure())


def test_the_budget_and_the_ledger_are_shown(site, run, tmp_path):
    site.policy.changed(["epsilon=3.0"]).write(site.home)
    assert run("privacy", "ledger")[1] == "Nothing was spent yet.\n"
    desk = Desk(site, tmp_path).approve()
    desk.rounds(3)

    code, out, _ = run("site", "budget", "--json")
    told = json.loads(out)
    assert code == 0
    (row,) = told["studies"]
    assert row["epsilon"] == pytest.approx(epsilon_of(desk.account().own, 1e-5))
    assert row["planned"] == pytest.approx(2.0, rel=2e-3) and row["delta"] == 1e-5
    (of,) = told["tables"]
    assert of["left"] == pytest.approx(3.0 - of["epsilon"])
    said = run("site", "budget")[1]
    assert f"ε = {row['epsilon']:.3g} of 2 spent, δ = 1e-05" in said
    assert f"of a budget of 3; {of['left']:.3g} is left." in said

    (listed,) = json.loads(run("site", "studies", "--json")[1])["studies"]
    assert listed["privacy"] == {key: row[key] for key in ("epsilon", "planned", "delta")}
    assert f"ε = {row['epsilon']:.3g} of 2" in " ".join(run("site", "studies")[1].split())

    entries = json.loads(run("privacy", "ledger", "--json")[1])["entries"]
    assert [each["round"] for each in entries] == [1, 2, 3]
    assert entries[0]["releases"][0]["sampling"] == "poisson"
    assert "3 of 5" in run("privacy", "ledger")[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("epsilon=-1", "policy.epsilon = -1"),
        ("epsilon=nan", "policy.epsilon = "),
        ("delta=0", "policy.delta = 0"),
        ("delta=1.5", "policy.delta = 1.5"),
        ("private=maybe", "policy.private"),
    ],
)
def test_a_budget_that_is_none_is_refused(site, change, said):
    with pytest.raises(ar.ArchipelError, match=said):
        site.policy.changed([change])
    assert site.policy.changed(["epsilon=none"]).epsilon is None
