"""Fewer bytes: wires side by side in a comparison, and the smallest that loses little."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import archipel.comparison.bytes as bytes_module
from archipel.cli import app
from archipel.comparison import (
    Comparison,
    Stopped,
    compare,
    fewer_bytes,
    read_grid,
    resume_comparison,
)
from archipel.errors import ArchipelError, RunFailed
from archipel.report.tables import as_text
from archipel.runs.simulation import simulate
from archipel.study.editing import with_field
from archipel.study.file import Study

WIRES = [[], ["float16"], ["clip:1.0", "float16"]]
INT8 = str(Path(__file__).parents[2] / "examples" / "wire" / "int8.py")


def small(algorithms=("fedavg",), **options):
    chosen = {"data": "heart_disease", "rounds": 3, "seeds": 1, "out": None, "workers": 1}
    return compare(list(algorithms), **{**chosen, "baselines": False, **options})


# -- wires side by side ----------------------------------------------------------------------------


def test_every_wire_of_a_grid_is_a_row_and_the_run_of_its_study():
    found = small(["fedavg", "scaffold"], grid={"wire.up": WIRES})
    study = Study.of("fedavg", data={"name": "heart_disease"}, study={"rounds": 3})
    alone = study.with_set({"wire.up": ["float16"]}).run(None, baselines=False, workers=1)

    assert [row.label for row in found.rows] == [
        f"{name} up={words}"
        for name in ("fedavg", "scaffold")
        for words in ("[]", "[float16]", "[clip:1.0, float16]")
    ]
    plain, half, _, *_ = found.results
    assert half.history[-1]["metrics"] == alone.metrics
    assert (half.wire, plain.wire) == ({"up": ["float16"]}, {})
    assert 2 * half.bytes["up"] == plain.bytes["up"] and half.bytes["down"] == plain.bytes["down"]


def test_up_down_and_settings_go_together_and_settings_alone_are_chosen():
    texts = ['wire.up=[],["float16"],[]', 'wire.down=[],["float16"]', "lr=0.01,0.1"]
    found = small(grid=read_grid(texts))

    assert [row.label.removeprefix("fedavg ") for row in found.rows] == [
        f"up={up} down={down}" for up in ("[]", "[float16]") for down in ("[]", "[float16]")
    ]
    assert all(each.chosen.keys() == {"lr"} and each.tried == 2 for each in found.results)
    assert list(found.grid) == ["lr"]


def test_how_sums_are_made_is_a_row_too():
    found = small(grid=read_grid([f"wire.sum=plain,{INT8.replace('int8', 'secure_sum')}"]))

    plain, secure = found.results
    assert secure.bytes["up"] > plain.bytes["up"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("wire.up=float16", r'grid wire.up = "float16": every value is a list of steps in quotes'),
        ("wire.up=[],[float16]", r"write 'wire.up=\[\],\[\"float16\"\]'"),
        ('wire.up=["floatt"]', "wire.up = \"floatt\": .* did you mean 'float16'"),
        ('wire.up=["clip:x"]', "clip.norm = \"x\": give a number"),
        ("wire.up=[1]", "give a text"),
        ("wire.upp=[]", r"unknown key of \[wire\] 'upp': did you mean 'up'"),
        (f'wire.down=["{INT8}"]', "wire.down: Int8 keeps a state"),
    ],
)  # fmt: skip
def test_a_wrong_wire_is_one_sentence_before_anything_runs(text, words, tmp_path):
    with pytest.raises(ArchipelError, match=words) as raised:
        small(grid=read_grid([text]), out=tmp_path / "runs")

    assert "\n" not in str(raised.value) and not (tmp_path / "runs").exists()


def test_bytes_are_in_the_table_and_drawn_where_wires_differ(tmp_path):
    found = small(grid={"wire.up": WIRES}, out=tmp_path, seeds=2)
    axes = found.plot_bytes().axes[0]
    ends = [line.get_xdata()[-1] for line in axes.lines if len(line.get_xdata()) > 1]

    assert "bytes up" in found.table("md") and "bytes down" in found.table("md")
    assert ends == pytest.approx([row.figures["bytes_up"].mean / 1e6 for row in found.rows])
    assert axes.get_xlabel().startswith("megabytes up") and axes.get_xscale() == "linear"
    assert all((found.folder / f"bytes.{suffix}").stat().st_size for suffix in ("png", "svg"))
    again = resume_comparison(found.folder)
    assert again.wires and again.results == found.results


def test_the_axis_is_logarithmic_where_the_range_asks_for_it_and_down_where_that_differs():
    many, down = small(grid={"wire.up": WIRES}), small(grid={"wire.down": WIRES[:2]})
    document = json.loads(json.dumps(many.to_json()))
    for entry in document["algorithms"][0]["runs"][0]["history"]:
        entry["bytes"]["up"] *= 100
    document["algorithms"][0]["runs"][0]["bytes"]["up"] *= 100

    assert Comparison.of_json(document, None).plot_bytes().axes[0].get_xscale() == "log"
    assert down.plot_bytes().axes[0].get_xlabel().startswith("megabytes down")


def test_without_wires_tables_and_pictures_are_as_before(tmp_path):
    found = small(["fedavg", "scaffold"], out=tmp_path)

    assert not found.wires and "bytes up" not in found.table("md")
    assert not (found.folder / "bytes.png").exists()
    assert not small(grid={"wire.up": [[], ["clip:9.0"]]}).wires  # the same bytes


# -- the smallest wire that loses little -----------------------------------------------------------

CRUDE = """
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True)
class Crude:
    scale: float = 0.0
    linear: ClassVar[bool] = True
    unbiased: ClassVar[bool] = False
    def init(self, form): return None
    def send(self, me, upload, own): return tuple(x[..., :2] for x in upload), own
    def receive(self, them, payload, form):
        return tuple(self.scale * y.new_ones(*y.shape[: y.dim() - one.dim()], *one.shape)
                     for y, one in zip(payload, form))
    def bound(self, before): return None
