# SPDX-License-Identifier: Apache-2.0
"""A round that is dropped because the scale was made anew has used its correlated noise up."""

import pytest
from safetensors.torch import load_file, save

import archipel as ar
from archipel.federation.site.studies import SiteStudies
from archipel.privacy.promise import Privacy
from network.test_wire import party_of
from problems import network

FEDAVG = ar.FedAvg(lr=0.1, batch_size=0.1, local_steps=1)  # one of ten batches in a round
W = network(4, 3).w


@pytest.fixture
def studies(tmp_path):
    (tmp_path / "s").mkdir()
    return SiteStudies(tmp_path)


def party(charge, correlated="banded"):
    promise = Privacy("record", epsilon=4.0, delta=1e-3, correlated=correlated)
    return party_of(
        0, None, FEDAVG, privacy=promise, rounds=10, private=True, charge=lambda *_: charge()
    )


def kept(studies, seat):
    (studies.folder("s") / "state.safetensors").write_bytes(save(seat.state()))


def again(studies, charge=lambda: None, **how):
    seat = party(charge, **how)
    seat.restore(load_file(studies.folder("s") / "state.safetensors"))
    return seat


@pytest.mark.parametrize("correlated", ["banded", "tree"])
def test_rows_of_noise_of_a_dropped_round_are_not_used_again(studies, correlated):
    used = []
    seat = party(lambda: None, correlated)
    for attempt in range(3):
        seat.work(0, 0, [W], attempt=attempt)
        used.append(int(seat.turn.own.state.noise.t))
        kept(studies, seat)
        studies.drop_round("s")
        seat = again(studies, correlated=correlated)

    assert used == [1, 2, 3]  # as many as were charged
    assert int(seat.own.state.noise.t) == 3


def test_a_round_that_was_charged_and_not_answered_is_used_up_too(studies):
    """Nobody knows whether it was computed before the site was killed."""

    class Killed(BaseException):
        pass

    def killed():
        kept(studies, seat)
        raise Killed

    seat = party(killed)
    with pytest.raises(Killed):
        seat.work(0, 0, [W])
    studies.drop_round("s")

    assert int(again(studies).own.state.noise.t) == 1


def test_a_round_is_used_up_once_however_often_the_scale_is_made_anew(studies):
    seat = party(lambda: None)
    kept(studies, seat)
    studies.drop_round("s")
    assert int(again(studies).own.state.noise.t) == 0  # none was open

    seat.work(0, 0, [W])
    kept(studies, seat)
    for _ in range(2):
        studies.drop_round("s")
        assert int(again(studies).own.state.noise.t) == 1
    kept(studies, again(studies))
    assert int(again(studies).own.state.noise.t) == 1
