"""What the scorecard, the report and the live picture tell of the simulated clock."""

import json

import numpy as np
import pytest

import archipel as ar
from archipel.report.clock import by_hour
from archipel.report.export import events, export
from archipel.report.figures import figures
from archipel.report.frame import Pace, Still, cost
from archipel.scorecard.card import Scorecard

SIMULATE = {"devices": "phones", "dropouts": 0.05, "patience": 60, "time_zones": [-5, 1]}
ROUND = {"sample": 4, "over_select": 0.5, "deadline": 300.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    study = ar.Study.of(
        "fedavg",
        study={"name": "phones", "rounds": 160, "evaluate_every": 20, "target": 0.3},
        data={"name": "synthetic", "parties": 80},
        algorithm={"lr": 0.1},
        round=ROUND,
        simulate=SIMULATE,
    )
    return study.run(out=tmp_path_factory.mktemp("runs"), baselines=False, workers=1)


def test_the_scorecard_tells_time_and_energy_to_the_target_and_the_slowest_fifths_share(run):
    card = run.scorecard
    simulated, last = card.efficiency.simulated, run.participation[-1].timing

    assert simulated.seconds == last.end and (simulated.low, simulated.high) == last[3:5]
    rounds, at = run.rounds_to(0.3), [entry["round"] for entry in run.history]
    seconds = [entry["simulated"]["seconds"] for entry in run.history]
    expected = np.interp(rounds, [0, *at], [0, *seconds])
    assert simulated.seconds_to_target == pytest.approx(expected)
    assert 0 < simulated.low_to_target < simulated.high_to_target <= simulated.high
    assert simulated.waiting == pytest.approx(
        sum(each.timing.start - each.timing.began for each in run.participation)
    )
    counted = sum(len(one.present) for one in run.participation)
    slow = sum(one.timing.slow for one in run.participation)
    assert simulated.slow_share == slow / counted
    assert card.efficiency.energy.compute_high == pytest.approx(last.high / 3600)
    assert any("watts of their class" in each for each in card.efficiency.energy.assumptions)
    printed = repr(card)
    for words in ("simulated time to target", "devices' energy to target", "slowest fifth"):
        assert words in printed


def test_a_scorecard_on_the_clock_is_read_as_it_was_written(run):
    told = json.loads(json.dumps(run.scorecard.to_json()))

    assert Scorecard.of_json(told) == run.scorecard


def test_without_a_clock_the_scorecard_is_as_it_was():
    plain = ar.simulate(ar.FedAvg(), "heart_disease", rounds=2, workers=1)

    told = plain.scorecard.to_json()
    assert "simulated" not in told["efficiency"] and "simulated" not in plain.to_json()
    assert "clock" not in figures(plain)


def test_the_report_shows_the_hours_of_every_time_zone(run, tmp_path):
    hours = by_hour(run)
    page = ar.open_run(run.name, run.folder.parent).report(tmp_path / "report.html").read_text()

    arrived = sum(len(one.present) for one in run.participation)
    assert {*hours} == {"-5", "1"} and sum(map(np.sum, hours.values())) == arrived
    for words in ("UTC-5", "UTC+1", "simulated time, ", "energy of all devices", "hour of the day"):
        assert words in page
    assert "by the simulated clock, which stands at" in page


def test_tables_have_the_clock_beside_the_rounds(run, tmp_path):
    frame = run.to_frame()
    files = export(run, tmp_path / "exported")

    last = run.history[-1]["simulated"]
    assert frame["simulated_seconds"].iloc[-1] == last["seconds"]
    assert frame["joules_high"].iloc[-1] == last["energy"]["high"]
    head = (tmp_path / "exported" / "history.csv").read_text().splitlines()[0]
    assert head.endswith("simulated_seconds,joules_low,joules_high") and "events.csv" in files


def test_every_event_has_its_second_its_bytes_and_its_joules(run):
    _, *rows = events(run)

    seconds = [row[1] for row in rows]
    assert seconds == sorted(seconds)
    uploads = [row for row in rows if row[2] == "upload"]
    arrived = sum(len(one.present) for one in run.participation)
    assert len(uploads) == arrived and sum(row[4] for row in uploads) == run.spent.up
    joules = sum(row[6] for row in rows if row[6] != "")
    assert joules == pytest.approx(run.participation[-1].timing.high)
    kinds = {row[2] for row in rows}
    assert {"selection", "download", "training", "upload", "aggregation"} <= kinds
    assert "not needed" in kinds and "dropped out (no longer there)" in kinds


def test_the_live_picture_says_what_time_it_is_for_the_devices(run):
    phrases = [text for text, _ in cost(Still.of(run, Pace(0.0, 1.0)))]

    assert phrases[0].startswith("simulated day ") and phrases[0].endswith(" UTC")
    assert phrases[1].endswith("Wh of devices")
