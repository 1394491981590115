"""A study's [wire]: what it may say, what it is refused for, and that runs keep to it."""

import re
import shutil
import sys

import pytest
import torch

import archipel as ar
from archipel.comparison import compare
from archipel.errors import ArchipelError
from archipel.federation.approval import read
from archipel.runs.listing import resume
from archipel.study import plugins
from archipel.study.file import Study
from archipel.wire import STEPS, Clip, Float16
from wire.examples import HERE, Int8

DATA = {"name": "heart_disease"}


@pytest.fixture
def folder(tmp_path):
    """A study's folder with the four files of one's own."""
    for path in HERE.glob("*.py"):
        shutil.copy(path, tmp_path)
    return tmp_path


def study(folder, wire, algorithm="fedavg", rounds=4, **sections):
    about = {"rounds": rounds, "name": "wired", **sections.pop("study", {})}
    if "rule" in wire:
        wire = dict(wire)
        sections["round"] = {"rule": wire.pop("rule")}
    return Study.of(algorithm, folder, data=DATA, study=about, wire=wire, **sections)


def run(study, **options):
    return study.run(None, workers=1, **{"baselines": False, **options})


class Until:
    """Looks on, and stops the run after a round."""

    def __init__(self, last):
        self.last = last

    def __call__(self, run):
        return run.done == self.last

    def say(self, text):
        pass


# -- what it may say -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "steps"),
    [
        (["clip:1.0"], (Clip(1.0),)),
        (["clip:2"], (Clip(2.0),)),
        (["clip:norm=1e-3", "float16"], (Clip(1e-3), Float16())),
        (["float16:bfloat16"], (Float16("bfloat16"),)),
        (["float16:dtype=bfloat16"], (Float16("bfloat16"),)),
    ],
)
def test_steps_by_name(tmp_path, texts, steps):
    found = study(tmp_path, {"up": texts, "down": texts}).wire_object

    assert found == ar.Wire(steps, steps)


def test_files_of_ones_own(folder):
    found = study(
        folder,
        {"up": ["clip_and_noise.py:1:noise=0.5", "int8.py:Int8"], "rule": "krum.py:Krum:1:3"},
    ).wire_object

    assert [repr(each) for each in (*found.up, found.rule)] == [
        "ClipAndNoise(clip=1.0, noise=0.5)", "Int8()", "Krum(f=1, keep=3)",
    ]  # fmt: skip
    summed = study(folder, {"sum": "secure_sum.py:0.7"}).wire_object.sum
    assert repr(summed) == "SecureSum(threshold=0.7, bits=40)"
    assert study(folder, {"sum": "plain"}).wire_object == ar.Wire()


REFUSED = {
    "clp:1": "wire.up = \"clp:1\": unknown step 'clp': did you mean 'clip'? Known: clip, entropy, ",
    "clip": "wire.up: clip.norm is missing: give a number.",
    "clip:a": 'wire.up: clip.norm = "a": give a number.',
    "clip:true": "wire.up: clip.norm = true: give a number.",
    "clip:0": 'wire.up = "clip:0": norm = 0.0: give a number above 0.',
    "clip:1:2": 'wire.up = "clip:1:2": Clip takes norm; leave ":2" out.',
    "clip:nrm=1": "unknown key of wire.up: clip 'nrm': did you mean 'norm'?",
    "clip:1:norm=2": 'norm is given twice; leave ":norm=2" out.',
    "float16:float8": 'wire.up: float16.dtype = "float8": give "float16" or "bfloat16".',
    "int8.py:1": 'wire.up = "int8.py:1": Int8 takes no values; leave ":1" out.',
    "krum.py": "one class with methods send and receive is wanted, and the file has none.",
    "int8.py:Int9": "unknown step in int8.py 'Int9'",
    "no.py": "cannot be read",
    "": 'wire.up = "": name a step, or a Python file with one.',
}


