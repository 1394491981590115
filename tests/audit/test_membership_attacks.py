"""Attacks on membership, on signals whose best answer is known, and on a small study."""

from dataclasses import replace

import pytest
import torch

from archipel.attacks.case import Shadow, Signals
from archipel.attacks.lira import LiRA, OfflineLiRA
from archipel.attacks.loss import LossThreshold
from archipel.attacks.ratio import fits, stable
from archipel.attacks.rounds import OverRounds
from archipel.attacks.shadows import Shadows
from archipel.audit import work
from archipel.audit.auditing import audit
from archipel.audit.judging import curve
from archipel.study.file import Study

N, S = 400, 40


def drawn(shift, seed=0, rounds=0):
    """Runs in which the loss of a record that was used is lower, around a level of its own."""
    random = torch.Generator().manual_seed(seed)
    level = 3 * torch.rand(N, generator=random).double() + 0.5  # how hard a record is
    shadows = []
    for _ in range(S):
        used = torch.rand(N, generator=random) < 0.5
        noise = 0.2 * torch.randn((N, 1 + 2 * rounds), generator=random).double()
        value = -(level.unsqueeze(-1)) + noise
        value[:, :1] += shift * used.unsqueeze(-1)
        value[:, 1 + rounds :] += shift * used.unsqueeze(-1)
        loss = torch.log1p(torch.exp(-value))  # its inverse is `stable`
        sure = -loss[:, :1].expand(N, 3)
        shadows.append(Shadow(Signals(loss[:, 0], sure, loss[:, 1:]), used))
    return shadows


def area(attack, shadows):
    scores = attack.scores(shadows[0].signals, shadows[1:])
    return curve(scores, shadows[0].used)


def test_a_stable_loss_is_undone():
    value = torch.linspace(-8, 8, 9).double()

    torch.testing.assert_close(stable(torch.log1p(torch.exp(-value))), value)


def test_the_ratio_is_of_what_a_record_is_without_itself():
    shadows = drawn(0.4)

    assert area(LiRA(), shadows).area > 0.85
    assert area(OfflineLiRA(), shadows).area > 0.8
    assert area(LossThreshold(), shadows).area < 0.65  # hard records hide it
    assert area(LiRA(), shadows).at(0.01) > 3 * 0.01


def test_nothing_is_found_where_there_is_nothing():
    shadows = drawn(0.0)

    for attack in (LiRA(), OfflineLiRA(), LossThreshold(), Shadows()):
        assert 0.42 < area(attack, shadows).area < 0.58


def test_rounds_add_up():
    shadows = drawn(0.2, rounds=4)

    assert area(OverRounds(), shadows).area > area(LiRA(), shadows).area + 0.05


def test_few_runs_have_one_deviation_for_all():
    values, used = torch.randn(8, 5).double(), torch.arange(40).view(8, 5) % 2 == 0

    found = fits(values, used)

    assert len(found.sd_in.unique()) == 1


def test_a_record_that_was_always_used_has_another_side():
    values = torch.zeros(6, 2).double()
    used = torch.tensor([[True, True]] * 3 + [[True, False]] * 3)
    values[used] += 1.0

    found = fits(values, used)

    torch.testing.assert_close(found.mean_out, torch.zeros(2).double())


def test_what_was_not_seen_counts_for_nothing():
    values = torch.full((6, 2), torch.nan).double()

    ratio = fits(values, torch.zeros(6, 2, dtype=torch.bool)).ratio(torch.zeros(2).double())

    assert bool(ratio.isnan().all())


STUDY = """
[study]
rounds = 2
[data]
name = "heart_disease"
[model]
name = "mlp"
widths = [128]
[algorithm]
name = "fedavg"
lr = 0.3
local_epochs = {epochs}
batch_size = 8
"""


def test_an_audit_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    study = Study.parse(STUDY.format(epochs=1))
    few = replace(work.QUICK, worlds=5)
    monkeypatch.setattr("archipel.audit.auditing.QUICK", few)
    first = audit(study, attacks=["loss", "rounds"], quick=True, folder=tmp_path)
    kept = sorted((tmp_path / "worlds").iterdir())
    kept[-1].unlink()
    before = kept[0].stat().st_mtime_ns

    again = audit(study, attacks=["loss", "rounds"], quick=True, folder=tmp_path)

    assert kept[0].stat().st_mtime_ns == before
    for one, two in zip(first.learnt, again.learnt, strict=True):
        assert [each.score for each in one.findings] == [each.score for each in two.findings]
    assert set(again.by_round) == {
        "from an upload of the round", "from the mean of uploads of the round",
    }  # fmt: skip


@pytest.mark.slow
def test_lira_finds_three_times_what_guessing_does_and_noise_bounds_it(monkeypatch):
    """However long 16 worlds take."""
    monkeypatch.setattr("archipel.audit.auditing.QUICK", replace(work.QUICK, seconds=1e9))
    text = STUDY.format(epochs=8).replace("rounds = 2", "rounds = 12")
    bare = audit(Study.parse(text), attacks=["membership"], quick=True)
    by = {each.name: each for each in bare.learnt[0].findings}

    assert by["lira"].score >= 3 * 0.01
    assert by["rounds"].interval[0] > 0.01

    noise = '[privacy]\nunit = "record"\nepsilon = 2\ndelta = 1e-4\nclip = 1.0\n'
    kept = audit(Study.parse(text + noise), attacks=["membership"], quick=True)

    assert kept.epsilon <= 2
    for learnt in kept.learnt:
        for each in learnt.findings:
            assert each.within
            assert each.interval[0] <= each.ceiling
