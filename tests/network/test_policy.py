"""A site's own policy: enforced at the site, whatever a coordinator asks, and across restarts."""

import asyncio

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ar
from archipel import metrics
from archipel.data.federation import Federation
from archipel.data.scaling import Scaling, Sums
from archipel.engines.network.letters import Letter
from archipel.engines.network.party_loop import PartyLoop, Rescaled
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.transport import Refused
from archipel.federation import approval
from archipel.federation.site import binding
from archipel.federation.site import service as service
from archipel.federation.site.exposure import Rows
from archipel.federation.site.looking import exposure_of
from archipel.federation.site.policy import Policy, Standing, Withheld, _coarse
from archipel.federation.site.sums import Releases
from archipel.models import MODELS
from archipel.models.losses import LOSSES
from archipel.runs.parts import build_model
from archipel.tree import leaves
from network.homes import made_site, study_text, table

pytestmark = pytest.mark.careful


def patients(train=60, test=40, features=13, seed=0, ill=None):
    """One hospital's standardised table."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, train + test) if ill is None else ill
    x = rng.normal(size=(train + test, features)) + 0.3 * y[:, None]
    is_test = np.arange(train + test) >= train
    return Federation.from_rows(
        torch.tensor(x, dtype=torch.float32), torch.tensor(y), np.zeros(len(y), int),
        test=is_test, task="classification", classes=2,
    ).cast()  # fmt: skip


def seat_of(data, rules=None, algorithm=None, rounds=30, **options):
    model, algorithm = build_model("logistic", data, None, 0), algorithm or ar.Scaffold(lr=0.1)
    return PartyState(algorithm, data, model, party=0, rounds=rounds, rules=rules, **options)


# -- scores ----------------------------------------------------------------------------------------


def test_a_restart_does_not_let_models_be_scored_again():
    """C2: what was scored was not kept, so any junk answer let every round be scored again."""
    data = patients()
    party_state = seat_of(data, Policy())
    w = party_state.model.w
    party_state.may_score(3, b"model after 3", [w])

    again = seat_of(data, Policy())
    again.restore(party_state.state())

    with pytest.raises(Refused, match="another model was scored after round 3"):
        again.may_score(3, b"crafted", [w])
    with pytest.raises(Refused, match="no model is scored after round 1 any more"):
        again.may_score(1, b"crafted", [w])
    again.may_score(3, b"model after 3", [w])  # the same question has the same answer


def test_what_was_scored_is_kept_before_a_score_leaves():
    """C2: a site killed after its answer left must know that it answered."""
    party_state, kept, sent = seat_of(patients(), Policy()), [], []

    class Link:
        most = pieces = 0

        async def ask(self, letter):
            sent.append(letter.kind)
            if letter.kind == "scores":
                assert kept[0]["scored"].tolist() == kept[-1]["scored"].tolist() == [2, 1]
                assert "scored.answer" in kept[-1]
                return Letter("thanks")
            done = Letter("done", {"study": "s", "rounds": 30})
            work = Letter(
                "evaluate", {"study": "s", "round": 2}, [party_state.model.w], header=b"h"
            )
            return done if "scores" in sent else work

    asyncio.run(
        PartyLoop(party_state, Link(), "s", keep=lambda: kept.append(party_state.state())).run()
    )

    assert sent == ["next", "scores", "next"]


def test_only_models_that_the_study_evaluates_are_scored_and_no_more_than_allowed():
    party_state = seat_of(patients(), Policy(scores=3), rounds=30, evaluate_every=5)
    w = party_state.model.w
    for t in (5, 10, 15):
        party_state.may_score(t, b"%d" % t, [w])

    with pytest.raises(Refused, match="the study scores no model after round 17"):
        party_state.may_score(17, b"x", [w])
    with pytest.raises(Refused, match="3 models were scored, and this site scores no more"):
        party_state.may_score(20, b"x", [w])


def reconstruct(oracle, u, b, features, scale=3e4, nudge=0.02):
    """The attack of 28 scored models: one record of class 0 that is alone beyond a plane.

    Beyond u.x = b lies one record, of class 0. With weights as large as `scale` its loss is
    scale (u.x - b), that of class 1 scale (b - u.x), and that of all others nothing; the part of
    class 1 is linear, and seen alone from planes that no record is beyond.
    """

    def at(direction, offset):
        w = torch.zeros(2 * features + 2)
        w[features : 2 * features] = scale * direction
        w[-1] = -scale * offset
        return oracle(w) / scale

    ways = [torch.zeros(features), *(nudge * torch.eye(features))]
    far, near = ([at(u + way, offset) for way in ways] for offset in (50.0, b))
    return torch.tensor([n - f for n, f in zip(near, far, strict=True)])


@pytest.mark.parametrize("seed", range(5))
def test_a_handful_of_scored_models_gives_back_no_record(seed):
    """C2: 28 models that a coordinator made up gave back a test patient's 13 features."""
    data = patients(seed=seed)
    x, y = data.x[60:], data.y[60:]
    u, b, record = _alone(x, y, seed)
    ill, count = float((y == 1).sum()), len(x)

    def attack(party_state):

        def tell(w, party_state=party_state):
            return party_state.told(party_state.learnt([w]), 1).get("loss", float("nan"))

        seen = reconstruct(tell, u, b, 13)
        # what class 1 adds between the two planes, which the coordinator knows from the far ones
        margins = seen * count - ill * (b - 50.0)
        return (margins[1:] - margins[0]) / 0.02

    exact = attack(seat_of(data))
    rounded = attack(seat_of(data, Policy()))

    assert float((exact - record).abs().max()) < 0.1  # the attack works on what used to leave
    error = (rounded - record).square().mean().sqrt()
    guess = record.square().mean().sqrt()  # of somebody who says that every feature is average
    assert error > 0.9 * guess