"""


@pytest.fixture
def crude(tmp_path):
    (tmp_path / "crude.py").write_text(CRUDE)
    return str(tmp_path / "crude.py")


def heart(algorithm="fedavg", rounds=4, metric="accuracy", **sections):
    about = {"rounds": rounds, "metric": metric}
    return Study.of(algorithm, data={"name": "heart_disease"}, study=about, **sections)


def tuned(study, candidates, limit=0.01, seeds=2, **options):
    return fewer_bytes(study, limit, seeds, workers=1, candidates=candidates, **options)


def test_the_cheapest_within_the_loss_is_chosen_and_larger_ones_are_not_tried(crude):
    found = tuned(heart(), [("float16",), (INT8,), (crude,)])
    reference, worst, best, larger = found.trials

    assert (reference.up, reference.verdict, reference.bytes) == ((), "reference", 112)
    assert (worst.up, worst.verdict, worst.bytes) == ((crude,), "given up", 24)
    assert "behind by" in worst.why and "after round 2 of 4" in worst.why
    assert found.chosen is best and best.up == (INT8,) and best.losses.mean <= 0.01
    assert (larger.verdict, larger.scores.values, larger.bytes) == ("not tried", (), 56)
    assert found.lines == f'[wire]\nup = ["{INT8}"]'


def test_losses_are_of_each_seed_against_the_same_study_without_steps():
    found = tuned(heart(rounds=3), [("float16",)], seeds=[3, 5, 6])
    study = heart(rounds=3).with_set({"study.seed": 5})
    data = study.federation().validation(0.2, 5)
    run = simulate(
        study.algorithm_object, data, study.build_model(data), workers=1, **study.options()
    )
    reference, half = found.trials

    assert reference.scores.values[1] == pytest.approx(run.metrics["accuracy"])
    pairs = zip(reference.scores.values, half.scores.values, strict=True)
    assert half.losses.values == pytest.approx([a - b for a, b in pairs])
    assert half.error == pytest.approx(half.losses.sd / 3**0.5)
    assert "± " in as_text(found.__rich__())


def test_test_points_have_no_say(monkeypatch):
    before = tuned(heart(), [("float16",)]).to_json()
    whole = Study.federation

    def spoilt(study):
        fed = whole(study)
        y = fed.y.clone()
        for k in range(fed.parties):
            test = slice(int(fed.test_from[k]), int(fed.offsets[k + 1]))
            y[test] = 1 - y[test]
        return replace(fed, y=y)

    monkeypatch.setattr(Study, "federation", spoilt)
    assert tuned(heart(), [("float16",)]).to_json() == before


def test_what_the_study_forbids_is_left_out_in_the_wire_s_own_words(crude):
    secure = heart(wire={"sum": INT8.replace("int8", "secure_sum")}, rounds=2)
    found = tuned(secure, [("float16",), ("clip:x",), (crude,)], seeds=1)
    half, unread = (each for each in found.trials if each.verdict == "left out")

    assert "Float16 has to be undone for every upload" in half.why
    assert "clip.norm" in unread.why and half.why in " ".join(found.__rich__().notes)


def test_what_sends_no_less_is_left_out():
    found = tuned(heart(rounds=2), [("clip:1.0",)], seeds=1)

    assert found.trials[1].verdict == "left out" and "no less" in found.trials[1].why
    assert found.chosen is None and found.lines == ""


def test_steps_that_are_there_for_another_reason_stay():
    found = tuned(heart(wire={"up": ["clip:0.5", "float16"]}), [("float16",)], seeds=1)
    reference, half = found.trials

    assert reference.up == ("clip:0.5",) and half.up == ("clip:0.5", "float16")
    assert (reference.bytes, half.bytes) == (112, 56)


def test_smaller_is_better_for_a_loss_and_peers_have_wires_too(crude):
    worse = tuned(heart(metric="loss"), [(crude,)], limit=0.001, seeds=1).trials[1]
    assert worse.verdict == "given up"
    peers = heart("dsgd", topology={"name": "ring"}, rounds=3)
    assert tuned(peers, [("float16",)], limit=0.1, seeds=1).chosen.up == ("float16",)


def test_a_loss_beyond_the_limit_is_not_chosen(crude):
    found = tuned(heart(), [(crude,)], limit=0.13, seeds=1)
    (_, trial) = found.trials

    assert trial.verdict == "too much" and trial.losses.mean > 0.13 and trial.error is None
    assert found.chosen is None and found.to_json()["chosen"] is None


def test_numbers_that_are_not_finite_end_it(crude):
    (_, blown) = tuned(heart(), [(f"{crude}:1e38",)], limit=10.0, seeds=1).trials
    assert blown.verdict == "left out" and "not finite" in blown.why
    school = Study.of("fedavg", data={"name": "school"}, study={"rounds": 3})
    with pytest.raises(RunFailed, match="finite"):
        tuned(school.with_set({"algorithm.lr": 1e20}), [("float16",)], seeds=1)
    with pytest.raises(ArchipelError, match="loss = -1: give a number from 0"):
        tuned(heart(), [("float16",)], limit=-1)


def test_who_asks_to_stop_gets_nothing_chosen():
    class Ask:
        def __call__(self, run):
            return run.done == 2

        def say(self, text):
            return None

    with pytest.raises(Stopped):
        tuned(heart(), [("float16",)], watch=Ask())


def test_every_candidate_is_a_wire_and_sends_less_of_a_model_with_matrices():
    sections = {"data": {"name": "heart_disease"}, "study": {"rounds": 2, "seed": 1}}
    study = Study.of("fedavg", model={"name": "mlp"}, **sections)
    found = fewer_bytes(study, 10.0, seeds=1, workers=1)

    assert len(found.trials) == 1 + len(bytes_module.CANDIDATES)
    assert [each.why for each in found.trials if each.verdict == "left out"] == []
    sizes = [each.bytes for each in found.trials[1:]]
    assert sizes == sorted(sizes) and found.chosen is found.trials[1]


# -- the command -----------------------------------------------------------------------------------

FILE = """# ours
[study]
name = "heart"
rounds = 3   # few