@pytest.mark.parametrize("text", REFUSED)
def test_steps_that_are_refused(folder, text):
    with pytest.raises(ArchipelError, match=re.escape(REFUSED[text])) as caught:
        study(folder, {"up": [text]})
    said = str(caught.value)
    assert "wire.up" in said and "\n" not in said and said.endswith(".")


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        ({"rule": "krumm"}, 'round.rule = "krumm": unknown rule'),
        ({"sum": "plian"}, "unknown sum 'plian': did you mean 'plain'?"),
        ({"sum": "krum.py"}, "one class with methods party and server is wanted"),
        ({"rule": "krum.py:x"}, 'round.rule: krum.py.f = "x": give a whole number.'),
        ({"up": "clip:1"}, 'wire.up = "clip:1": give a list.'),
        ({"up": [1]}, "wire.up.0 = 1: give a text."),
        ({"sum": 1}, "wire.sum = 1: give a text."),
        ({"ups": []}, "unknown key of [wire] 'ups': did you mean 'up'?"),
        ({"steps": ["clip"]}, "unknown key of [wire] 'steps'"),
        (
            {"up": ["int8.py"], "sum": "secure_sum.py"},
            "wire.up: Int8 has to be undone for every upload (it is not linear), and wire.sum: "
            "SecureSum shows their sum alone: leave the step out",
        ),
        (
            {"up": ["rotate"], "sum": "secure"},
            "wire.up: Rotate has to be undone for every upload (it is not linear), and wire.sum: "
            "SecureSum shows their sum alone: give it common=true, leave the step out",
        ),
        (
            {"rule": "krum.py", "sum": "secure_sum.py"},
            "round.rule: Krum looks at single uploads, and wire.sum: SecureSum shows their sum",
        ),
    ],
)
def test_wires_that_are_refused(folder, wire, said):
    with pytest.raises(ArchipelError, match=re.escape(said)):
        study(folder, wire)


def test_a_class_that_lacks_something_is_no_step(tmp_path):
    step = (HERE / "int8.py").read_text()
    (tmp_path / "mine.py").write_text(step.replace("def bound", "def bounded"))
    with pytest.raises(ArchipelError, match="Int8 is no step: it has no bound"):
        study(tmp_path, {"up": ["mine.py"]})
    (tmp_path / "mine.py").write_text(step.replace("@dataclass(frozen=True)\n", ""))
    with pytest.raises(ArchipelError, match=r"mine.py is no dataclass: make it one"):
        study(tmp_path, {"up": ["mine.py"]})


def test_a_class_that_cannot_be_called_is_no_rule(tmp_path):
    rule = (HERE / "krum.py").read_text()
    (tmp_path / "mine.py").write_text(rule.replace("def __call__", "def called"))
    with pytest.raises(ArchipelError, match="one class with a method __call__ is wanted"):
        study(tmp_path, {"rule": "mine.py"})


def test_the_command_line_sets_a_wire(folder):
    plain = study(folder, {})
    wired = plain.with_set({"wire.up": ["float16"], "wire.down": ["float16"]})

    assert wired.wire_object == ar.Wire((Float16(),), (Float16(),))


# -- names of packages -----------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    site = tmp_path / "site"
    info = site / "archipel_parts-1.0.dist-info"
    info.mkdir(parents=True)
    for name in ("int8", "krum", "secure_sum"):
        shutil.copy(HERE / f"{name}.py", site / f"parts_{name}.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: archipel-parts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[archipel.wire]\nint8 = parts_int8:Int8\n[archipel.rules]\nkrum = parts_krum:Krum\n"
        "[archipel.sums]\nsecure = parts_secure_sum:SecureSum\n"
    )
    monkeypatch.syspath_prepend(site)
    yield
    for name in ("int8", "krum", "secure_sum"):
        sys.modules.pop(f"parts_{name}", None)


def test_names_that_a_package_adds(package, tmp_path):
    assert plugins.names("step") == sorted([*STEPS, "int8"])
    found = study(tmp_path, {"up": ["int8"], "rule": "krum:1:2"})
    assert repr(found.wire_object) == (
        "Wire(up=(Int8(),), down=(), rule=Krum(f=1, keep=2), sum=None)"
    )
    assert repr(study(tmp_path, {"sum": "secure:0.8"}).wire_object.sum).startswith("SecureSum(thr")
    with pytest.raises(ArchipelError, match="unknown sum 'secur': did you mean 'secure'"):
        study(tmp_path, {"sum": "secur"})


# -- between institutions --------------------------------------------------------------------------

BETWEEN = b"""
[study]
name = "heart"
[data]
target = "died"
[data.schema]
age = "number"
died = ["no", "yes"]
[wire]
"""


@pytest.mark.parametrize(
    ("line", "key", "name"),
    [
        ("up = ['clip:1.0', 'int8.py']", "wire.up", "int8.py"),
        ("down = ['/tmp/a.py:A:1']", "wire.down", "/tmp/a.py"),
        ("[round]\nrule = 'krum.py:Krum:1:3'", "round.rule", "krum.py"),
        ("sum = '../secure_sum.py'", "wire.sum", "../secure_sum.py"),
    ],
)
def test_between_institutions_nobody_names_code(folder, monkeypatch, line, key, name):
    monkeypatch.chdir(folder)
    said = (
        f"{key} = '{name}': a study between institutions names no code of its own; install it as a "
        "package at every site and name it."
    )
    with pytest.raises(ArchipelError, match=re.escape(said)):
        read(BETWEEN + line.encode())


def test_between_institutions_what_is_installed_may_be_named():
    found = read(BETWEEN + b"up = ['clip:1.0', 'float16']\nsum = 'plain'")

    assert found.wire_object == ar.Wire((Clip(1.0), Float16()))
    assert read(BETWEEN + b"steps = []").wire_object == ar.Wire()  # of an earlier version