def _alone(x, y, seed):
    """A direction and a plane that exactly one record lies beyond, which is of class 0.

    A coordinator finds them by trying; here it is told, which makes it stronger.
    """
    rng = torch.Generator().manual_seed(seed)
    for _ in range(10_000):
        u = torch.nn.functional.normalize(torch.randn(x.shape[1], generator=rng), dim=0)
        order = (x @ u).argsort(descending=True)
        first, second = (x @ u)[order[:2]].tolist()
        if y[order[0]] == 0 and first - second > 0.5:
            return u, (first + second) / 2, x[order[0]]
    raise AssertionError("no record stands out")


@settings(max_examples=20)
@given(
    st.integers(4, 40),
    st.integers(0, 10_000),
    st.sampled_from(["classification", "regression", "survival"]),
    st.floats(0.1, 1e30),
)
def test_no_record_moves_a_metric_far_whatever_a_model_makes_of_it(n, seed, task, size):
    rng = np.random.default_rng(seed)
    outputs, targets, loss = _scored(rng, n, task, 1.0)
    before = metrics.guarded(task, outputs, targets, loss)

    for value in (size, -size, float("inf"), float("-inf"), float("nan"), 0.0):
        outputs = outputs.clone()
        outputs[int(rng.integers(n)), -1] = value
        after = metrics.guarded(task, outputs, targets, loss)

        assert after.keys() == before.keys()  # what is told is no sign either
        for name, (score, moved) in after.items():
            most = max(moved, before[name].moved)
            assert abs(score - before[name].value) <= most * (1 + 1e-6) + 1e-9
        before = after


def test_how_coarse_a_score_is_does_not_depend_on_the_model():
    """The step itself told the largest loss of a single record, to as many digits as were asked."""
    data = patients(test=100)
    x, y = data.x[60:], data.y[60:]
    steps = set()
    for scale in np.geomspace(1e-3, 1e6, 50):
        outputs = torch.stack([torch.zeros(100), scale * x[:, 0]], 1)
        found = metrics.guarded("classification", outputs, y, LOSSES["cross_entropy"])
        steps.add(tuple(each.moved for each in found.values()))

    assert len(steps) == 1


def test_exact_metrics_are_those_of_records_within_the_limit():
    outputs, targets, loss = _scored(np.random.default_rng(0), 500, "regression", 0.5)
    outputs = outputs + targets[:, None]

    found = metrics.guarded("regression", outputs, targets, loss)

    exact = metrics.pool("regression", outputs, targets, loss)
    assert found.keys() == exact.keys()
    for name, value in exact.items():
        assert found[name].value == pytest.approx(value, abs=1e-5)


