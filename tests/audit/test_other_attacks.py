"""Labels, symbols, directions, properties, differences, and a model made to read records."""

import numpy as np
import pytest
import torch
from torch import nn

from archipel.attacks.case import Letter
from archipel.attacks.classifier import fit
from archipel.attacks.cosine import Cosine
from archipel.attacks.differencing import Differencing
from archipel.attacks.imprint import Imprint, imprinted
from archipel.attacks.labels import Labels, labels_of
from archipel.attacks.tokens import Tokens
from archipel.audit.auditing import audit
from archipel.audit.judging import curve
from archipel.models.lstm import char_lstm
from archipel.models.mlp import mlp
from archipel.models.model import Model
from archipel.study.file import Study

STUDY = """
[study]
rounds = 2
[data]
name = "heart_disease"
[model]
name = "mlp"
widths = [256]
[algorithm]
name = "fedsgd"
lr = 0.1
batch_size = 8
"""


def letter(model, x, y, steps=1, batch=None, lr=0.1):
    """An upload of these records, as an attack gets it."""
    w, b = model.w, batch or len(x)
    for step in range(steps):
        at = (torch.arange(b) + step * b) % len(x)
        w = w - lr * model.grad(w, x[at], y[at])
    gradient = (model.w - w) / (lr * steps)
    one = torch.ones(x.shape[1:]) if x.is_floating_point() else torch.ones(x.shape[1:]).long()
    return Letter(
        model, model.w, gradient, len(x), steps, b, lr, tuple(x.shape[1:]), 4, -3 * one, 3 * one
    )


def network():
    torch.manual_seed(0)
    return Model(mlp((6,), 4, widths=(64,)))


def test_labels_of_a_batch_are_counted():
    x, y = torch.randn(12, 6), torch.tensor([0] * 2 + [1] * 7 + [3] * 3)

    assert torch.equal(labels_of(letter(network(), x, y)), y)
    assert Labels().applies(letter(network(), x, y)) == ""


def test_the_direction_of_one_step_gives_the_records():
    torch.manual_seed(1)
    x, y = torch.randn(2, 6), torch.tensor([0, 2])

    made = Cosine(steps=300).records(letter(network(), x, y))

    assert torch.cdist(x, made.x).min(dim=1).values.max() < 0.3


def test_several_steps_are_simulated():
    torch.manual_seed(2)
    x, y = torch.randn(2, 6), torch.tensor([1, 3])
    several = letter(network(), x, y, steps=4, batch=2, lr=0.5)

    made = Cosine(steps=150).records(several)

    assert torch.cdist(x, made.x).min(dim=1).values.max() < 0.4


def test_symbols_that_were_read_are_told():
    torch.manual_seed(0)
    model = Model(char_lstm((5,), 30, embedding=4, hidden=8, layers=1))
    x = torch.tensor([[3, 4, 4, 9, 3], [7, 7, 9, 3, 4]])

    assert Tokens().records(letter(model, x, x)).x.tolist() == [3, 4, 7, 9]
    assert "not text" in Tokens().applies(
        letter(network(), torch.randn(2, 6), torch.zeros(2).long())
    )


def test_sums_that_differ_by_a_party_tell_of_it():
    rosters = [[0, 1, 2, 3], [0, 1, 3], [1, 3]]

    assert Differencing().told(rosters, [40.0, 30.0, 25.0], 4) == {0: 5.0, 2: 10.0}
    assert Differencing().told([[0, 1], [2, 3]], [3.0, 4.0], 4) == {}


def test_an_imprint_reads_a_batch_and_is_seen():
    torch.manual_seed(0)
    model = Model(mlp((6,), 4, widths=(512,)))
    x, y = torch.randn(16, 6), torch.randint(4, (16,))
    sent = Imprint().sent(model, model.w, torch.zeros(6), torch.ones(6), 0)
    back = letter(model, x, y)
    gradient = model.grad(sent, x, y)

    made = Imprint().records(Letter(**{**vars(back), "w": sent, "gradient": gradient}))

    near = torch.cdist(x, made.x).min(dim=1).values
    assert int((near < 1e-2).sum()) >= 12
    assert imprinted(model, sent)
    assert not imprinted(model, model.w)


def test_no_imprint_fits_a_model_without_a_hidden_layer():
    assert Imprint().applies(Model(nn.Linear(3, 2)))
    assert not imprinted(Model(nn.Linear(3, 2)), Model(nn.Linear(3, 2)).w)


def test_a_classifier_with_more_features_than_examples():
    random = torch.Generator().manual_seed(0)
    x = torch.randn((40, 500), generator=random)
    y = torch.arange(40) % 2 == 0
    x[:, :5] += 3.0 * y.unsqueeze(-1)

    found = fit(x[:20], y[:20], penalty=10.0)

    assert curve(found.scores(x[20:]), y[20:]).area > 0.9


def found(text, *attacks):
    done = audit(Study.parse(text), attacks=attacks, quick=True)
    return {
        (learnt.adversary.who, finding.name): finding
        for learnt in done.learnt
        for finding in learnt.findings
    }


def test_a_malicious_server_reads_what_a_curious_one_does_not():
    by = found(STUDY.replace("batch_size = 8", "batch_size = 24"), "imprint", "exact")

    assert by["malicious_server", "imprint"].score > by["server", "exact"].score + 0.2
    assert ("server", "imprint") not in by


def test_a_property_is_told_from_uploads_and_not_through_noise():
    text = STUDY.replace('"heart_disease"', '"heart_disease"\npartition = "iid"\nparties = 4')
    text = text.replace("batch_size = 8", "")
    by = found(text, "property")

    assert by["server", "properties"].score >= 0.8

    noise = '[privacy]\nunit = "party"\ntrust = "nobody"\nepsilon = 1\ndelta = 1e-2\nclip = 0.1\n'
    hidden = found(text + noise, "property")["server", "properties"]
    assert hidden.score < 0.8
    assert hidden.within
    assert hidden.ceiling < 1


def test_rosters_that_change_tell_numbers_of_records():
    text = STUDY.replace('"fedsgd"', '"fedavg"')
    away = '[simulate]\naway = {hungarian = "2-2"}\n'
    by = found(text + away, "differencing")
    finding = by["sums", "differencing"]

    assert finding.score == 0.25
    assert "hungarian" in finding.said


def test_attacks_are_chosen_by_family_and_name():
    names = {name for _, name in found(STUDY, "labels", "differencing")}

    assert names == {"labels", "differencing"}
    with pytest.raises(Exception, match="unknown attack 'magic'"):
        found(STUDY, "magic")


def test_draws_of_a_property_are_as_large_with_it_as_without():
    from archipel.audit.subject import Subject
    from archipel.audit.traits import _drawn, trait_of

    subject = Subject.of(Study.parse(STUDY))
    trait = trait_of(subject)
    own = subject.data.row_party == trait.party
    random = np.random.default_rng(0)
    sizes = [
        int(_drawn(subject, own, trait.has == value, 20, random).n[trait.party])
        for value in (True, False)
    ]

    assert sizes[0] == sizes[1] == 25
