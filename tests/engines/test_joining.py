# SPDX-License-Identifier: Apache-2.0
"""What a new party needs before it has a model: messages, bytes, gradients, time."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.engines.plan import Plan

DATA = ar.load("heart_disease").with_new(1)
NEW = int(DATA.n[DATA.training :].sum())  # training points of the one new party
PLANS = [Plan("one", 1, 1), Plan("stacked", 2, 1), Plan("stacked", 4, 2)]


def simulate(algorithm: Any, data: ar.Federation = DATA, **options: Any) -> ar.Run:
    options = {"plan": PLANS[0], "rounds": 2, **options}
    return ar.simulate(algorithm, data, "logistic", **options)


@dataclass(frozen=True)
class Advised:
    """FedAvg whose parties ask twice before they use their model; answers take a while."""

    lr: float = 0.1
    wait: float = 0.0

    def init(self, w):
        return w, None

    def party(self, me, w, _):
        return -self.lr * me.grad(w), None

    def server(self, w, uploads):
        return w + uploads.mean()

    def personal(self, me, w, _):
        own = yield w[..., :3].expand(*me.n.shape[:-1], 3)
        both = yield own
        return w + 0 * both.sum(dim=-1, keepdim=True)

    def advise(self, w, uploads):
        ends = time.thread_time() + self.wait
        while time.thread_time() < ends:  # processor time: waiting costs nobody anything
            pass
        return ar.Each(uploads.stack() * 2)


def test_the_shared_model_is_one_message_and_no_work() -> None:
    joining = simulate(ar.FedAvg()).joining
    bytes_ = simulate(ar.FedAvg()).vector.numel() * 4

    assert joining == (1, 0, bytes_, 0.0, 0.0, 1)


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("epochs", [1, 3])
def test_fine_tuning_costs_a_gradient_an_epoch_and_point(plan: Plan, epochs: int) -> None:
    run = simulate(ar.FineTuned(tune_epochs=epochs), plan=plan)
    joining = run.joining

    assert joining.messages == 1 and joining.up == 0
    assert joining.down == run.vector.numel() * 4
    assert joining.gradients == pytest.approx(epochs * NEW)
    assert joining.seconds > 0 and joining.parties == 1
    assert run.to_json()["personal"]["joining"] == joining._asdict()
    torch.testing.assert_close(run.making["gradients"], epochs * DATA.n.double())


def test_every_question_is_two_messages_and_their_bytes() -> None:
    run = simulate(Advised())
    joining = run.joining

    assert joining.messages == 5
    assert joining.up == 2 * 3 * 4
    assert joining.down == run.vector.numel() * 4 + 2 * 3 * 4
    assert joining.gradients == 0


def test_the_server_s_time_counts_and_predictions_do_not() -> None:
    slow = simulate(Advised(wait=0.05)).joining
    crowd = ar.Federation.from_arrays(
        [np.ones((2, 13), np.float32), np.ones((2, 13), np.float32)],
        [np.array([0, 1])] * 2,
        test=[(np.ones((200_000, 13), np.float32), np.zeros(200_000, np.int64))] * 2,
    ).with_new(1)
    began = time.perf_counter()
    many = simulate(Advised(), crowd, rounds=1)
    took = time.perf_counter() - began

    share = 2 * 0.05 / DATA.parties  # two answers to all parties at once
    assert 0.2 * share < slow.seconds
    assert many.joining.seconds < took / 10


def test_the_report_says_so(tmp_path: Path) -> None:
    told = simulate(ar.FineTuned()).report(tmp_path / "own.html").read_text()
    shared = simulate(ar.FedAvg()).report(tmp_path / "shared.html").read_text()

    assert "A new hospital needs for a model of its own" in told
    assert f"1 message, 112 B, {NEW} gradients of single examples" in told
    assert "for a model of its own" not in shared


def test_where_nobody_is_new_nothing_is_said() -> None:
    assert simulate(ar.FineTuned(), ar.load("heart_disease")).joining is None


@pytest.mark.parametrize("block", [1, 3, 10])
def test_costs_do_not_depend_on_who_works_beside_whom(block: int) -> None:
    for algorithm in (ar.Ditto(local_steps=10, batch_size=4), ar.PFedMe(local_epochs=2)):
        alone = simulate(algorithm, plan=Plan("one", 1, 1))
        beside = simulate(algorithm, plan=Plan("stacked", block, 1))

        assert beside.joining.gradients == alone.joining.gradients > 0
        assert beside.spent.gradients == alone.spent.gradients


def test_peers_have_nobody_to_ask() -> None:
    assert simulate(ar.DSGD(), topology="complete").joining is None


@pytest.mark.parametrize("plan", PLANS[:2], ids=str)
def test_a_recorded_run_still_knows_it(tmp_path: Path, plan: Plan) -> None:
    run = simulate(ar.FineTuned(), out=tmp_path / "a", plan=plan)
    done = simulate(ar.FineTuned(), out=tmp_path / "a", plan=plan)

    assert done.joining == run.joining
    assert done.parties.keys() == run.parties.keys()

    study = ar.Study.parse(
        {"data": {"name": "heart_disease"}, "algorithm": {"name": "ditto"}, "study": {"rounds": 2}}
    )
    kept = study.run_in(tmp_path / "b", False)

    assert ar.open_run(tmp_path / "b").joining == kept.joining


def test_a_run_from_before_it_was_measured_is_read(tmp_path: Path) -> None:
    simulate(ar.FineTuned(), out=tmp_path / "a")
    with sqlite3.connect(next((tmp_path / "a").glob("journal.db"))) as journal:
        journal.execute("delete from party_metrics where metric like 'making %'")
    journal.close()
    run = simulate(ar.FineTuned(), out=tmp_path / "a")

    assert run.joining is None
    assert run.to_json()["personal"]["joining"] is None
    assert run.state == "done"