def _scored(rng, n, task, size):
    if task == "classification":
        outputs = torch.tensor(size * rng.normal(size=(n, 2)), dtype=torch.float32)
        return outputs, torch.tensor(rng.integers(0, 2, n)), LOSSES["cross_entropy"]
    outputs = torch.tensor(size * rng.normal(size=(n, 1)), dtype=torch.float32)
    if task == "regression":
        targets = torch.tensor(rng.normal(size=n), dtype=torch.float32)
        return outputs, targets, LOSSES["squared_error"]
    times = np.stack([rng.permutation(n) + 1.0, rng.integers(0, 2, n)], axis=1)
    return outputs, torch.tensor(times, dtype=torch.float32), LOSSES["cox"]


@given(st.floats(-1e6, 1e6), st.floats(1e-9, 1e6), st.floats(0, 0.999))
def test_a_score_is_rounded_to_steps_that_are_large_enough(value, least, draw):
    first = _coarse(value, least, draw)

    assert abs(first - value) <= 2.51 * least + 1e-9 * abs(value)
    assert len({_coarse(value + k * least / 8, least, draw) for k in range(5)}) <= 2


def test_rounding_at_random_is_right_on_the_whole():
    draws = [(k + 0.5) / 1000 for k in range(1000)]

    assert np.mean([_coarse(0.8347, 0.1, draw) for draw in draws]) == pytest.approx(
        0.8347, abs=1e-3
    )


def test_few_test_rows_are_not_scored_for_others():
    party_state = seat_of(patients(test=9), Policy())

    assert party_state.told(party_state.learnt([party_state.model.w]), 1) == {}
    assert "accuracy" in party_state.score(
        party_state.learnt([party_state.model.w]), 1
    )  # for the site itself


