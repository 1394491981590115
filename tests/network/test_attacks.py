"""What a hostile coordinator or a hostile study's author does, against a site's careful policy."""

import asyncio

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

import archipel as ar
from archipel.engines.network.answers import Answers
from archipel.engines.network.engine import NetworkEngine
from archipel.engines.network.letters import Letter
from archipel.engines.network.party_loop import PartyLoop
from archipel.engines.network.transport import Refused
from archipel.federation import approval
from archipel.federation.coordinator.coordinator import Coordinator
from archipel.federation.site.part import party_state_at
from archipel.federation.site.personal import personalise
from archipel.federation.site.policy import Policy, Standing, Withheld
from archipel.runs.parts import build_model
from archipel.tree import leaves
from network.homes import made_site, study_text, table
from network.processes import Drill
from network.test_policy import patients, released, seat_of

pytestmark = pytest.mark.careful


# -- scores ----------------------------------------------------------------------------------------


class Repeating:
    """Has one letter evaluated again and again, and gives other advice each time."""

    most = pieces = 0

    def __init__(self, party_state, times):
        self.party_state, self.left = party_state, times
        self.asked, self.scores = [], []
        self.letter = None

    async def ask(self, letter):
        if letter.kind == "ask":
            self.asked.append(letter.arrays)
            form = self.party_state.anatomy.personal[letter["number"]].reply
            return Letter("advice", {}, [torch.randn_like(leaf) for leaf in leaves(form)])
        if letter.kind == "scores":
            self.scores.append((letter["metrics"], letter["own"]))
            return Letter("thanks")
        if not self.left:
            return Letter("done", {"study": "s", "rounds": 30})
        self.left -= 1
        if self.letter is None:
            sent = [self.party_state.model.w, *leaves(self.party_state.anatomy.sent)]
            self.letter = Letter("evaluate", {"study": "s", "round": 2}, sent, header=b"h")
        return self.letter


@pytest.mark.parametrize(
    "algorithm", [ar.PeFLL(), ar.PFedHN(local_steps=5)], ids=["PeFLL", "PFedHN"]
)
def test_advice_is_no_way_to_have_more_models_scored(algorithm):
    """C2: the same letter again, and each time another model as the advice: scores without end."""
    party_state = seat_of(patients(), Policy(), algorithm)
    coordinator = Repeating(party_state, times=5)

    asyncio.run(PartyLoop(party_state, coordinator, "s").run())

    assert len(coordinator.asked) == len(party_state.anatomy.personal)
    assert len(coordinator.scores) == 5
    assert all(each == coordinator.scores[0] for each in coordinator.scores)


def test_a_site_killed_amid_questions_does_not_ask_again():
    party_state = seat_of(patients(), Policy(), ar.PeFLL())
    first = Repeating(party_state, times=1)
    kept = []

    async def killed(letter):
        if letter.kind == "scores":
            raise Refused("gone")
        return await Repeating.ask(first, letter)

    def keep():
        kept.append(party_state.state())

    first.ask = killed
    asyncio.run(PartyLoop(party_state, first, "s", keep=keep).run())
    again = seat_of(patients(), Policy(), ar.PeFLL())
    again.restore(kept[0])  # after the first letter came, before anything was answered
    second = Repeating(again, times=1)
    second.letter = first.letter
    asyncio.run(PartyLoop(again, second, "s").run())

    assert len(first.asked) == 1 and second.asked == []
    shared, own = second.scores[0]
    assert shared.keys() == own.keys()
    assert np.isfinite(shared["accuracy"]) and all(np.isnan(each) for each in own.values())


def test_a_site_that_was_restarted_says_what_it_said():
    party_state = seat_of(patients(), Policy())
    party_state.may_score(2, b"h", [party_state.model.w])
    party_state.answer = party_state.told(party_state.learnt([party_state.model.w]), 2), None

    again = seat_of(patients(), Policy())
    again.restore(party_state.state())

    assert again.answer == party_state.answer
    assert not again.may_score(2, b"h", [party_state.model.w])
    assert again.may_score(3, b"i", [party_state.model.w]) and again.answer is None


def test_own_models_are_models_that_are_scored():
    party_state = seat_of(patients(), Policy(scores=3, counts=True), ar.Ditto(lr=0.1))
    party_state.may_score(1, b"1", [party_state.model.w])

    with pytest.raises(Refused, match="2 models were scored, and this site scores no more"):
        party_state.may_score(2, b"2", [party_state.model.w])
    with pytest.raises(Refused, match="no model is scored after round 0"):
        seat_of(patients(), Policy()).may_score(0, b"0", [party_state.model.w])


