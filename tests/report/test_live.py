"""The live picture in the terminal: what it shows, where it keeps quiet, what it costs."""

import fcntl
import os
import pty
import struct
import sys
import termios
import time
from io import StringIO
from threading import Thread
from types import SimpleNamespace

import pytest
from fake_runs import fake_run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from archipel.algorithms import FedAvg
from archipel.engines.engine import Cause
from archipel.report.frame import Clock, Pace, Still, lines
from archipel.report.live import LiveView, live_view, picture, render
from archipel.runs.simulation import simulate

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


def text_of(run, width=80, height=24):
    """What a frame says, without colours."""
    segments = Console(width=width, file=StringIO()).render(render(run, width, height))
    return "".join(segment.text for segment in segments)


class Terminal:
    """A terminal, and what was written to it."""

    def __init__(self, columns=80, rows=24):
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._file = os.fdopen(slave, "w", encoding="utf-8")
        self.console = Console(file=self._file, _environ={"TERM": "xterm-256color"})
        self._read = []
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        while True:
            try:
                found = os.read(self._master, 65536)
            except OSError:
                return
            if not found:
                return
            self._read.append(found)

    def wait_for(self, words):
        """Return once these words were written: a busy machine draws late."""
        until = time.monotonic() + 120
        while words not in b"".join(self._read).decode(errors="replace"):
            assert time.monotonic() < until
            time.sleep(0.01)

    def text(self):
        """Everything written, once the terminal is closed."""
        self._file.close()
        self._thread.join(60)
        os.close(self._master)
        return b"".join(self._read).decode()


# -- what it shows -------------------------------------------------------------


def test_one_glance_tells_whether_together_beats_alone():
    text = text_of(fake_run(target=0.8))

    assert "FedAvg on islands · 4 parties · seed 7" in text
    assert "round 26 of 40 · 0:13, 0:07 left" in text
    assert "mean accuracy 0.798 · better than alone by 9.8 points" in text
    assert "all test points 0.848" in text
    assert "target 0.800 reached in round 11" in text
    for label in ("together 0.798", "alone 0.700", "pooled 0.900"):
        assert label in text
    assert "12.5 kB up · 13.0 kB down · 2,000 gradients/s · no differential privacy" in text


@pytest.mark.parametrize(
    ("metric", "value", "says"),
    [
        ("accuracy", 0.65, "worse than alone by 10.0 points"),
        ("accuracy", 0.75, "as good as alone"),
        ("rmse", 0.65, "better than alone by 0.100"),
        ("rmse", 0.95, "worse than alone by 0.200"),
    ],
)
def test_better_depends_on_the_metric(metric, value, says):
    assert says in text_of(fake_run(metric=metric, values=[value]))


def test_without_baselines_the_curve_is_over_all_points():
    text = text_of(fake_run(levels=None, target=0.8, new=1))

    assert "accuracy 0.848 · target 0.800 reached in round 11" in text
    assert "alone" not in text
    for label in ("together 0.848", "new parties 0.748", "target 0.800"):
        assert label in text


def test_a_target_that_is_to_be_undercut():
    falling = [5.0, 4.0, 3.0, 2.0]

    assert "target 3.000 reached in round 3" in text_of(
        fake_run(metric="rmse", values=falling, done=4, target=3.0)
    )
    assert "target 1.000 not reached yet" in text_of(
        fake_run(metric="rmse", values=falling, done=4, target=1.0)
    )


def test_who_is_missing_and_why():
    run = fake_run(names=("north", "south", "east", "west"), missing=0.0)
    run.participation[-1].missing[1] = Cause("dropped out")

    text = text_of(run)
    row = next(line for line in text.splitlines() if "south" in line)
    assert row.count("▇") == 25
    assert row.endswith("missing: dropped out")
    assert text.count(" present") == 3


def test_many_parties_are_counted():
    run = fake_run(1000, sample=0.1, missing=0.0)
    run.participation[-1].missing.update({1: Cause("away"), 2: Cause("away"), 3: Cause("too slow")})

    assert "sampled 100 of 1,000 parties · present 97 · away 2 · too slow 1" in text_of(run)


def test_a_round_below_quorum_is_marked():
    run = fake_run(missing=0.0)
    run.participation[-1] = run.participation[-1]._replace(counted=False)

    assert text_of(run).count("below quorum") == 4


def test_new_parties_get_a_curve_of_their_own():
    assert "new parties 0.698" in text_of(fake_run(new=2))
    assert "4 parties and 2 new" in text_of(fake_run(new=2))