# -- uploads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm",
    [
        ar.FedSGD(lr=0.1, batch_size=1),
        ar.FedAvg(lr=0.1, batch_size=1, local_steps=3),
        ar.Scaffold(lr=0.1, batch_size=2, local_steps=2),
        ar.PeFLL(batch_size=2, local_steps=1),
        ar.Ditto(lr=0.1, batch_size=1, local_steps=1),
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_upload_of_few_records_does_not_leave(algorithm):
    """H2, E1: FedSGD with a batch of one gave 20 exact records from 20 uploads."""
    party_state = seat_of(patients(), Policy(counts=True), algorithm)
    sent = [leaf.clone() for leaf in leaves(party_state.anatomy.sent)]

    with pytest.raises(Withheld, match=r"computed from . records: this site's policy wants 8"):
        party_state.work(0, 0, sent)

    assert party_state.pending == -1
    assert party_state.turn is None or not party_state.turn.outbox


def test_an_upload_of_all_rows_leaves():
    party_state = seat_of(patients(), Policy(), ar.FedSGD(lr=0.1))
    arrays, _ = party_state.work(0, 0, [party_state.model.w])
    assert arrays[0].isfinite().all()


def test_a_peer_sends_no_vector_of_few_records():
    party_state = seat_of(patients(), Policy(), ar.DSGD(lr=0.1, batch_size=2))
    sent = []

    def mixing(x):
        sent.append(x)
        return x

    with pytest.raises(Withheld, match="computed from 2 records"):
        party_state.alone(0, mixing)

    assert not sent


def test_a_policy_that_changes_holds_at_once(tmp_path):
    party_state = seat_of(patients(), Standing(tmp_path), ar.FedSGD(lr=0.1))
    party_state.work(0, 0, [party_state.model.w])
    party_state.verdict(0, True)
    Policy(least_rows=1000).write(tmp_path)

    with pytest.raises(Withheld, match="60 training rows: this site's policy wants 1000"):
        party_state.work(1, 0, [party_state.model.w])


def test_a_policy_that_cannot_be_read_lets_nothing_leave(tmp_path):
    (tmp_path / "policy.toml").write_text("least_rows = many")
    party_state = seat_of(patients(), Standing(tmp_path), ar.FedSGD(lr=0.1))

    with pytest.raises(ar.ArchipelError, match=r"policy.toml.*nothing leaves before"):
        party_state.work(0, 0, [party_state.model.w])


# -- sums ------------------------------------------------------------------------------------------


def released(site, text, file):
    """The sums that a site gives for a study, with the table bound."""
    study = approval.read(text)
    binding.bind(site.home / "data", study, file)
    records = binding.records(site.home / "data", study)
    return Releases(site.home / "data" / "sums").sums(records, site.policy)


@pytest.mark.parametrize(
    "change",
    [
        {"data": {"test": 0.0}},
        {"data": {"test": 1e-9}},
        {"data": {"test": 0.5}},
        {"study": {"seed": 17}},
        {"data": {"missing": "drop"}},
        {"data": {"target": "weight", "schema": {"age": "number", "weight": "number"}}},
    ],
    ids=str,
)
def test_two_studies_cannot_be_subtracted(tmp_path, change):
    """H1: test = 0.0 minus test = 1e-9 left exactly one patient, another with each seed."""
    site, file = made_site(tmp_path / "ulm"), table(tmp_path / "t.csv", 300)
    frame = pd.read_csv(file)
    frame.loc[7, "weight"] = np.nan if "missing" in change.get("data", {}) else 80.0
    frame.to_csv(file, index=False)
    first = released(site, study_text(data={"missing": "mean"}), file)

    second = released(site, study_text(**change), file)

    for one, other in zip(first, second, strict=True):
        assert one[0] == other[0]  # age, to the last bit
        assert set(other.tolist()) <= {*one.tolist(), 0.0} or len(other) < len(one)


def test_the_split_follows_from_the_table_alone(tmp_path):
    """H1: the author of a study picked which rows are left out."""
    site, file = made_site(tmp_path / "ulm"), table(tmp_path / "t.csv", 300)
    splits = []
    for seed in range(3):
        study = approval.read(study_text(study={"seed": seed}))
        binding.bind(site.home / "data", study, file)
        splits.append(binding.records(site.home / "data", study).is_test)

    assert torch.equal(splits[0], splits[1]) and torch.equal(splits[0], splits[2])


def test_a_table_that_grew_by_one_patient_gives_the_sums_it_gave(tmp_path):
    site, file = made_site(tmp_path / "ulm"), table(tmp_path / "t.csv", 300)
    text = study_text(data={"test": 0.0})
    first = released(site, text, file)
    frame = pd.read_csv(file)

    frame.iloc[:-1].to_csv(tmp_path / "fewer.csv", index=False)
    fewer = released(site, text, tmp_path / "fewer.csv")
    later = pd.concat([frame, pd.read_csv(table(tmp_path / "new.csv", 60, seed=9))])
    later.to_csv(tmp_path / "later.csv", index=False)
    much_later = released(site, text, tmp_path / "later.csv")

    assert all(torch.equal(a, b) for a, b in zip(first, fewer, strict=True))
    assert much_later.counts.tolist() == [360.0, 360.0, 0.0]


def test_small_cells_do_not_leave(tmp_path):
    """H1, E1: an indicator's sum of two patients passed the rule of five, which counts rows."""
    site, file = made_site(tmp_path / "ulm"), table(tmp_path / "t.csv", 300)
    frame = pd.read_csv(file)
    frame["sex"] = np.where(np.arange(300) < 2, "m", "f")  # two patients
    frame["weight"] = np.where(np.arange(300) < 298, 0.0, 1.0)  # as a number, it is one, too
    frame.to_csv(file, index=False)

    for missing in ("error", "mean"):
        sums = released(site, study_text(data={"test": 0.0, "missing": missing}), file)

        assert sums.counts.tolist() == [300.0, 0.0, 0.0]
        assert sums.totals.tolist()[1:] == sums.squares.tolist()[1:] == [0.0, 0.0]


def test_numbers_of_patients_with_a_value_leave_only_to_fill_in_means(tmp_path):
    site, file = made_site(tmp_path / "ulm"), table(tmp_path / "t.csv", 300)

    plain = released(site, study_text(data={"test": 0.0}), file)
    to_fill = released(site, study_text(data={"test": 0.0, "missing": "mean"}), file)

    assert plain.counts.tolist() == [300.0, 300.0, 0.0]
    assert to_fill.counts.tolist() == [300.0, 300.0, 300.0]


def test_only_keyed_hashes_of_values_are_kept(tmp_path):
    site, file = made_site(tmp_path / "ulm"), table(tmp_path / "t.csv", 50)
    released(site, study_text(data={"test": 0.0}), file)
    folder = site.home / "data" / "sums"

    age = pd.read_csv(file)["age"].to_numpy()
    kept = b"".join(path.read_bytes() for path in folder.iterdir())
    assert not any(value.tobytes() in kept for value in age)
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


@pytest.mark.parametrize(
    ("mean", "scale"),
    [(60.0, 4.6e305), (60.0, 1e-9), (1e9, 10.0), (float("nan"), 1.0), (60.0, 0.0), (60.0, -1.0)],
)
def test_a_scale_that_has_nothing_to_do_with_the_data_is_refused(mean, scale):
    """M9: a site accepted any finite scale."""
    own = Sums.of(torch.randn(100, 1, dtype=torch.float64) * 10 + 60)
    fair = own.scaling()
    letter = Letter("scaling", {"study": "s"}, list(fair))
    assert torch.equal(service._checked(letter, own).mean, fair.mean)

    absurd = Scaling(*(torch.tensor([each], dtype=torch.float64) for each in (mean, scale)))
    with pytest.raises(Refused, match="the scale is none"):
        service._checked(Letter("scaling", {"study": "s"}, list(absurd)), own)


@pytest.mark.parametrize("number", [1e30, float("nan"), float("-inf")])
def test_a_model_that_is_absurd_is_neither_trained_nor_scored(number):
    party_state = seat_of(patients(), Policy(), ar.FedSGD(lr=0.1))
    absurd = torch.full_like(party_state.model.w, number)

    with pytest.raises(Refused, match="not finite, or beyond 1e"):
        party_state.work(0, 0, [absurd])
    with pytest.raises(Refused, match="not finite, or beyond 1e"):
        party_state.may_score(1, b"absurd", [absurd])


def test_a_column_that_is_constant_here_takes_the_scale_of_the_others():
    own = Sums.of(torch.zeros(100, 1, dtype=torch.float64))
    others = Scaling(torch.tensor([0.3]).double(), torch.tensor([0.46]).double())

    service._checked(Letter("scaling", {"study": "s"}, list(others)), own)


def test_a_site_that_counted_in_no_round_yet_takes_a_scale_made_anew_a_few_times(tmp_path):
    site, text = made_site(tmp_path / "ulm"), study_text()
    digest = site.site_studies.put(text)
    path = site.site_studies.folder(digest) / "state.safetensors"
    party_state = seat_of(patients(), None, ar.FedSGD(lr=0.1))
    party_state.work(0, 0, [party_state.model.w])
    for _ in range(3):
        path.write_bytes(safetensors.torch.save(party_state.state()))
        assert not site.site_studies.has_counted(digest)

        site.rescaled(digest)

        again = seat_of(patients(), None, ar.FedSGD(lr=0.1))
        again.restore(safetensors.torch.load_file(path))
        assert again.turn is None
        again.work(0, 0, [party_state.model.w])  # once more, on the new scale
    with pytest.raises(Refused, match="its scale was made anew 3 times"):
        site.rescaled(digest)
    party_state.verdict(0, True)
    path.write_bytes(safetensors.torch.save(party_state.state()))
    assert site.site_studies.has_counted(digest)  # from now on the scale that it has


def test_a_site_hears_that_the_scale_was_made_anew():
    class Link:
        most = pieces = 0

        async def ask(self, letter):
            assert letter["scale"] == "old"
            return Letter("rescaled", {"study": "s"})

    with pytest.raises(Rescaled, match="made anew"):
        asyncio.run(PartyLoop(seat_of(patients()), Link(), "s", scale="old").run())


# -- studies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "rows", "broken"),
    [
        ({}, Rows(160, 40), []),
        ({}, Rows(1, 0), ["least_rows", "least_batch"]),
        ({"data": {"test": 0.999}}, Rows(2, 198), ["least_rows", "least_batch"]),
        ({"algorithm": {"batch_size": 1, "local_steps": 1}}, Rows(160, 40), ["least_batch"]),
        (
            {"algorithm": {"name": "pefll", "batch_size": 1, "local_steps": 20}},  # its embedding
            Rows(160, 40),
            ["least_batch"],
        ),
        (
            {"algorithm": {"name": "ditto"}, "study": {"rounds": 30}},  # two models each time
            Rows(160, 40),
            ["scores", "counts"],
        ),
        ({"round": {"quorum": 2}}, Rows(160, 40), ["least_sites"]),
        ({"round": {"quorum": 0.9}}, Rows(160, 40), ["least_sites"]),
        ({"study": {"rounds": 200}}, Rows(160, 40), ["scores"]),
        ({"study": {"rounds": 20_000, "evaluate_every": 1000}}, Rows(160, 40), ["rounds"]),
        ({"algorithm": {"name": "fedavg"}}, Rows(160, 40), ["counts"]),
        (
            {
                "algorithm": {"name": "dsgd"},
                "topology": {"name": "ring"},
                "round": {"quorum": None},
            },
            Rows(160, 40),
            ["neighbours"],
        ),
    ],
)
def test_a_study_is_judged_by_what_it_would_make_leave(tmp_path, change, rows, broken):
    site = made_site(tmp_path / "ulm")
    study = approval.read(study_text(**change))
    found = exposure_of(study, binding.schema_of(study).empty(), rows)

    assert [rule.key for rule in site.policy.judge(found) if not rule.met] == broken

    if broken:
        with pytest.raises(Withheld, match="this site's policy is not met"):
            site.policy.refuse(found)