# -- what a run is known by ------------------------------------------------------------------------


def test_the_resolved_study_has_every_field_and_is_read_again(folder):
    first = study(folder, {"up": ["clip_and_noise.py:2"], "down": ["float16"], "rule": "krum.py"})
    written = first.resolved()["wire"]

    assert written == {
        "up": ["clip_and_noise.py:clip=2.0:noise=1.0"],
        "down": ["float16:dtype=float16"],
        "sum": "plain",
    }
    assert first.resolved()["round"]["rule"] == "krum.py:f=1:keep=1"
    again = Study.parse(first.toml(), folder)
    assert again.hash == first.hash and again.wire_object == first.wire_object


def test_the_hash_knows_the_wire_and_its_files(folder):
    plain, coded = study(folder, {}), study(folder, {"up": ["int8.py"]})
    hashes = {plain.hash, coded.hash, study(folder, {"up": ["clip:1.0"]}).hash}
    hashes |= {study(folder, {"up": ["clip:2.0"]}).hash, study(folder, {"down": ["clip:1.0"]}).hash}
    assert len(hashes) == 5
    assert study(folder, {"up": ["clip:1"]}).hash == study(folder, {"up": ["clip:norm=1.0"]}).hash

    assert "int8.py" in coded.sources() and "code/int8.py" in coded.files()
    (folder / "int8.py").write_text((folder / "int8.py").read_text() + "# changed\n")
    assert coded.hash not in hashes


def test_a_study_without_a_wire_keeps_its_hash(folder):
    given = {"study": {"rounds": 4, "name": "wired"}, "data": DATA, "wire": {"steps": []}}
    old = Study.parse(given, folder)

    assert old.resolved()["wire"] == {"steps": []}
    assert old.hash == study(folder, {}).hash == study(folder, {"sum": "plain", "up": []}).hash
    assert "\nsteps" not in old.toml()


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_run_with_error_feedback_goes_on_bit_for_bit(folder, algorithm):
    wired = study(folder, {"up": ["int8.py"], "down": ["float16"]}, algorithm, rounds=6)
    whole = run(wired)
    stopped = wired.run(folder / "runs", workers=1, baselines=False, watch=Until(3))
    resumed = resume("last", folder / "runs")

    assert (stopped.state, stopped.done) == ("stopped", 3)
    assert resumed.state == "done" and resumed.vector.equal(whole.vector)
    assert resumed.spent[:3] == whole.spent[:3]
    assert [e["metrics"] for e in resumed.history] == [e["metrics"] for e in whole.history]


def test_what_is_left_out_matters_to_what_comes_next(folder):
    """Else the test above would show nothing: without the state, bits differ."""
    step = (folder / "int8.py").read_text()
    (folder / "forgets.py").write_text(
        step.replace(
            "x - y for x, y in zip(wanted, arrives", "0 * x for x, y in zip(wanted, upload"
        )
    )
    remembers = run(study(folder, {"up": ["int8.py"]}))
    forgets = run(study(folder, {"up": ["forgets.py"]}))

    assert not remembers.vector.equal(forgets.vector)


def test_to_go_on_with_another_wire_is_refused(folder):
    options = {"rounds": 4, "out": folder / "run", "workers": 1}

    def go(wire, **more):
        return ar.simulate(ar.FedAvg(lr=0.1), "heart_disease", wire=wire, **options, **more)

    go(ar.Wire(up=(Int8(),)), on_round=lambda run: run.done == 2)
    for other in (ar.Wire(), ar.Wire(up=(Clip(1.0),)), ar.Wire(up=(Int8(), Float16()))):
        with pytest.raises(ArchipelError, match=r"the run there is another one \(options\.wire"):
            go(other)
    assert go(ar.Wire(up=(Int8(),))).state == "done"


def test_to_go_on_with_another_wire_is_refused_to_a_study(folder):
    wired = study(folder, {"up": ["clip:1.0"]})
    path = wired.run(folder / "runs", workers=1, baselines=False, watch=Until(2)).folder

    with pytest.raises(ArchipelError, match=r"another one \(wire.up differ\)"):
        wired.with_set({"wire.up": ["clip:2.0"]}).run_in(path)


def test_python_and_a_file_give_the_same_run(folder):
    wired = run(study(folder, {"up": ["clip:0.5", "int8.py"], "down": ["float16"]}))
    wire = ar.Wire((Clip(0.5), Int8()), (Float16(),))
    same = ar.simulate(ar.FedAvg(), "heart_disease", rounds=4, workers=1, wire=wire)

    assert wired.vector.equal(same.vector)


