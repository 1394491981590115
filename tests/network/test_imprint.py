# SPDX-License-Identifier: Apache-2.0
"""A coordinator that sends a model made to read records: a site says so before, and refuses it."""

import pytest
import torch

import archipel as ar
from archipel.attacks.imprint import Imprint
from archipel.engines.network.party_state import PartyState
from archipel.federation.site.policy import Policy, Standing, Withheld
from archipel.runs.parts import build_model
from network.test_consent import site  # noqa: F401
from network.test_dangers import said  # noqa: F401


@pytest.fixture
def party(tmp_path):
    data = ar.data.load("heart_disease").select([0])
    model = build_model("mlp", data, None, 0)
    Policy(least_rows=1, least_batch=1).write(tmp_path)
    rules = Standing(tmp_path)
    return PartyState(ar.FedSGD(), data, model, party=0, seed=0, rules=rules), model


def test_a_model_made_to_read_records_is_not_trained(party):
    state, model = party
    sent = Imprint().sent(model, model.w, torch.zeros(13), torch.ones(13), 0)

    with pytest.raises(Withheld, match="measures the same with most of its units"):
        state.work(0, 0, [sent])
    assert state.turn is None or not state.turn.outbox


def test_an_honest_model_is_trained(party):
    state, model = party

    (upload,), _ = state.work(0, 0, [model.w])

    assert upload.shape == model.w.shape


def test_a_review_says_what_such_a_model_could_do(said):  # noqa: F811
    seen = {"unit": "party", "trust": "server"}
    sorts = "can sort records with the 64 units of this one's first layer"

    assert sorts in said(model={"name": "mlp"}, privacy=seen)
    assert "can sort records" not in said(model={"name": "logistic"}, privacy=seen)
    assert "can sort records" not in said(model={"name": "mlp"}, privacy={"unit": "record"})