def test_lists_of_algorithms_and_models(tmp_path):
    site = made_site(tmp_path / "ulm")
    site.policy.changed(["algorithms=fedavg,scaffold", 'models=["mlp"]']).write(site.home)
    study = approval.read(study_text())
    found = exposure_of(study, binding.schema_of(study).empty(), Rows(160, 40))

    assert site.policy.algorithms == ("fedavg", "scaffold")
    assert [rule.key for rule in site.policy.judge(found) if not rule.met] == ["models"]


def test_statistics_of_batchnorm_leave_only_where_the_policy_lets_them(tmp_path, monkeypatch):
    def normed(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.BatchNorm1d(*shape), torch.nn.Linear(*shape, outputs))

    monkeypatch.setitem(MODELS, "normed", normed)
    site, own = made_site(tmp_path / "ulm"), {"name": "normed", "statistics": "own"}
    for model, numbers, broken in [({"name": "normed"}, 6, ["statistics"]), (own, 0, [])]:
        study = approval.read(study_text(model=model))
        found = exposure_of(study, binding.schema_of(study).empty(), Rows(160, 40))
        careful = site.policy.changed(["statistics=false"])

        assert found.statistics == numbers  # a mean and a variance of each of three features
        assert [rule.key for rule in site.policy.judge(found) if not rule.met] == []
        assert [rule.key for rule in careful.judge(found) if not rule.met] == broken


