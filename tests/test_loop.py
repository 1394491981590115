"""The loop does with an engine what an attendance says, whoever they are."""

import numpy as np

import archipel as ar
from archipel.engines.engine import Cause
from archipel.runs.loop import Loop
from archipel.runs.participation import Cohort
from archipel.runs.parts import build_model
from archipel.runs.simulation import build


class InTurn:
    """One party a round; in the second round nobody, after two tries."""

    def __init__(self, engine):
        self.engine, self.clocks, self.evaluations = engine, [], 0

    def take_part(self, t, clock):
        self.clocks.append(clock)
        party = np.array([t])
        if t == 1:
            gone = {1: Cause("away")}
            nobody = Cohort(party, party[:0], np.ones(0), gone, False, 2, gone)
            return nobody, self.engine.round(t, party[:0])
        return Cohort(party, party, np.ones(1), {}), self.engine.round(t, party)

    def before_evaluation(self):
        self.evaluations += 1


def test_the_loop_asks_whoever_it_is_given():
    data = ar.load("heart_disease")
    options = {"rounds": 3, "plan": ar.Plan("one", 1, 1)}
    model = build_model(None, data, None, 0)
    engine, loop = build(ar.FedAvg(), data, model, options)
    (run,) = loop.runs
    attendance = InTurn(engine)
    with engine:
        Loop(engine, attendance, [run]).go(None, None)

    assert run.state == "done" and len(run.history) == attendance.evaluations == 3
    assert attendance.clocks == [0, 1, 4]  # the second round was waited for twice
    assert [cohort.present.tolist() for cohort in run.participation] == [[0], [], [2]]
    assert (run.spent.up, run.spent.down) == (2 * run.anatomy.bytes_up, 2 * run.anatomy.bytes_down)
    assert "round 2: waited 2 times for the quorum (hungarian away)." in run.notes
    assert "round 2: below the quorum, not counted." in run.notes
