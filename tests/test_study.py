"""Study files: what they say, and one sentence with the field for whatever is wrong with one."""

import json
import math
import re
import tomllib
from hashlib import file_digest

import pytest
from hypothesis import given
from hypothesis import strategies as st

import archipel as ar
from archipel.algorithms import ALGORITHMS, FedAvg
from archipel.data import load, tables
from archipel.demo import STUDY as DEMO
from archipel.errors import ArchipelError
from archipel.study.checks import schema_of
from archipel.study.file import Study, changed
from archipel.study.sections import SECTIONS
from archipel.study.template import template
from archipel.training.schedules import Cosine
from mutations import VALUES, mutants, put, settings

MINE = '''
from dataclasses import dataclass
from archipel.core import Party, Uploads, Vector

@dataclass(frozen=True)
class Mine:
    """Half a step of FedSGD."""
    lr: float = 0.1
    tries: tuple[int, ...] = (1, 2)

    def init(self, w: Vector):
        return w, None

    def party(self, me: Party, w: Vector, own: None):
        return -self.lr / 2 * me.grad(w), None

    def server(self, w: Vector, uploads: Uploads):
        return w + uploads.mean()
'''
EVERYTHING = """
[study]
name = "all of it"
purpose = "every key of every section"
rounds = 3
seed = 7
evaluate_every = 2
metric = "accuracy"
target = 0.8

[data]
name = "synthetic"
alpha = 0.5
most = 60
parties = 8
new = 2

[model]
name = "mlp"
widths = [5]
loss = "cross_entropy"

[algorithm]
name = "fedopt"
lr = {name = "cosine", start = 0.1, rounds = 3, warmup = 1}
local_steps = 2
batch_size = 0.5
optimiser = {name = "adam", beta1 = 0.8}
server_optimiser = "yogi"

[round]
sample = 0.9
over_select = 0.2
quorum = 0.5
deadline = 60.0
on_missing = "wait"

[wire]
up = ["clip:1.0"]
down = ["float16"]
sum = "plain"

[privacy]
server_sees = "sums"

[topology]

[simulate]
dropouts = 0.1
stragglers = 0.1
availability = "day:4"
away = {"3" = "2-3"}
speed = 100.0
speed_spread = 0.5
"""
TABLE = """
[study]
rounds = 2

[data]
file = "patients.csv"
by = "hospital"
target = "died"
drop = ["id"]
missing = "mean"
test = 0.25

[model]
name = "logistic"

[algorithm]
lr = 0.1
"""
DESCRIBED = """
[study]
rounds = 2

[data]
file = "patients.csv"
by = "hospital"
target = "died"
missing = "mean"
test = 0.25

[data.schema]
age = "number"
sex = ["m", "f"]
died = [0, 1]

[algorithm]
lr = 0.1
"""
OWN = """
[data]
name = "heart_disease"

[algorithm]
name = "mine.py:Mine"
lr = 0.05
tries = [3]
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder with what the studies name."""
    folder = tmp_path_factory.mktemp("studies")
    (folder / "mine.py").write_text(MINE)
    rows = ["id,hospital,age,sex,died"]
    rows += [
        f"{i},{'abc'[i % 3]},{40 + i % 37},{'mf'[i % 2]},{int(i % 37 > 15)}" for i in range(60)
    ]
    rows.append("60,a,,f,1")
    (folder / "patients.csv").write_text("\n".join(rows))
    return folder


def filled(algorithm):
    """The template of an algorithm with its comments taken away."""
    text = template({"study": {"name": "t"}, "data": {"name": "heart_disease"},
                     "algorithm": {"name": algorithm}})  # fmt: skip
    return re.sub(r"^# (\w+ = (?!\.\.\.))", r"\1", text, flags=re.MULTILINE)


BASES = [DEMO, EVERYTHING, TABLE, DESCRIBED, OWN, *(filled(name) for name in ALGORITHMS)]


def outcome(text, base):
    """The study, or the sentence that says what is wrong with it."""
    try:
        study = Study.parse(text, base)
    except ArchipelError as error:
        return None, str(error)
    return study, None


# -- a thousand mutations --------------------------------------------------------------------------