def test_a_site_of_one_patient_takes_part_in_nothing(tmp_path):
    """E1: with standardise = false, FedSGD and quorum 1 a lone patient's record was recovered."""
    site = made_site(tmp_path / "ulm")
    text = study_text(data={"standardise": False}, algorithm={"name": "fedsgd", "batch_size": None})
    study = approval.read(text)
    site.decide(text, "approved", None)
    binding.bind(site.home / "data", study, table(tmp_path / "t.csv", 2))

    with pytest.raises(Withheld, match="this site's policy wants 20"):
        asyncio.run(service.data_of(site, None, approval.hash_of(text)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["least_row=3"], "did you mean 'least_rows'"),
        (["least_rows=many"], "policy.least_rows = .*a whole number"),
        (["least_rows=-1"], "policy.least_rows = -1: give a number from 0"),
        (["counts"], "write KEY=VALUE"),
    ],
)
def test_a_policy_says_what_is_wrong_with_it(changes, said):
    with pytest.raises(ar.ArchipelError, match=said):
        Policy().changed(changes)


def test_a_policy_is_the_same_when_it_is_read_again(tmp_path):
    made = Policy().changed(["counts=true", "least_sites=2", "models=mlp,logistic"])
    made.write(tmp_path)

    assert Policy.read(tmp_path) == made != Policy()
    assert Policy.read(tmp_path / "nowhere") == Policy()