[data]
name = "heart_disease"
"""


@pytest.fixture
def study_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bytes_module, "CANDIDATES", (("float16",),))
    (tmp_path / "heart.toml").write_text(FILE)
    return tmp_path / "heart.toml"


def test_the_command_says_which_wire_and_writes_it(study_file):
    shown = CliRunner().invoke(app, ["tune-bytes", "heart.toml", "--seeds", "1"])
    assert shown.exit_code == 0, shown.output
    assert '[wire]\nup = ["float16"]\n' in shown.stdout and study_file.read_text() == FILE

    command = ["tune-bytes", "heart.toml", "--seeds", "1", "--rounds", "2", "--write", "--json"]
    written = CliRunner().invoke(app, command)
    document = json.loads(written.stdout)
    assert document["chosen"] == ["float16"] and document["written"] == "heart.toml"
    assert document["trials"][1]["losses"].keys() == {"mean", "sd", "values", "standard_error"}
    assert study_file.read_text() == FILE + '\n[wire]\nup = ["float16"]\n'
    assert Study.read(study_file).wire.up == ["float16"]


def test_where_no_wire_stays_within_the_loss_nothing_is_written(study_file, crude, monkeypatch):
    monkeypatch.setattr(bytes_module, "CANDIDATES", ((crude,),))
    done = CliRunner().invoke(app, ["tune-bytes", "heart.toml", "--seeds", "1", "--write"])

    assert done.exit_code == 1 and "No wire stays within a loss of 0.01" in done.stdout
    assert study_file.read_text() == FILE


def test_what_was_found_is_told_where_the_file_cannot_be_written(study_file, monkeypatch):
    def full(path, content):
        raise RunFailed(f"'{path}' cannot be written (no space left): make room.")

    monkeypatch.setattr("archipel.store.files.write", full)
    done = CliRunner().invoke(app, ["tune-bytes", "heart.toml", "--seeds", "1", "--write"])

    assert done.exit_code == 1 and "make room" in str(done.exception)
    assert 'up = ["float16"]' in done.stdout and study_file.read_text() == FILE


def test_what_cannot_be_written_is_said_before_anything_runs(study_file, monkeypatch):
    monkeypatch.setattr("archipel.comparison.fewer_bytes", None)
    study_file.write_text('wire.sum = "plain"\n' + FILE)
    for arguments, words in (
        (["heart.toml", "--write"], r"wire.up: cannot be set"),
        (["fedavg"], "is no study file"),
        (["nothere.toml"], "cannot be read"),
    ):
        done = CliRunner().invoke(app, ["tune-bytes", *arguments])
        assert done.exit_code != 0 and isinstance(done.exception, ArchipelError)
        assert words in str(done.exception)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "[wire]\nup = NEW\n"),
        ("[data]\nname = 'x'", "[data]\nname = 'x'\n\n[wire]\nup = NEW\n"),
        ("[wire]  # up = []\n\n[data]\n", "[wire]  # up = []\nup = NEW\n\n[data]\n"),
        ("[wire]\r\nsum = 'plain'\r\n", "[wire]\r\nup = NEW\r\nsum = 'plain'\r\n"),
        ("[wire]\n# up = []\nup = ['a]'] # b]\n", "[wire]\n# up = []\nup = NEW # b]\n"),
        ("[wire]\nup=[\n 'a', # ]\n 'b',\n]\nsum = 'x'", "[wire]\nup=NEW\nsum = 'x'"),
        ("wire = {sum = 'x', up = []}\n", "wire = {sum = 'x', up = NEW}\n"),
        ("wire.up = []\n", "wire.up = NEW\n"),
        (
            "[study]\npurpose = '''\n[wire]\nup = []\n'''\n",
            "[study]\npurpose = '''\n[wire]\nup = []\n'''\n\n[wire]\nup = NEW\n",
        ),
        ("[wire]\n# up = []\nup = ['n', 'm']\n", "[wire]\n# up = []\nup = ['n', 'm']\n"),
    ],
)
def test_one_field_is_set_and_the_rest_stays_byte_for_byte(before, after):
    assert with_field(before, "wire", "up", ["n", "m"]) == after.replace("NEW", '["n", "m"]')
