"""Virtual parties and folds: whose points they have, what they are never counted as."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ar
from archipel.federation import approval
from archipel.report import export, html
from archipel.runs.baselines import alone, pooled
from archipel.runs.parts import build_model

few = settings(max_examples=15, deadline=None)


def images(parties=4, new=2, side=12, seed=0, channels=1, most=9):
    """Random images of unequal parties, three classes."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, most, parties + new)
    x = [torch.from_numpy(random.random((n, channels, side, side))).float() for n in sizes]
    y = [torch.from_numpy(random.integers(0, 3, n)) for n in sizes]
    y[0][0] = 2
    return ar.Federation.from_arrays(x, y, test=0.3).with_new(new)


# -- virtual parties -------------------------------------------------------------------------------


@few
@given(
    parties=st.integers(1, 5),
    new=st.integers(0, 2),
    copies=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_real_parties_stay_as_they_are_and_copies_only_train(parties, new, copies, seed):
    fed = images(parties, new, seed=seed)
    more = fed.with_virtual(copies, seed)

    assert more.training == parties * (1 + copies)
    assert more.real == (parties, new)
    assert int(more.virtual.sum()) == parties * copies
    assert int(more.n_test[more.virtual].sum()) == 0
    for k in range(fed.parties):
        for before, after in zip(fed.party(fed.name(k)), more.party(fed.name(k)), strict=True):
            assert torch.equal(before, after)
    for k in range(parties):
        for c in range(1, copies + 1):
            x, y, _, _ = more.party(f"{fed.name(k)}~{c}")
            assert torch.equal(y, fed.party(k)[1])
            assert x.shape == fed.party(k)[0].shape


def test_one_map_moves_all_images_of_a_copy_and_every_copy_has_its_own():
    line = torch.zeros(1, 28, 28)
    line[0, 4:24, 13:15] = 1.0
    fed = ar.Federation.from_arrays(
        [line.expand(3, 1, 28, 28).clone()] * 2, [[0, 1, 0]] * 2, test=0.0
    )
    made = fed.with_virtual(2, seed=4)

    firsts = []
    for name in made.names[2:]:
        x = made.party(name)[0]
        torch.testing.assert_close(x[0], x[1])
        firsts.append(x[0])
    assert all((a - b).abs().max() > 0.3 for i, a in enumerate(firsts) for b in firsts[:i])
    assert all(0.7 < float(each.sum() / line.sum()) < 1.4 for each in firsts)  # scales of 15 %


def test_the_map_turns_shears_and_scales_as_drawn():
    from archipel.data.copies import ROTATION, SCALE, SHEAR, _maps

    maps = _maps(500, seed=1, copy=1)
    linear = maps[:, :, :2]
    area = torch.linalg.det(linear)
    least, most = 1 / (1 + SCALE) ** 2, 1 / (1 - SCALE) ** 2
    assert least <= float(area.min()) and float(area.max()) <= most
    angle = torch.atan2(linear[:, 1, 0], linear[:, 0, 0])
    assert float(angle.abs().max()) < ROTATION * (1 + SCALE) / (1 - SCALE) + 0.02
    assert float(linear[:, 0, 1].abs().max()) <= (SHEAR + ROTATION) / (1 - SCALE)
    assert float(maps[:, :, 2].abs().max()) == 0


def test_copies_are_drawn_by_the_seed_and_the_first_ones_are_the_same_among_few():
    fed = images()
    one, two, other = (fed.with_virtual(c, s) for c, s in ((1, 0), (2, 0), (1, 1)))

    name = f"{fed.name(0)}~1"
    assert torch.equal(one.party(name)[0], two.party(name)[0])
    assert not torch.equal(one.party(name)[0], other.party(name)[0])
    assert not torch.equal(two.party(name)[0], two.party(f"{fed.name(0)}~2")[0])


@pytest.mark.parametrize("data", ["heart_disease", "shakespeare", "synthetic"])
def test_data_that_is_no_images_is_refused(data):
    with pytest.raises(ar.ArchipelError, match=r"virtual = 3: points of shape .* are no images"):
        ar.load(data).with_virtual(3)


@pytest.mark.parametrize("copies", [-1, 1.5, True])
def test_numbers_of_copies_that_are_none_are_refused(copies):
    with pytest.raises(ar.ArchipelError, match=r"virtual = .*: give a whole number from 0"):
        images().with_virtual(copies)


# -- folds of new parties --------------------------------------------------------------------------


@few
@given(
    parties=st.integers(1, 3),
    new=st.integers(1, 4),
    folds=st.integers(2, 6),
    seed=st.integers(0, 99),
)
def test_every_point_of_a_new_party_is_tested_once_and_never_trained_on_there(
    parties, new, folds, seed
):
    fed = images(parties, new, seed=seed, side=8)
    cut = fed.cross_fitted(folds, seed)

    assert cut.real == (parties, new)
    assert cut.training == parties
    assert torch.equal(cut.tested[cut.stands][parties:], fed.n[parties:] + fed.n_test[parties:])
    for k in range(parties, fed.parties):
        everything = torch.cat(fed.party(k)[::2]).flatten(1)
        group = (cut.origin == cut.index(fed.name(k))).nonzero()[:, 0].tolist()
        tested = []
        for j in group:
            train, _, test, _ = (
                part.flatten(1) if part.dim() > 1 else part for part in cut.party(j)
            )
            assert len(train) + len(test) == len(everything)
            assert not (torch.cdist(test, train) == 0).any()
            tested.append(test)
        assert torch.equal(torch.cat(tested).sort(dim=0).values, everything.sort(dim=0).values)


def test_folds_are_balanced_over_classes():
    y = torch.arange(40) % 4
    fed = ar.Federation.from_arrays([torch.rand(40, 3)] * 2, [y, y], test=0.1).with_new(1)
    cut = fed.cross_fitted(5)
    for j in range(1, cut.parties):
        assert cut.party(j)[3].bincount().tolist() == [2, 2, 2, 2]


def test_without_new_parties_or_twice_it_is_refused():
    with pytest.raises(ar.ArchipelError, match="folds = 5: there are no new parties"):
        images(new=0).cross_fitted(5)
    with pytest.raises(ar.ArchipelError, match="folds = 5: new parties are cut into folds already"):
        images().cross_fitted(5).cross_fitted(5)
    with pytest.raises(ar.ArchipelError, match="folds = 1: give a whole number from 2"):
        images().cross_fitted(1)


@pytest.mark.parametrize("plan", [ar.Plan("one", 1, 1), ar.Plan("stacked", 3, 2)], ids=str)
def test_metrics_of_a_party_are_over_the_points_of_all_its_folds(plan):
    """By hand: the fold's own model, on the fold's own points."""
    fed = images(3, 2, seed=3, side=8, most=14)
    cut, model = fed.cross_fitted(3), build_model("logistic", fed)
    algorithm = ar.FineTuned(lr=0.5, tune_epochs=3)
    with ar.LocalEngine(algorithm, cut, model, plan=plan) as engine:
        for t in range(3):
            engine.round(t, range(3))
        scores = engine.evaluate(own=True)
        own = [engine.own_model(j)[0] for j in range(cut.parties)]

    right = torch.zeros(cut.parties)
    for j in range(cut.parties):
        _, _, x, y = cut.party(j)
        out = model.predict(own[j], x, model.buffers)
        right[cut.origin[j]] += (out.argmax(dim=-1) == y).sum()
    accuracy = torch.where(cut.stands, right / cut.tested, torch.nan)
    torch.testing.assert_close(scores.parties["accuracy"].float(), accuracy, equal_nan=True)
    assert scores.new["accuracy"] == pytest.approx(float(right[3:].sum() / cut.tested[3:].sum()))


# -- both, and what else is made of a federation ---------------------------------------------------


def both():
    return images(4, 2, seed=5, most=14).with_virtual(2).cross_fitted(3)


def test_validation_points_are_in_no_copy_and_of_no_fold():
    fed = both()
    inside = fed.validation(0.3)

    assert inside.real == (4, 0)
    held_out = inside.n_test[:4]
    assert int(held_out.sum()) > 0
    for k in inside.virtual.nonzero()[:, 0].tolist():
        source = -1 - int(inside.origin[k])
        assert int(inside.n[k]) == int(inside.n[source]) and int(inside.n_test[k]) == 0
        assert torch.equal(inside.party(k)[1], inside.party(source)[1])


@pytest.mark.parametrize(
    "change",
    [
        lambda fed: fed.with_new(1),
        lambda fed: fed.split_test(0.2),
        lambda fed: fed.repartition("iid", 3),
        lambda fed: fed.select([4]),  # a copy without its party
        lambda fed: fed.with_virtual(1),
    ],
)
def test_what_would_tear_parties_and_copies_apart_is_refused(change):
    with pytest.raises(ar.ArchipelError, match=r"cop|fold"):
        change(both())


def test_a_federation_with_copies_is_saved_pooled_and_said(tmp_path):
    fed = both()
    fed.save(tmp_path / "fed")
    again = ar.Federation.open(tmp_path / "fed")

    assert torch.equal(again.origin, fed.origin)
    assert repr(fed).startswith("Federation 'unnamed': 6 parties (2 new), 8 virtual ones")
    assert "8 copies" in fed.summary()
    together = fed.pooled()
    assert together.real == (1, 2)
    assert int(together.n[0]) == int(fed.n[: fed.training].sum())


def test_a_report_counts_real_parties_and_says_which_are_copies():
    fed = both()
    run = ar.simulate(ar.FedAvg(), fed, "logistic", rounds=1, workers=1)

    studied = dict(html._studied(run, "party", "parties"))["Parties"]
    assert studied.startswith("4 parties and 8 virtual copies of them to train with, and 2 new")
    assert "each in folds that test all its points" in studied
    listed = [row.name for row in html._parties(run)]
    assert listed == [fed.name(k) for k in fed.stands.nonzero()[:, 0].tolist()]
    assert run.scorecard.efficacy.parties.parties == 4
    assert run.scorecard.efficacy.new_parties.parties == 2
    rows = list(export._parties(run))[1:]
    assert [row[0] for row in rows] == listed
    assert rows[-1][3] == int(fed.tested[fed.index(listed[-1])])


def test_baselines_take_copies_for_training_and_folds_for_testing():
    fed, work = both(), ar.FedAvg(lr=0.1)
    local = alone(work, fed, "logistic", rounds=2, workers=1).local
    central = pooled(work, fed, "logistic", rounds=2).scores

    for scores in (local, central):
        there = scores.parties["accuracy"].isfinite()
        assert torch.equal(there, fed.stands)


def test_a_study_has_copies_and_folds_and_another_hash(tmp_path):
    text = """
    [study]
    rounds = 1
    [data]
    name = "mnist"
    partition = "iid"
    parties = 6
    new = 2
    {}
    [model]
    name = "logistic"
    [round]
    sample = 2
    """
    plain, more = (ar.Study.parse(text.format(extra)) for extra in ("", "virtual = 1\nfolds = 2"))
    fed = more.federation()

    assert plain.hash != more.hash
    assert fed.real == (4, 2) and int(fed.virtual.sum()) == 4 and fed.folded
    with pytest.raises(ar.ArchipelError, match=r"data\.virtual = 1: copies of parties"):
        approval.read(more.toml().encode())