def test_notes_and_state():
    text = text_of(fake_run(done=40, notes=["first", "second", "third"]))

    assert "first" not in text
    assert "second" in text
    assert "third" in text
    small = text_of(fake_run(notes=["2nd", "3rd"]), height=16)
    assert "3rd" in small
    assert "2nd" not in small
    assert text.splitlines()[0].endswith("done")
    assert "left" not in text


def test_names_are_shown_not_obeyed():
    names = ("[red]a[/red]", "\x1b[31mb\r\n\u202e", "島の病院" * 9, "e\u0301" * 40)
    text = text_of(fake_run(names=names))

    assert "[red]a[/red]" in text
    assert "\x1b" not in text
    assert "\r" not in text
    assert "\u202e" not in text
    assert text_of(fake_run()).count("\n") == text.count("\n")


AWKWARD = st.sampled_from([float("nan"), float("inf"), -1e300, 1e300, 0.0, 1e-12, 0.5, 0.5, 0.9])


@settings(max_examples=150)
@given(
    parties=st.sampled_from([1, 2, 4, 12, 13, 1000]),
    new=st.sampled_from([0, 3]),
    rounds=st.sampled_from([1, 7, 40, 1_000_000]),
    done=st.integers(0, 60),
    every=st.sampled_from([1, 7]),
    values=st.lists(AWKWARD | st.floats(), max_size=8) | st.none(),
    levels=st.tuples(AWKWARD, AWKWARD) | st.none(),
    target=AWKWARD | st.none(),
    name=st.text(max_size=60),
    notes=st.lists(st.text(max_size=200), max_size=3),
    metric=st.sampled_from(["accuracy", "rmse"]),
    width=st.integers(1, 160),
    height=st.integers(0, 60),
)
@example(1, 0, 1, 0, 1, None, None, None, "", [], "accuracy", 60, 24)
@example(12, 3, 40, 40, 1, [float("nan")], (0.5, 0.5), 0.5, "[red]", ["x" * 200], "rmse", 140, 24)
def test_it_always_fits(
    parties, new, rounds, done, every, values, levels, target, name, notes, metric, width, height
):
    names = tuple(f"{name}{k}" for k in range(parties + new))
    run = fake_run(
        parties,
        rounds,
        min(done, rounds),
        new=new,
        names=names,
        values=values,
        every=every,
        levels=levels,
        target=target,
        notes=notes,
        metric=metric,
        sample=0.5,
    )

    found = text_of(run, width, height).splitlines()
    assert len(found) <= height
    assert max(map(cell_len, found), default=0) <= width


def test_the_usual_sizes_show_everything():
    for width, height in ((60, 24), (80, 24), (140, 24), (100, 50)):
        names = ("north", "south", "east", "west")
        text = text_of(fake_run(target=0.8, names=names, notes=["a note"]), width, height - 1)
        for part in ("round 26", "than alone", "pooled", "gradients/s", "a note", *names):
            assert part in text


# -- the time that is left ------------------------------------------------------


def test_rounds_before_a_resume_are_no_measure_of_speed():
    run = fake_run(rounds=1000, done=900)
    run.seconds = 500.0
    clock = Clock(run, 0.0)
    assert clock.tick(0.0) == Pace(0.0, 500.0)

    run.participation += run.participation[:1]
    pace = clock.tick(2.0)
    assert (pace.elapsed, pace.per_round) == (502.0, 2.0)
    frame = lines(Still.of(run, pace), 80, 24, 3.0)
    assert "round 901 of 1,000 · 8:23, 3:17 left" in "".join(text for text, _ in frame[1])


def test_the_time_left_follows_recent_rounds():
    run = fake_run(rounds=1000, done=1)
    clock, now = Clock(run, 0.0), 0.0
    for seconds in [10.0] * 20 + [1.0] * 60:
        now += seconds
        run.participation += run.participation[:1]
        pace = clock.tick(now)

    assert pace.per_round == pytest.approx(1.0)


# -- where it is quiet ----------------------------------------------------------


def use(view, **options):
    """A run that is watched."""
    with view:
        view.say("making ready")
        options = {"rounds": 3, "workers": 1} | options
        return simulate(FedAvg(), "heart_disease", watch=view, **options)