def check_sentence(said, text, about, how):
    """One line, not endless, with one of the words; without words, any key or line of the file."""
    assert "\n" not in said and said.isprintable() and len(said) <= 600, (how, said)
    assert said.endswith("."), (how, said)
    known = {key for kind in SECTIONS.values() for key in kind.model_fields} | {*SECTIONS}
    words = about or known | {key for _, _, key in settings(text)}
    assert any(word in said for word in words) or re.match(r"line \d+", said), (how, said)


def check_study(study, base):
    """All that a study says can be said, written down and read again."""
    again = Study.parse(study.toml(), base)

    assert again.hash == study.hash
    assert again.algorithm_object == study.algorithm_object
    assert json.loads(json.dumps(study.resolved(), allow_nan=False)) == study.resolved()
    assert Study.parse(study.given(), base).hash == study.hash
    assert tomllib.loads(study.files()["study.toml"].decode())


@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_mutations_give_a_study_or_a_sentence(base, seed):
    studies = 0
    for mutant in mutants(BASES, 300, seed):
        study, said = outcome(mutant.text, base)
        if study is None:
            check_sentence(said, mutant.text, mutant.about, mutant.how)
        else:
            check_study(study, base)
            studies += 1

    assert 30 < studies < 270  # neither side goes untried


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_every_key_with_every_kind_of_value(base, share):
    for i, (at, section, key) in enumerate(settings(EVERYTHING)):
        for value in VALUES[i % share :: share]:
            study, said = outcome(put(EVERYTHING, at, value), base)
            if study is None:
                about = (section, key) if "'''" not in value else ()
                check_sentence(said, EVERYTHING, about, f"{section}.{key} = {value}")
            else:
                assert Study.parse(study.toml(), base).hash == study.hash


def test_mutations_that_are_studies_run_or_say_why(base):
    ran = refused = 0
    for mutant in mutants(BASES, 4000, seed=5):
        study, _ = outcome(mutant.text, base)
        if study is None or not is_small(study):
            continue
        if ran + refused == 60:
            break
        try:
            run = study.with_set({"study.rounds": 1}).run(None, workers=1, baselines=False)
        except ArchipelError as error:
            assert "\n" not in str(error), (mutant.how, error)
            refused += 1
        else:
            assert run.done == 1, mutant.how
            json.dumps(run.to_json(), default=str)
            ran += 1

    assert ran >= 30 and ran + refused == 60


def is_small(study):
    """Whether a round takes a moment: a study may ask for a million steps, and would get them."""
    work = study.algorithm_object
    steps = [getattr(work, name, 1) or 1 for name in ("local_steps", "local_epochs")]
    numbers = [v for v in study.data.given.values() if isinstance(v, int | float)]
    widths = study.model.given.get("widths", [])
    return (
        max(steps) <= 100
        and (study.data.parties or 0) <= 1000
        and all(number <= 1000 for number in [*numbers, *widths])
        and (study.data.name or "heart_disease") in ("heart_disease", "synthetic")
    )


@given(st.text())
def test_any_text_is_a_study_or_a_sentence(text):
    study, said = outcome(text, None)

    assert study is not None or "\n" not in said