def bisect(party_state, features, seed, budget=50, tilt=0.02):
    """A record's features by where rounded accuracies change, and the plane it was found on.

    A plane is moved until a record passes it: the accuracy beyond is another. Tilted a little
    along a feature the plane meets the record by so much earlier or later.
    """
    generator = torch.Generator().manual_seed(seed)
    u = torch.nn.functional.normalize(torch.randn(features, generator=generator), dim=0)
    left = [budget]

    def seen(direction, offset):
        left[0] -= 1
        w = torch.zeros(2 * features + 2)
        w[features : 2 * features], w[-1] = 1e5 * direction, -1e5 * offset
        return party_state.told(party_state.learnt([w]), 1)["accuracy"]

    low, high = -1.0, 1.5
    below = seen(u, low)
    while high - low > 2e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if seen(u, middle) == below else (low, middle)
    plane, found = (low + high) / 2, torch.zeros(features)
    for j in range(features):
        low, high = -3.0, 3.0
        for _ in range(left[0] // (features - j)):
            middle = (low + high) / 2
            beyond = seen(u + tilt * torch.eye(features)[j], plane + tilt * middle) != below
            low, high = (low, middle) if beyond else (middle, high)
        found[j] = (low + high) / 2
    return found, (u, plane)


def test_fifty_scores_do_not_give_a_record_by_bisection():
    """C2: rounded to the nearest step, accuracies told exactly when one record passes a plane."""

    def wins(policy):
        won = 0
        for seed in range(12):
            data = patients(test=20, seed=seed)
            found, (u, plane) = bisect(seat_of(data, policy), 13, seed)
            x = data.x[60:]
            record = x[(x @ u - plane).abs().argmin()]
            won += bool((found - record).norm() < 0.7 * record.norm())
        return won

    assert wins(Policy(digits=15)) >= 7  # the attack works on exact scores
    assert wins(Policy()) <= 4


def test_overflow_does_not_tell_of_one_record():
    """A network that overflows for one record alone made its scores undefined: one exact bit."""
    data = patients(test=40)
    model = build_model(ar.models.build("mlp", (13,), 2, widths=(8, 8, 8)), data, None, 0)
    x = data.x[60:]
    first, second = x[:, 0].sort(descending=True).values[:2].tolist()

    def told(offset):
        party_state = ar.engines.network.party_state.PartyState(
            ar.FedSGD(lr=0.1), data, model, party=0, rounds=30, rules=Policy()
        )
        module = model.to_module(model.w)
        with torch.no_grad():
            for k, layer in enumerate(m for m in module.modules() if hasattr(m, "weight")):
                layer.weight.zero_()
                layer.bias.zero_()
                layer.weight[0, 0] = 1e11
                if k == 0:
                    layer.bias[0] = -1e11 * offset
                if layer.weight.shape[0] == 2:
                    layer.weight[:, 0] = 1e11
        w = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
        outputs = model.one.outputs(w, x, None)
        return party_state.told(party_state.learnt([w]), 1), int(
            (~outputs.isfinite()).any(dim=1).sum()
        )

    beyond, none = told((first + second) / 2), told(first + 1)

    assert (beyond[1], none[1]) == (1, 0)  # records whose outputs are not finite
    assert beyond[0].keys() == none[0].keys()
    assert all(np.isfinite(each) for each in beyond[0].values())


@pytest.mark.parametrize("ill", [0, 1, 3])
def test_scores_that_cannot_be_told_are_there_and_undefined(ill):
    """Where the metric of a study was left out, the coordinator took none of a site's scores."""
    y = np.zeros(100, int)
    y[60 : 60 + ill] = y[:30] = 1
    told = seat_of(patients(ill=y), Policy())

    scores = told.told(told.learnt([told.model.w]), 1)

    assert scores.keys() == {"accuracy", "auc", "loss"}
    assert np.isnan(scores["auc"]) and np.isfinite(scores["accuracy"])


# -- uploads ---------------------------------------------------------------------------------------


def test_a_message_that_is_made_of_no_record_leaves():
    party_state = seat_of(patients(), Policy(), ar.PFedHN(local_steps=5))

    arrays, _ = party_state.work(0, 0, [])

    assert len(arrays[0]) == 32  # a descriptor, drawn at random


def test_a_question_of_few_records_does_not_leave():
    """C2: what a site asks for a model of its own is computed from its records, too."""
    party_state = seat_of(patients(train=60), Policy(), ar.PFedHN(local_steps=1, batch_size=2))
    making = party_state.personal(1, [])
    next(making)  # a descriptor, of no record
    reply = party_state.anatomy.personal[0].reply

    with pytest.raises(Withheld, match="computed from 2 records"):
        making.send([torch.randn_like(leaf) for leaf in leaves(reply)])


def test_two_uploads_of_all_rows_still_give_a_record():
    """What remains: a model that is made for it, answered without noise and seen by itself."""
    data = patients()
    party_state = seat_of(data, Policy(), ar.FedSGD(lr=1.0))
    x, y, (u, plane, i) = data.x[:60], data.y[:60], (None, 0.0, 0)
    generator = torch.Generator().manual_seed(0)
    while u is None:
        way = torch.nn.functional.normalize(torch.randn(13, generator=generator), dim=0)
        first, second = (x @ way).argsort(descending=True)[:2].tolist()
        if y[first] == 0 and float((x[first] - x[second]) @ way) > 0.5:
            u, plane, i = way, float((x[first] + x[second]) @ way) / 2, first

    def upload(t, offset):
        w = torch.zeros(28)
        w[13:26], w[27] = 1e6 * u, -1e6 * offset
        (found,), _ = party_state.work(t, 0, [w])
        party_state.verdict(t, True)
        return found[13:26]

    record = 60 * (upload(0, plane) - upload(1, 50.0))
    assert float((record.abs() - x[i].abs()).abs().max()) < 1e-4


@pytest.mark.parametrize(
    "change",
    [["algorithms=fedavg"], ["least_sites=5"], ["rounds=3"], ["models=mlp"], ["megabytes=0"]],
    ids=str,
)
def test_every_rule_that_changes_holds_at_once(tmp_path, change):
    """A study under way went on by the algorithm, the sites and the rounds of the old policy."""
    site, text = made_site(tmp_path / "ulm"), study_text()
    site.decide(text, "approved", None)
    digest = approval.hash_of(text)
    site.site_studies.seated(digest, 0)
    party_state, _ = party_state_at(site, digest, _data(site, text, tmp_path))
    sent = leaves(party_state.anatomy.sent)
    party_state.work(0, 0, sent)
    party_state.verdict(0, True)
    site.policy.changed(change).write(site.home)

    with pytest.raises(Withheld, match="this site's policy is not met"):
        party_state.work(1, 0, sent)
    with pytest.raises(Withheld, match="this site's policy is not met"):
        party_state.told(party_state.learnt([party_state.model.w]), 1)


def test_a_paused_site_asks_for_no_model_of_its_own(tmp_path):
    site, text = made_site(tmp_path / "ulm"), study_text()
    site.decide(text, "approved", None)
    data = _data(site, text, tmp_path)
    site.pause()

    with pytest.raises(ar.ArchipelError, match="this site is paused"):
        asyncio.run(personalise(site, approval.hash_of(text), data))


def test_numbers_of_rows_stop_at_once(tmp_path):
    Policy(counts=True).write(tmp_path)
    party_state = seat_of(patients(), Standing(tmp_path, counts=True), ar.FedSGD(lr=0.1))
    Policy(counts=False).write(tmp_path)

    with pytest.raises(Withheld, match="counts = false"):
        party_state.work(0, 0, [party_state.model.w])


def _data(site, text, tmp_path):
    from archipel.federation.site import binding

    study = approval.read(text)
    binding.bind(site.home / "data", study, table(tmp_path / "t.csv", 200))
    records = binding.records(site.home / "data", study)
    return records.federation(records.sums().scaling(), site.name)


def test_a_coordinator_that_counts_no_round_gets_none_twice(tmp_path):
    """A scale made anew began all rounds again, three times, as long as none had counted."""
    site = made_site(tmp_path / "ulm")
    digest = site.site_studies.put(study_text())
    path = site.site_studies.folder(digest) / "state.safetensors"
    party_state = seat_of(patients(), Policy(), ar.FedSGD(lr=0.1))
    counted = []
    for t in range(3):
        party_state.work(t, 0, [party_state.model.w])
        party_state.verdict(t, False)
        path.write_bytes(safetensors.torch.save(party_state.state()))
        counted.append(site.site_studies.has_counted(digest))

    assert counted == [False, True, True]  # from the second round on the scale stays


# -- sums ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sex", [["m", "f"], ["f", "m", "x"]], ids=str)
def test_a_column_described_in_another_way_gives_no_second_sum(tmp_path, sex):
    """H1: "f, m" of all rows but one and "m, f" of all rows differ by one patient's sex."""
    site, file = made_site(tmp_path / "ulm"), table(tmp_path / "t.csv", 300)
    columns = {"age": "number", "weight": "number", "sex": sex, "ill": [0, 1]}
    first = released(site, study_text(data={"test": 1e-9, "missing": "mean"}), file)

    other = {"test": 0.0, "missing": "mean", "schema": columns}
    second = released(site, study_text(data=other), file)
    same = released(site, study_text(data={**other, "test": 1e-9}), file)

    assert first.counts.tolist() == [299.0, 299.0, 299.0]
    assert second.counts[:2].tolist() == [299.0, 299.0]
    assert 300.0 not in second.counts.tolist() and 300.0 not in same.counts.tolist()
    named = 2 if sex[0] == "m" else 3  # the feature that was not given yet
    assert second.totals[named] == 0.0


def test_a_category_asked_for_as_a_number_gives_no_second_sum(tmp_path):
    site, file = made_site(tmp_path / "ulm"), table(tmp_path / "t.csv", 300)
    frame = pd.read_csv(file)
    frame["sex"] = (frame["sex"] == "m").astype(int)
    frame.to_csv(file, index=False)
    rest = {"age": "number", "weight": "number", "ill": [0, 1]}
    as_values = {"test": 1e-9, "missing": "mean", "schema": {**rest, "sex": [0, 1]}}
    released(site, study_text(data=as_values), file)

    as_number = {"test": 0.0, "schema": {**rest, "sex": "number"}}
    sums = released(site, study_text(data=as_number), file)

    assert sums.counts.tolist() == [299.0, 299.0, 0.0]


def test_a_new_table_gives_new_sums_of_all_values_of_a_column(tmp_path):
    site = made_site(tmp_path / "ulm")
    columns = {"age": "number", "sex": ["f", "m", "x"], "ill": [0, 1]}
    text = study_text(data={"test": 0.0, "missing": "mean", "schema": columns})
    sums = []
    for seed in range(2):
        file = table(tmp_path / f"{seed}.csv", 300, seed=seed)
        frame = pd.read_csv(file)
        frame.loc[frame.index % (3 + seed) == 0, "sex"] = "x"
        frame.to_csv(file, index=False)
        sums.append(released(site, text, file))

    assert sums[0].counts.tolist() == sums[1].counts.tolist() == [300.0] * 3
    assert sums[0].totals[2] == 100.0 and sums[1].totals[2] == 75.0


@pytest.mark.parametrize(
    ("values", "leaves_it"),
    [
        ([0.0] * 200 + [1.0] * 99 + [2.0], False),  # three values: their numbers can be computed
        ([0.0] * 200 + [1.0] * 90 + [2.0] * 10, True),
        ([1e7, *np.linspace(40, 90, 299)], False),  # the total is that patient's value
        (list(np.linspace(40, 90, 300)), True),
        ([7.0] * 300, True),
    ],
    ids=["three", "enough", "outlier", "usual", "constant"],
)
def test_sums_that_tell_of_few_patients_do_not_leave(tmp_path, values, leaves_it):
    """H1, E1."""
    site, file = made_site(tmp_path / "ulm"), table(tmp_path / "t.csv", 300)
    frame = pd.read_csv(file)
    frame["weight"] = values
    frame.to_csv(file, index=False)

    sums = released(site, study_text(data={"test": 0.0}), file)

    assert bool(sums.counts[1] > 0) == leaves_it


# -- sites that are processes ----------------------------------------------------------------------


@pytest.mark.slow
def test_a_site_process_that_is_killed_answers_an_evaluation_as_before(tmp_path, monkeypatch):
    """C2: a coordinator that loses scores on purpose, and gives other advice to each question."""
    seen, asked, score = [], [], Answers._score

    def losing(self, party, letter):
        seen.append((party, letter["metrics"], letter["own"]))
        if sum(who == party for who, *_ in seen) > 3:
            score(self, party, letter)

    def advise(self, number, arrays):
        asked.append(number)
        form = self.anatomy.personal[number].reply
        return [torch.randn_like(leaf) for leaf in leaves(form)]

    monkeypatch.setattr(Answers, "_score", losing)
    monkeypatch.setattr(NetworkEngine, "advise", advise)
    changes = {"algorithm.name": "pefll", "round.quorum": 3, "study.rounds": 1}

    async def play():
        async with Drill(tmp_path, 3, changes) as drill:
            await drill.enrol()
            for k in range(3):
                Policy().write(drill.path(k))
            coordinator = Coordinator(drill.home)
            await coordinator.up(drill.home.address)
            running = asyncio.create_task(coordinator.run(drill.hash))
            for process in drill.processes:
                await process.start()
            while not any(party == 0 for party, *_ in seen):
                drill.check()
                await asyncio.sleep(0.02)
            await drill.processes[0].kill()
            await drill.processes[0].start()
            await running
            await coordinator.down()

    asyncio.run(asyncio.wait_for(play(), 600))
    for party in range(3):
        answers = [each[1:] for each in seen if each[0] == party]
        assert len(answers) > 3 and all(each == answers[0] for each in answers)
    assert len(asked) == 3