def test_nothing_is_written_where_there_is_no_terminal(capfd, monkeypatch):
    for name, value in (("FORCE_COLOR", "1"), ("TTY_COMPATIBLE", "1"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    use(LiveView())
    use(live_view())
    file = StringIO()
    monkeypatch.undo()
    use(LiveView(Console(file=file)))

    assert capfd.readouterr() == ("", "")
    assert file.getvalue() == ""


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_nothing_is_written_to_a_dumb_terminal(term):
    terminal = Terminal()
    terminal.console._environ = {"TERM": term}
    use(LiveView(terminal.console))

    assert terminal.text() == ""


# -- in a terminal --------------------------------------------------------------


def test_the_last_frame_stays_and_the_cursor_comes_back():
    terminal = Terminal()
    run = use(LiveView(terminal.console), rounds=5, workers=2)

    text = terminal.text()
    assert run.done == 5
    assert text.startswith(HIDE)
    assert "round 5 of 5" in text
    assert "done" in text
    assert text.rindex(SHOW) > text.rindex("no differential privacy")
    assert text.rstrip().endswith(SHOW)


@pytest.mark.parametrize(
    ("error", "state"), [(KeyboardInterrupt, "stopped"), (ZeroDivisionError, "failed")]
)
def test_the_cursor_comes_back_when_a_run_is_interrupted(error, state):
    terminal = Terminal()

    def stop(run):
        if run.done == 2:
            raise error

    with pytest.raises(error):
        use(LiveView(terminal.console), on_round=stop)

    text = terminal.text()
    assert text.rstrip().endswith(SHOW)
    assert state in text


def test_what_goes_on_besides_rounds_is_said():
    terminal = Terminal()
    view = LiveView(terminal.console)
    with view:
        view.say("training every party [alone]\x1b[2J")
        terminal.wait_for("training every party")
        view(fake_run(done=0))
        terminal.wait_for("round 0 of 40")

    text = terminal.text()
    assert "training every party [alone] [2J" in text
    assert "round 0 of 40" in text[text.rindex("training") :]


def test_results_stay_on_standard_output(capsys):
    terminal = Terminal()
    with LiveView(terminal.console):
        print("a result")

    assert capsys.readouterr().out == "a result\n"
    assert "a result" not in terminal.text()


def test_a_broken_picture_does_not_cost_the_run():
    terminal = Terminal()
    run = fake_run()
    run.history[-1] = {}
    with LiveView(terminal.console) as view:
        view(run)

    assert "no picture: KeyError" in terminal.text()


def test_what_is_drawn_stood_so_at_one_moment():
    run = fake_run()
    still = Still.of(run, Pace(0.0, 13.0))
    before = lines(still, 80, 24, 0.0)
    run.history.append({"round": 27})
    run.participation.append(None)

    assert lines(still, 80, 24, 0.0) == before


def test_one_view_shows_one_run_after_another():
    terminal = Terminal()
    view = LiveView(terminal.console)
    with view:
        view(fake_run(rounds=40))
        view(fake_run(rounds=50, done=0))

    assert "round 0 of 50" in terminal.text()


@pytest.mark.parametrize("shape", [{}, {"parties": 1000, "sample": 0.1}, {"parties": 12}])
def test_it_is_cheap(shape):
    run = fake_run(rounds=500, done=400, new=2, **shape)
    view = LiveView(Console(file=StringIO(), force_terminal=True, _environ={"TERM": "xterm"}))
    calls, draws = [], []
    for _ in range(20):
        began = time.thread_time()
        for _ in range(100):
            view(run)
        calls.append((time.thread_time() - began) / 100)
        began = time.thread_time()
        view.console.print(view._frame())
        draws.append(time.thread_time() - began)

    assert min(calls) < 50e-6
    assert min(draws) < 10e-3


# -- elsewhere ------------------------------------------------------------------


def test_a_picture_needs_nothing_from_elsewhere(tmp_path):
    path = picture(fake_run(names=("<b>", "&amp;", "c", "d")), tmp_path / "live.svg")

    svg = path.read_text()
    assert svg.startswith("<svg")
    assert "@font-face" not in svg
    assert svg.count("http") == svg.count("http://www.w3.org/2000/svg")
    assert "&lt;b&gt;" in svg


def test_the_view_fits_the_place(monkeypatch):
    assert isinstance(live_view(), LiveView)

    for kernel, kind in ((None, "LiveView"), (object(), "NotebookView")):
        shell = SimpleNamespace(kernel=kernel)
        here = SimpleNamespace(get_ipython=lambda shell=shell: shell)
        monkeypatch.setitem(sys.modules, "IPython", here)
        monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=print))
        assert type(live_view()).__name__ == kind