@given(st.binary(max_size=40))
def test_any_file_is_a_study_or_a_sentence(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "any.toml"
    path.write_bytes(content)

    with pytest.raises(ArchipelError, match=r"any\.toml"):
        Study.read(path)


# -- sentences -------------------------------------------------------------------------------------

SENTENCES = {
    "[algoritm]\nlr = 1": "unknown section '[algoritm]': did you mean '[algorithm]'?",
    "data = 1": "data = 1: write a section, [data].",
    "[data]\nnam = 'mnist'": "unknown key of [data] 'nam': did you mean 'name'?",
    "[data]\nname = 'mnits'": "unknown dataset 'mnits': did you mean 'mnist'?",
    "[data]\nname = 'mnist'\nlr 0.1": 'line 3, "lr 0.1": not TOML, expected',
    "[data]\nname = 'mnist'\nname = 'mnist'": "not TOML, cannot overwrite a value.",
    "[study]\nseed = -1": "study.seed = -1: give a whole number from 0.",
    "[study]\nrounds = 2.0": "study.rounds = 2.0: give a whole number.",
    "[study]\nrounds = true": "study.rounds = true: give a whole number.",
    "[study]\nname = ''": 'study.name = "": give a text with a length from 1.',
    "[simulate]\naway = {a = 1.5}": "simulate.away.a = 1.5: give a text.",
    "[simulate]\ndropouts = '0.1'": 'simulate.dropouts = "0.1": give a number.',
    "[round]\nsample = 'all'": 'round.sample = "all": give a number.',
    "[round]\non_missing = 'stop'": 'give "continue", "wait" or "abort".',
    "[wire]\nsteps = ['clip']": "unknown key of [wire] 'steps'",
    "[wire]\nup = 'clip:1'": 'wire.up = "clip:1": give a list.',
    "[data]": "data.name is missing",
    "[data]\nfile = 'no.csv'\nby = 'a'\ntarget = 'b'": 'data.file = "no.csv": no such file in',
    "[data]\nname = 'moons'\ntest = 0.5": "data.test: 'moons' has its own test points",
    "[data]\nname = 'school'\nparties = 3": 'say data.partition = "iid" as well',
    "[data]\nname = 'school'\nby = 'x'": "data.by: 'school' has its own; leave it out.",
    "[data]\nschema = 1": "data.schema = 1: give a table.",
    "[data]\nschema = {}": "data.schema is empty",
    "[data.schema]\na = 'number'": "data.target is missing: name the column",
    "[data]\ntarget = 'b'\nschema = {a = 1, b = [0, 1]}": "data.schema.a = 1: give",
    "[data]\ntarget = 'b'\nschema = {a = 'number', b = [0, 1]}": "name data.folder with a",
    "[data]\ntarget = 'b'\ndrop = ['c']\nschema = {a = 'number', b = [0, 1]}": 'data.drop = ["c"]:',
    "[data]\ntarget = 'b'\nname = 'mnist'\nschema = {a = 'number', b = [0, 1]}": "leave one of",
    "[data]\ntarget = 'b'\nby = 'a'\nschema = {a = 'number', b = [0, 1]}": "out of data.schema",
}
WITH_DATA = {
    "[algorithm]\nlr = '0.1'": 'algorithm.lr = "0.1": give a number or a table with name',
    "[algorithm]\nlr = nan": "algorithm.lr = NaN: give a number",
    "[algorithm]\nlr = -1": "lr = -1.0: give a learning rate from 0.",
    "[algorithm]\nlr = 1e300": "algorithm.lr = 1e+300: give a number below 3e38.",
    "[algorithm]\nlocal_steps = 99999999999999999999": "give a number of at most 64 bits.",
    "[algorithm]\nlearning_rate = 1": "unknown key of [algorithm] 'learning_rate'",
    "[algorithm]\noptimiser = [1]": 'algorithm.optimiser = [1]: give a table with name = "sgd"',
    "[algorithm]\noptimiser = {name = 'adam', beta = 1}": "unknown key of algorithm.optimiser",
    "[algorithm]\nlr = {name = 'decay', start = 1, every = 0}": "is no number from 0 in round 1",
    "[algorithm]\nlr = {name = 'inverse', start = 1, half = 0}": "is no number from 0 in round 1",
    "[algorithm]\nname = 'a.py'": "algorithm '",
    "[model]\nname = 'mlp'\nwidths = 'wide'": 'model.widths = "wide": give a list',
    "[model]\nname = 'logistic'\nwidths = [3]": "unknown key of [model] 'widths'",
    "[topology]\nname = 'rng'": "unknown topology.name 'rng': did you mean 'ring'?",
    "[study]\nmetric = 'acuracy'": "did you mean 'accuracy'?",
    "[model]\nloss = 'mes'": "unknown model.loss 'mes'",
}


@pytest.mark.parametrize("text", [*SENTENCES, *WITH_DATA])
def test_a_sentence_says_field_value_and_remedy(text, tmp_path):
    wanted = SENTENCES.get(text) or WITH_DATA[text]
    if text in WITH_DATA:
        text += "\n[data]\nname = 'heart_disease'"
    _, said = outcome(text, tmp_path)

    assert wanted in said


def test_a_file_is_named_in_its_errors(tmp_path):
    (tmp_path / "a.toml").write_text("[data]\nnam = 1")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")

    with pytest.raises(ArchipelError, match=r"^a\.toml: unknown key of \[data\] 'nam'"):
        Study.read(tmp_path / "a.toml")
    with pytest.raises(ArchipelError, match=r"b\.toml': is not text in UTF-8"):
        Study.read(tmp_path / "b.toml")
    with pytest.raises(ArchipelError, match="cannot be read"):
        Study.read(tmp_path)
    with pytest.raises(ArchipelError, match="'archipel new' writes one"):
        Study.read(tmp_path / "c.toml")


# -- what it says ----------------------------------------------------------------------------------


def test_everything_reaches_the_run():
    study = Study.parse(EVERYTHING)
    options = study.options()
    data = study.federation()

    assert options["seed"] == 7 and options["target"] == 0.8 and options["quorum"] == 0.5
    assert options["away"] == {"3": "2-3"} and options["server_sees"] == "sums"
    assert data.parties == 8 and data.training == 6
    assert study.algorithm_object.optimiser.beta1 == 0.8
    assert study.build_model(data).module[-1].out_features == 10


@pytest.fixture(name="tables")
def two_tables(tmp_path):
    rows = [
        ("ab"[k % 2], 0.3 * (k % 7), 0.5 * (k % 11), ("no", "yes")[k % 3 == 0]) for k in range(60)
    ]
    lines = ["who,x,number,sort", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.parametrize(("target", "start"), [("number", 0.1), ("sort", 0.3)])
def test_the_rate_for_a_table_falls_unless_it_is_given(tables, target, start):
    data = {"file": "mine.csv", "by": "who", "target": target}
    study = Study.of(base=tables, data=data, study={"rounds": 20})
    again = Study.parse(study.toml(), tables)

    assert study.algorithm_object == FedAvg(lr=Cosine(start, rounds=20))
    assert study.resolved()["algorithm"]["lr"]["start"] == start
    assert again.algorithm.given["lr"]["rounds"] == 20  # said, so a run needs no look at the table
    assert again.hash == study.hash
    assert study.with_set({"algorithm.lr": 0.1}).algorithm_object == FedAvg(lr=0.1)


@pytest.mark.parametrize(
    "changes",
    [
        {"model.name": "mlp"},  # not linear
        {"data.standardise": False},  # on no scale
        {"data.target": "nobody"},  # no such column, which is said when data are loaded
        {"algorithm.name": "finetuned"},  # goes on training after the last round
        {"algorithm.name": "fedsgd"},  # has no epochs
    ],
)
def test_other_studies_have_the_rate_of_their_algorithm(tables, changes):
    data = {"file": "mine.csv", "by": "who", "target": "sort"}
    study = Study.of(base=tables, data=data).with_set(changes)

    assert study.algorithm_object.lr == 0.1


def test_between_sites_the_schema_says_which_rate_a_table_has():
    schema = {"x": "number", "sick": ["no", "yes"]}
    study = Study.parse({"data": {"schema": schema, "target": "sick"}}, elsewhere=True)

    assert study.algorithm_object == FedAvg(lr=Cosine(0.3, rounds=100))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_template_says_the_defaults(algorithm):
    full = Study.parse(filled(algorithm))

    assert full.algorithm_object == ALGORITHMS[algorithm]()
    assert full.hash == Study.parse(full.given()).hash


def test_defaults_written_out_do_not_change_the_hash():
    short = Study.of("scaffold", data={"name": "heart_disease"})
    long = short.with_set({"algorithm.lr": 0.1, "round.sample": 1.0, "study.seed": 0})

    assert short.hash == long.hash
    assert short.hash != short.with_set({"algorithm.lr": 0.2}).hash


def test_the_hash_knows_the_files(base, tmp_path):
    for name in ("mine.py", "patients.csv"):
        (tmp_path / name).write_bytes((base / name).read_bytes())
    study, table = Study.parse(OWN, tmp_path), Study.parse(TABLE, tmp_path)
    before = study.hash, table.hash

    assert before == (Study.parse(OWN, base).hash, Study.parse(TABLE, base).hash)
    (tmp_path / "mine.py").write_text(MINE + "\n# changed")
    (tmp_path / "patients.csv").write_text((base / "patients.csv").read_text() + "\n61,a,50,f,1")
    assert study.hash != before[0] and table.hash != before[1]


def test_the_hash_knows_a_folder_of_tables(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("x,y\n1,0\n2,1\n3,0\n4,1\n7,0\n6,1")
    study = Study.parse('[data]\nfolder = "."\ntarget = "y"\ntest = 0.3', tmp_path)
    before = study.hash

    assert study.federation().parties == 2
    (tmp_path / "b.csv").write_text("x,y\n1,0\n2,1\n3,0\n4,1\n7,0\n6,0")
    assert study.hash != before


def test_files_of_one_name_are_both_kept(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(MINE)
    net = "import torch\ndef net(shape, outputs):\n    return torch.nn.Linear(*shape, outputs)\n"
    (tmp_path / "b" / "mine.py").write_text(net)
    study = Study.parse(
        "[data]\nname = 'heart_disease'\n[model]\nname = 'b/mine.py'\n"
        "[algorithm]\nname = 'a/mine.py'",
        tmp_path,
    )

    kept = study.files()
    assert {*kept} == {"study.toml", "code/a/mine.py", "code/b/mine.py"}
    assert kept["code/a/mine.py"].decode() == MINE and kept["code/b/mine.py"].decode() == net
    assert len(study.resolved()["sources"]) == 2


def test_defaults_that_no_file_holds_are_left_out(tmp_path):
    odd = "    clip: float = float('inf')\n    squash: object = abs\n    made: list = None\n"
    (tmp_path / "odd.py").write_text(MINE.replace("    lr: float", f"{odd}    lr: float"))
    study = Study.parse("[data]\nname='heart_disease'\n[algorithm]\nname='odd.py'", tmp_path)

    check_study(study, tmp_path)
    assert "squash" not in study.resolved()["algorithm"]
    assert study.algorithm_object.clip == math.inf


def test_a_table_by_partition(base):
    study = Study.parse(TABLE.replace('by = "hospital"', 'partition = "iid"\nparties = 5'), base)

    assert study.federation().parties == 5
    assert study.with_set({"data.drop": ["id", "hospital"]}).federation().shape == (2,)


def test_a_schema_says_what_is_learnt_from(base):
    study = Study.parse(DESCRIBED, base)
    data, dealt = study.federation(), DESCRIBED.replace('by = "h', 'partition = "iid" # "h')

    assert (data.parties, data.shape, data.classes) == (3, (2,), 2)
    assert data.columns == ["age", "sex=f"]
    assert study.run(None, workers=1, baselines=False).done == 2
    assert Study.parse(dealt, base).federation().parties == 10
    with pytest.raises(ArchipelError, match=r"\[data\] .*patients\.csv': no column 'weight'"):
        study.with_set({"data.schema.weight": "number"}).federation()


def test_the_hash_knows_the_order_of_a_schema(base):
    turned = DESCRIBED.replace('age = "number"\n', "").replace(
        "died = [0, 1]", 'age = "number"\ndied = [0, 1]'
    )

    assert Study.parse(turned, base).hash != Study.parse(DESCRIBED, base).hash


def test_a_study_from_elsewhere_needs_no_more_than_a_schema():
    text = "[data]\ntarget = 'ill'\n[data.schema]\nage = 'number'\nill = [0, 1]"
    study = Study.parse(text, elsewhere=True)

    assert schema_of(study.data).columns == ["age"]
    assert Study.parse(study.toml(), elsewhere=True).hash == study.hash
    with pytest.raises(ArchipelError, match="give two values"):
        Study.parse(text.replace("[0, 1]", "[0]"), elsewhere=True)


def test_set_reaches_into_tables():
    tables = {"algorithm": {"optimiser": {"name": "adam"}}}
    done = changed(tables, {"algorithm.optimiser.beta1": 0.5, 'simulate.away."St. A"': "1-2"})

    assert done["algorithm"]["optimiser"] == {"name": "adam", "beta1": 0.5}
    assert done["simulate"] == {"away": {"St. A": "1-2"}}
    assert tables == {"algorithm": {"optimiser": {"name": "adam"}}}
    for path, wanted in {
        "lr": "'lr': write section.field=value",
        "algorithm.": "write section.field=value",
        "algoritm.lr": "did you mean 'algorithm'?",
        "algorithm.optimiser.name.x": "name is a value, not a table",
    }.items():
        with pytest.raises(ArchipelError, match=re.escape(wanted)):
            changed(tables, {path: 1})


def test_the_schema_knows_every_key_and_every_algorithm():
    schema = Study.json_schema()

    json.dumps(schema, allow_nan=False)
    assert {*schema["properties"]} == {*SECTIONS}
    assert len(schema["$defs"]["Method"]["allOf"]) >= len(ALGORITHMS)


def test_a_metric_of_another_task_is_refused():
    study = Study.of(data={"name": "heart_disease"}, study={"rounds": 1, "metric": "rmse"})

    with pytest.raises(ArchipelError, match="metric of classification with 2 classes 'rmse'"):
        study.run(None, baselines=False, workers=1)


def test_a_study_equals_the_call_in_python():
    from archipel import FedAvg, simulate

    study = Study.of(
        data={"name": "heart_disease"},
        algorithm={"lr": 0.05},
        study={"rounds": 2, "seed": 3},
        round={"sample": 2},
    )
    run = study.run(None, baselines=False, workers=1)
    same = simulate(
        FedAvg(lr=0.05), load("heart_disease", seed=3), "logistic",
        rounds=2, seed=3, sample=2, workers=1,
    )  # fmt: skip

    assert run.vector.equal(same.vector)
    assert math.isclose(run.metrics["accuracy"], same.metrics["accuracy"])


def test_a_study_that_is_written_keeps_the_order_of_its_columns():
    """Features have the order of the schema, also where some columns have units and some not."""
    schema = {
        "sex": ["f", "m"],
        "age": {"kind": "number", "unit": "years"},
        "weight": "number",
        "ill": {"values": [0, 1], "missing": 0.1},
    }
    data = {"schema": schema, "target": "ill", "missing": "drop"}
    study = Study.parse({"data": data}, elsewhere=True)

    again = Study.parse(study.toml(), elsewhere=True)

    assert list(again.data.schema) == list(schema)
    assert schema_of(again.data).hash == schema_of(study.data).hash


def test_a_table_is_hashed_once_until_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "all.csv"
    rows = [f"{'ab'[i % 2]},{i * i},{i % 3 % 2}" for i in range(9)]
    path.write_text("\n".join(["site,x,y", *rows]))
    study = Study.parse('[data]\nfile = "all.csv"\nby = "site"\ntarget = "y"', tmp_path)
    read = []

    def digest(opened, name):
        read.append(opened.name)
        return file_digest(opened, name)

    monkeypatch.setattr("archipel.study.file.file_digest", digest)
    before = [study.hash, study.hash]
    path.write_text(path.read_text().replace("64", "65"))

    assert read == [str(path)]
    assert before[0] == before[1] != study.hash


def test_a_table_is_read_once_by_a_run_and_once_by_a_report(tmp_path, monkeypatch):
    """REVIEW 2: it was read whole four times each."""
    rows = [f"{'ab'[i % 2]},{i * i % 37},{i % 3 % 2}" for i in range(60)]
    (tmp_path / "all.csv").write_text("\n".join(["site,x,y", *rows]))
    content = {"study": {"rounds": 1}, "data": {"file": "all.csv", "by": "site", "target": "y"}}
    read, content_of = [], tables._content
    monkeypatch.setattr(tables, "_content", lambda file: read.append(file) or content_of(file))

    run = Study.parse(content, tmp_path).run(tmp_path / "runs", baselines=False, workers=1)
    by_run = len(read)
    ar.open_run(run.folder).report(tmp_path / "report.html")

    assert (by_run, len(read)) == (1, 2)


def test_a_graph_is_learned_by_algorithms_that_learn_one(tmp_path):
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Own:\n"
        "    learns_graph = True\n"
        "    lr: float = 0.1\n\n"
        "    def init(self, x):\n"
        "        return x\n\n"
        "    def party(self, me, x):\n"
        "        return me.mix(x) - self.lr * me.grad(x)\n"
    )
    graph = {"name": "ring", "learned": True}
    before = Study.of("dsgd", data={"name": "moons"}, topology={"name": "ring"})

    learned = Study.of("own.py:Own", base=tmp_path, data={"name": "moons"}, topology=graph)

    assert learned.options()["topology"].over(["0", "1", "2"]).learned
    assert "learned" not in before.resolved()["topology"]  # its hash stays
    with pytest.raises(ArchipelError, match=r"topology\.learned = true: DSGD takes the graph as"):
        Study.of("dsgd", data={"name": "moons"}, topology=graph)
