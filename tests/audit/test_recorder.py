"""What passes the server's place is what was sent, through the study's wire, and no more."""

import numpy as np
import pytest
import torch

from archipel.audit.recorder import alone
from archipel.audit.subject import Subject
from archipel.study.file import Study
from archipel.tree import first

STUDY = """
[study]
rounds = 3
[data]
name = "heart_disease"
[model]
name = "logistic"
[algorithm]
name = "fedavg"
lr = 0.03
batch_size = 16
"""


def recorded(extra="", rounds=frozenset({0, 2}), **how):
    subject = Subject.of(Study.parse(STUDY + extra))
    return subject, *subject.run(rounds, 5, **how)


def test_rounds_that_were_asked_for_are_there_and_others_are_not():
    _, run, recorder = recorded()

    assert sorted(recorder.rounds) == [0, 2]
    seen = recorder.rounds[2]
    assert torch.equal(seen.after, run.vector)
    assert sorted(seen.arrived) == [0, 1, 2, 3] == list(seen.present)


def test_the_mean_is_that_of_the_uploads():
    subject, _, recorder = recorded()
    seen = recorder.rounds[0]
    n = subject.data.n.double()
    rows = torch.stack([first(seen.arrived[k]) for k in range(4)]).double()

    torch.testing.assert_close(first(seen.mean).double(), (n / n.sum()) @ rows)
    assert seen.weight == n.sum()


def test_a_run_with_a_recorder_is_the_same_run():
    subject, run, _ = recorded()
    plain = Study.parse(STUDY).with_set({"study.seed": 5})
    same = plain.run(None, baselines=False, workers=1)

    if torch.equal(Subject.of(plain).model.w, subject.model.w):
        torch.testing.assert_close(run.vector, same.vector)


def test_uploads_come_through_the_wire():
    _, _, recorder = recorded('[wire]\nup = ["top_k:0.2"]\n')

    for upload in recorder.rounds[0].arrived.values():
        assert int((first(upload) != 0).sum()) <= 8  # of 28


def test_a_secure_sum_is_never_opened():
    _, _, recorder = recorded('[wire]\nsum = "secure"\n')
    seen = recorder.rounds[0]

    assert seen.arrived == {}
    assert first(seen.mean).shape == (28,)


def test_noise_of_a_party_is_in_what_arrives_and_noise_of_the_server_is_not():
    by_party = '[privacy]\nunit = "party"\nepsilon = 8\ndelta = 1e-2\nclip = 0.1\ntrust = "%s"\n'
    _, _, local = recorded(by_party % "nobody")
    _, _, trusted = recorded(by_party % "server")

    assert first(local.rounds[0].arrived[0]).norm() > 0.2
    assert first(trusted.rounds[0].arrived[0]).norm() <= 0.1 + 1e-6
    assert first(trusted.rounds[0].mean).norm() > 0.1


def test_the_model_of_an_upload_alone_is_the_partys_own():
    _, _, recorder = recorded()
    seen = recorder.rounds[0]

    model = alone(recorder, seen, 2, seen.arrived[2])

    torch.testing.assert_close(model, seen.sent + first(seen.arrived[2]))


def test_what_training_used_is_known_to_the_judge():
    subject, _, recorder = recorded()
    used = recorder.rounds[0].used

    assert [int(used[k].sum()) for k in range(4)] == subject.data.n[:4].tolist()


def test_of_peers_the_vectors_are_there_that_neighbours_get():
    text = STUDY.replace('"fedavg"', '"dsgd"') + '[topology]\nname = "ring"\n'
    _, _, recorder = (
        Subject.of(Study.parse(text)),
        *Subject.of(Study.parse(text)).run(frozenset({0}), 1),
    )

    assert sorted(recorder.rounds[0].arrived) == [0, 1, 2, 3]


def test_a_malicious_server_sends_what_it_likes():
    _, _, recorder = recorded(tamper=lambda w, t: torch.zeros_like(w) + t)

    assert bool((recorder.rounds[2].sent == 2).all())


def test_records_may_be_drawn_anew():
    subject = Subject.of(Study.parse(STUDY))
    data = subject.data
    rows = np.random.default_rng(0).random(data.points) < 0.5

    again, order = data.with_training(rows)

    assert torch.equal(again.x, data.x[torch.from_numpy(order)])
    train = again.party(1)[0]
    assert len(train) == int(rows[data.row_party == 1].sum())


@pytest.mark.parametrize("text", ['[data]\nname = "heart_disease"\nvirtual = 2\n'])
def test_copies_of_parties_are_refused(text):
    study = STUDY.replace('[data]\nname = "heart_disease"\n', text)
    with pytest.raises(Exception, match="virtual"):
        Subject.of(Study.parse(study))
