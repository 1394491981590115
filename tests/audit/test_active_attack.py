"""Active membership inference: what a party and a server do, and who is given it."""

from dataclasses import replace

import pytest
import torch

from archipel.adversaries.adversary import Adversary
from archipel.adversaries.attack import Points
from archipel.attacks.active import Active
from archipel.audit import work
from archipel.audit.auditing import audit
from archipel.audit.subject import Subject
from archipel.study.file import Study

STUDY = """
[study]
rounds = {rounds}
[data]
name = "heart_disease"
[model]
name = "mlp"
widths = [16]
[algorithm]
name = "{name}"
lr = 0.1
"""


@pytest.fixture(scope="module")
def subject():
    return Subject.of(Study.parse(STUDY.format(rounds=3, name="fedavg")))


def test_a_server_sends_a_model_that_knows_the_records_less(subject):
    x, y = subject.data.x[:20], subject.data.y[:20]
    w = subject.model.w

    sent = Active(length=0.2).sent(subject.model, w, x, y)

    assert subject.model.loss(sent, x, y) > subject.model.loss(w, x, y)
    assert torch.allclose((sent - w).norm(), 0.2 * w.norm())


def test_a_party_fills_its_table_with_the_records_and_sends_the_opposite():
    x, y = torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 1])
    act = Active(scale=0.5).party(x, y)

    found = act.poisoned(Points(torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64), 2), None)

    assert found.x.tolist() == x[[0, 1, 2, 0, 1]].tolist() and found.y.tolist() == [0, 1, 1, 0, 1]
    sent = act.sent(None, None, (torch.tensor([2.0]), torch.tensor([3])), None, 4.0)
    assert [each.tolist() for each in sent] == [[-1.0], [3]]


@pytest.mark.parametrize("name", ["fedavg", "fedsgd", "scaffold"])
def test_the_model_of_the_next_round_knows_the_records_less(name):
    """Whatever form an algorithm's uploads have."""
    subject = Subject.of(Study.parse(STUDY.format(rounds=1, name=name)))
    x, y = subject.data.x[:40], subject.data.y[:40]
    act = Adversary(Active(scale=3.0).party(x, y), (subject.data.name(1),))

    losses = []
    for adversary in (None, act):
        run, _ = subject.run(frozenset({0}), 0, adversary=adversary)
        losses.append(float(subject.model.loss(run.vector, x, y)))

    assert losses[1] > losses[0]


def test_those_who_act_are_given_it_and_it_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    few = replace(work.QUICK, seconds=1e9, records=200)
    monkeypatch.setattr("archipel.audit.auditing.QUICK", few)
    study = Study.parse(STUDY.format(rounds=3, name="fedavg"))
    first = audit(study, attacks=["active"], quick=True, folder=tmp_path)
    kept = sorted((tmp_path / "worlds with an active party").iterdir())
    before = kept[0].stat().st_mtime_ns

    again = audit(study, attacks=["active"], quick=True, folder=tmp_path)

    by = {each.adversary.who: [f.name for f in each.findings] for each in first.learnt}
    assert {who for who, names in by.items() if names} == {"malicious_server", "malicious_party"}
    assert len(kept) == 8 and kept[0].stat().st_mtime_ns == before
    for one, two in zip(first.learnt, again.learnt, strict=True):
        assert [each.score for each in one.findings] == [each.score for each in two.findings]
        assert all(0 <= each.score <= 1 for each in one.findings)


def test_with_too_few_rounds_it_does_not_apply():
    found = audit(
        Study.parse(STUDY.format(rounds=2, name="fedavg")), attacks=["active"], quick=True
    )
    said = [each.said for learnt in found.learnt for each in learnt.findings]
    assert said and all("fewer than three rounds" in each for each in said)


@pytest.mark.slow
def test_training_pushes_back_where_a_record_is_used(monkeypatch):
    """A party that acts finds more than guessing does, on a model that is overfitted."""
    size = replace(work.QUICK, worlds=40, seconds=1e9)
    monkeypatch.setattr("archipel.audit.auditing.QUICK", size)
    text = STUDY.format(rounds=12, name="fedavg").replace("[16]", "[128]")
    text = text.replace("lr = 0.1", "lr = 0.3\nlocal_epochs = 8\nbatch_size = 8")
    done = audit(Study.parse(text), attacks=["active"], quick=True)
    by = {each.adversary.who: each.findings[0] for each in done.learnt if each.findings}

    assert by["malicious_server"].details["auc"] > 0.55
    assert by["malicious_party"].details["auc"] > 0.52