def test_bytes_are_smaller_and_told(folder):
    plain, coded = run(study(folder, {})), run(study(folder, {"up": ["int8.py"]}))
    both = run(study(folder, {"up": ["float16"], "down": ["float16"]}))

    assert plain.spent.up == 4 * 4 * 28 * 4  # rounds, parties, parameters, bytes
    assert coded.spent.up == 4 * 4 * (28 + 4 * 2) and coded.spent.down == plain.spent.down
    assert (both.spent.up, both.spent.down) == (plain.spent.up // 2, plain.spent.down // 2)
    assert coded.to_json()["bytes"] == {"up": coded.spent.up, "down": coded.spent.down}


def test_baselines_are_there_and_have_no_wire(folder):
    plain = run(study(folder, {}), baselines=True)
    wired = run(study(folder, {"up": ["clip:0.001"]}), baselines=True)

    assert wired.baselines.keys() == plain.baselines.keys() == {"local", "central"}
    for name, level in plain.baselines.items():
        for metric, values in level.parties.items():
            assert torch.equal(values, wired.baselines[name].parties[metric])


def test_sums_only_with_a_wire(folder):
    privacy = {"server_sees": "sums"}
    for wire in ({"up": ["int8.py"]}, {"sum": "secure_sum.py"}):
        assert run(study(folder, wire, privacy=privacy)).anatomy.sums_only
    with pytest.raises(ArchipelError, match=r"round.rule, Krum\(f=0, keep=1\), looks at single"):
        run(study(folder, {"rule": "krum.py:0"}, privacy=privacy))


def test_a_secure_sum_gives_the_plain_run(folder):
    plain, summed = run(study(folder, {})), run(study(folder, {"sum": "secure_sum.py"}))

    torch.testing.assert_close(summed.vector, plain.vector, rtol=0, atol=1e-6)  # in 32 bits


def test_the_scorecard_says_what_messages_pass(folder):
    def privacy(wire):
        return run(study(folder, wire, rounds=1)).scorecard.privacy

    plain = privacy({})
    assert plain.wire == () and "The sum is plain" in plain.sees
    coded = privacy({"up": ["clip:1.0", "int8.py"], "down": ["float16"]})
    assert coded.server == "sums" and "as it arrives" in coded.sees
    assert coded.wire == (
        "uploads pass Clip(norm=1.0), then Int8()",
        "what parties are sent passes Float16(dtype='float16')",
    )
    assert ("up", "codes", (2, 13), "int8") in [
        (m.way, m.name, m.shape, m.dtype) for m in coded.messages
    ]
    assert "nobody keeps account" in coded.guarantee
    summed = privacy({"sum": "secure_sum.py"})
    assert summed.server == "sums" and "told sums over the parties alone" in summed.sees
    assert summed.wire == ("sums are made by SecureSum(threshold=0.5, bits=40)",)
    ruled = privacy({"rule": "krum.py:0:2"})
    assert ruled.server == "individuals" and ruled.sees.startswith("Krum(f=0, keep=2) looks at")


def test_the_scorecard_s_table_and_json_name_the_wire(folder):
    card = run(study(folder, {"up": ["float16"]}, rounds=1)).scorecard

    assert ("on the wire", "uploads pass Float16(dtype='float16')") in [
        (row.name, row.note) for row in card.rows()
    ]
    assert card.to_json()["privacy"]["wire"] == ["uploads pass Float16(dtype='float16')"]


# -- sweeps and comparisons ------------------------------------------------------------------------


def test_a_sweep_on_a_wire_is_its_runs(folder):
    wire = ar.Wire((Clip(0.5), Int8()))
    options = {"rounds": 3, "workers": 1, "wire": wire}
    both = ar.sweep(ar.FedAvg(), "heart_disease", None, {"lr": [0.03, 0.1]}, **options)

    for lr, swept in zip([0.03, 0.1], both, strict=True):
        alone = ar.simulate(ar.FedAvg(lr=lr), "heart_disease", **options)
        torch.testing.assert_close(swept.vector, alone.vector, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("wire", [{"up": ["int8.py"]}, {"sum": "secure_sum.py"}])
def test_a_comparison_on_a_wire_with_a_grid(folder, wire):
    base = study(folder, wire, rounds=2)
    done = compare(
        ["fedavg", "scaffold"], study=base, seeds=1, grid={"lr": [0.03, 0.1]}, out=None, workers=1
    )

    assert len(done.results) == 2 and not done.failed
    plain = compare(["fedavg"], study=study(folder, {}, rounds=2), seeds=1, out=None, workers=1)
    assert done.results[0].bytes["up"] != plain.results[0].bytes["up"]


def test_a_scorecard_read_back_has_its_wire(folder):
    card = run(study(folder, {"up": ["float16"]}, rounds=1)).scorecard

    assert type(card).of_json(card.to_json()).privacy.wire == card.privacy.wire
