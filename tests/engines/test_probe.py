"""Algorithms that mix parties or draw without a key are refused before round 1, with the line."""

import ast
import importlib.util
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import archipel as ar
from archipel.algorithms import ALGORITHMS
from archipel.engines.local import engine as local
from archipel.engines.plan import Plan
from archipel.engines.probe import probe
from archipel.exchange.boxes import clock_of, is_peer
from problems import classification, network

ONE = Plan("one", 1, 1)

FRAME = """
from dataclasses import dataclass
import random
import numpy as np
import torch
import archipel as ar

{before}

@dataclass(frozen=True)
class Mine:
    lr: float = 0.1
    batch_size: int | None = 4

    def init(self, w):
        {init}

    def party(self, me, w, own):
        d = me.descend(w, self).w - w
        {party}

    def server(self, w, uploads):
        {server}
{after}
"""


def written(folder, party="return d, own", server="return w + uploads.mean()", **parts):
    """An algorithm in a file, and the number of the line that has '# here'."""
    parts = {"init": "return w, w * 0", "before": "", "after": "", **parts}
    text = FRAME.format(party=party.replace("\n", "\n        "), server=server, **parts)
    number = next((i for i, line in enumerate(text.splitlines(), 1) if "# here" in line), None)
    return loaded(folder / "mine.py", text).Mine(), number


def loaded(path, text):
    path.write_text(text)
    name = f"probed_{path.stem}_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def begin(algorithm, **options):
    """What a simulation says before its first round."""
    data, model = classification(4, 3, 3, 0), network(3, 3)
    with ar.LocalEngine(algorithm, data, model, plan=ONE, **options):
        pass


MIXING = {
    "norm": "u = d / d.norm()  # here\nreturn u, own",
    "in return": "return d / d.norm(), own  # here",
    "mean": "m = d.mean()  # here\nreturn d - m, own",
    "max over the stack": "top = d.max(dim=0)  # here\nreturn d - top.values, own",
    "a number": "size = float(d.norm())  # here\nreturn d / size, own",
    "clipping": "by = (1.0 / d.norm()).clamp(max=1)  # here\nreturn by * d, own",
    "large clipping": "by = (50.0 / d.norm()).clamp(max=1)  # here\nreturn by * d, own",
    "a branch": "if d.norm() > 3:  # here\n    d = d / 3\nreturn d, own",
    "the first": "e = d.reshape(-1, w.shape[-1])[0]  # here\nreturn d - e, own",
    "own state": "return d, d / d.norm()  # here",
    "own state, later": "o = own.view(-1, w.shape[-1]).mean(dim=0)  # here\nreturn d, o + d",
    "n": "share = me.n / me.n.sum()  # here\nreturn d * share, own",
    "softmax": "a = torch.softmax(d, 0)  # here\nreturn a, own",
    "sorted": "a = d.sort(dim=0).values  # here\nreturn a, own",
}


@pytest.mark.parametrize("case", MIXING)
@pytest.mark.parametrize("sweep", [None, {"lr": [0.1, 0.2, 0.3]}], ids=["run", "sweep"])
def test_a_reduction_over_parties_is_refused_with_its_line(tmp_path, case, sweep):
    algorithm, line = written(tmp_path, MIXING[case])
    with pytest.raises(ar.ArchipelError) as error:
        begin(algorithm, sweep=sweep)
    said = str(error.value)
    assert "Mine.party" in said and ("mixes parties" in said or "fails on a stack" in said)
    assert "mine.py, line" in said
    if sweep is None:  # of a sweep, at least the right method: its forms are many
        assert f"mine.py, line {line} (" in said


@pytest.mark.parametrize(
    "draw",
    [
        "torch.randn_like(w)",
        "torch.rand(())",
        "float(torch.rand(()) < 0.2)",
        "np.random.rand()",
        "random.random()",
        "np.random.default_rng().standard_normal()",
        "random.SystemRandom().random()",
        "float(np.random.rand() < 0.1)",
    ],
)
def test_numbers_that_no_key_fixes_are_refused_with_their_line(tmp_path, draw):
    algorithm, line = written(tmp_path, f"r = {draw}  # here\nreturn d + r, own")
    with pytest.raises(ar.ArchipelError, match="another result each time") as error:
        begin(algorithm)
    assert f"Mine.party gives another result each time: mine.py, line {line} (" in str(error.value)
    assert "me.normal" in str(error.value)


@pytest.mark.parametrize("where", ["init", "server", "advise", "predict", "personal"])
def test_so_they_are_in_every_other_method(tmp_path, where):
    draw = "torch.randn_like(w)  # here"
    parts = {
        "init": {"init": f"return w + {draw}, w * 0".replace("  # here, w * 0", ", w * 0  # here")},
        "server": {"server": f"return w + uploads.mean() + {draw}"},
        "personal": {"after": f"    def personal(self, me, w, own):\n        return w + {draw}"},
        "advise": {
            "after": "    def personal(self, me, w, own):\n        back = yield w\n"
            f"        return back\n\n    def advise(self, w, uploads):\n        return w + {draw}"
        },
        "predict": {
            "after": "    def personal(self, me, w, own):\n        return w\n\n"
            "    def predict(self, me, w, x, own):\n        out = me.outputs(w, x)\n"
            "        return out + torch.rand(())  # here"
        },
    }[where]
    algorithm, line = written(tmp_path, **parts)
    with pytest.raises(ar.ArchipelError) as error:
        begin(algorithm)
    assert f"Mine.{where} gives another result each time: mine.py, line {line} (" in str(
        error.value
    )


def test_own_models_and_later_messages_and_helpers(tmp_path):
    personal = "    def personal(self, me, w, own):\n        return w + me.n.mean()  # here"
    messages = "back = yield d\nback = back - me.n.max()  # here\nreturn back, own"
    server = "uploads = yield uploads.mean(); return w + uploads.mean()"
    helper = "def unit(d):\n    return d / d.norm()  # here"
    for parts in (
        {"after": personal},
        {"party": messages, "server": server},
        {"party": "return unit(d), own", "before": helper},
    ):
        algorithm, line = written(tmp_path, **parts)
        with pytest.raises(ar.ArchipelError, match=f"mixes parties: mine.py, line {line} "):
            begin(algorithm)


def test_code_that_runs_on_one_party_alone_is_told_so(tmp_path):
    algorithm, line = written(tmp_path, "d = d[:4].sum() * d if d.dim() == 1 else d @ d  # here\n"
                              "return d, own")  # fmt: skip
    with pytest.raises(
        ar.ArchipelError, match=f"fails on a stack of parties: mine.py, line {line}"
    ):
        begin(algorithm)


def test_states_that_are_written_into_are_told(tmp_path):
    algorithm, _ = written(tmp_path, "own += d\nreturn d, own")
    with pytest.raises(ar.ArchipelError, match=r"Mine.party writes into the states it is given"):
        begin(algorithm)


RIGHT = {
    "unit": "return d / d.norm(dim=-1, keepdim=True), own",
    "keyed noise": "return d + 0.1 * me.normal(like=d), own + d",
    "sorted": "return d.sort(dim=-1).values, own.cumsum(dim=-1)",
    "constant": "return d, torch.ones_like(w)",
    "no key needed": "torch.nn.Linear(2, 2); random.random(); return d, own",
    "loop": "x = w\nfor _ in range(3):\n    x = x - 0.1 * me.grad(x, me.batch(2)).sign()\n"
    "return x - w, own",
}


@pytest.mark.parametrize("case", RIGHT)
@pytest.mark.parametrize("sweep", [None, {"lr": [0.1, 0.2]}], ids=["run", "sweep"])
def test_right_ones_pass_and_nothing_is_changed_by_looking(tmp_path, case, sweep):
    algorithm, _ = written(tmp_path, RIGHT[case])
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    probe(algorithm, classification(4, 3, 3, 0), network(3, 3), sweep=sweep)
    after = torch.get_rng_state(), np.random.get_state()[1], random.getstate()
    assert torch.equal(before[0], after[0]) and before[2] == after[2]
    assert np.array_equal(before[1], after[1])


class Block(nn.Module):
    """A module of one's own that wants single precision."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x.float())))


MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 3)),
    "single precision": Block,
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n not in ("pefll", "pfedhn")])
def test_no_false_alarm(name, model):
    data = classification(3, 3, 3, 0, torch.float32)
    algorithm = ALGORITHMS[name]()
    probe(algorithm, data, ar.Model(MODELS[model]()))
    swept = clock_of(algorithm) == "rounds" and isinstance(getattr(algorithm, "lr", None), float)
    if swept and model != "batch norm":  # no sweeps
        probe(algorithm, data, ar.Model(MODELS[model]()), sweep={"lr": [0.01, 0.02]})


@pytest.mark.parametrize(
    "algorithm",
    [ar.PeFLL(size=4, hidden=5), ar.PFedHN(size=4, hidden=5), ar.Scaffold(option=1),
     ar.FedAvg(optimiser=ar.Adam(), lr=ar.Decay(0.1)), ar.DSGD(overlap=True)],
    ids=repr,
)  # fmt: skip
def test_no_false_alarm_from_variants_in_either_precision(algorithm):
    for dtype in (torch.float32, torch.float64):
        data = classification(3, 3, 3, 0, dtype)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).to(dtype)
        probe(algorithm, data, ar.Model(model))


def test_it_costs_little(tmp_path):
    """Also with a large model and many local steps; processor time, as others may be at work."""
    algorithm, _ = written(tmp_path, "return d / d.norm(dim=-1, keepdim=True), own")
    data = classification(3, 30, 3, 0, torch.float32)
    model = ar.Model(nn.Sequential(nn.Linear(30, 1000), nn.ReLU(), nn.Linear(1000, 3)))
    probe(replace(algorithm, batch_size=1), data, model)
    began = time.process_time()
    probe(algorithm, data, model)
    assert time.process_time() - began < 0.5  # about 0.05 on an idle machine


def test_a_large_model_is_probed_by_few_numbers_and_the_line_is_the_same(tmp_path):
    data = classification(3, 30, 3, 0, torch.float32)
    model = ar.Model(nn.Sequential(nn.Linear(30, 3000), nn.ReLU(), nn.Linear(3000, 3)))
    assert model.p > 50_000
    algorithm, line = written(tmp_path, MIXING["norm"])
    with pytest.raises(ar.ArchipelError, match=f"mixes parties: mine.py, line {line} "):
        probe(algorithm, data, model)
    probe(ar.FedRep(), data, model)  # looks at names
    probe(ar.KNNPer(), data, model)  # asks for outputs: the model itself


# -- mutations of the bundled algorithms -----------------------------------------------------------

REDUCTIONS = """
import torch as _torch

def _mixed(x):
    if isinstance(x, _torch.Tensor) and x.is_floating_point() and x.dim():
        return {0}
    if isinstance(x, tuple):
        parts = [_mixed(part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    return x
"""
KINDS = ["x / (1 + x.norm())", "x - x.mean()", "x - x.max()", "x - x.flatten()[-1]",
         "x * (x.abs().sum() > 1)"]  # fmt: skip


def places(tree):
    """Statements at the parties that make a value."""
    methods = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in ("party", "personal")
    ]
    return [
        node
        for method in methods
        for node in ast.walk(method)
        if isinstance(node, ast.Assign | ast.Return) and node.value is not None
    ]


def mutants(count, seed):
    draw = random.Random(seed)
    files = sorted({Path(sys.modules[make.__module__].__file__) for make in ALGORITHMS.values()})
    files = [path for path in files if path.stem not in ("pefll", "pfedhn")]  # slow, and alike
    for _ in range(count):
        path = draw.choice(files)
        tree = ast.parse(path.read_text())
        node = draw.choice(places(tree))
        node.value = ast.Call(ast.Name("_mixed", ast.Load()), [node.value], [])
        text = ast.unparse(ast.fix_missing_locations(tree))
        future = "from __future__ import annotations\n"
        yield (
            path,
            ast.unparse(node),
            text.replace(future, future + REDUCTIONS.format(draw.choice(KINDS)), 1),
        )


def depends_on_the_stack(algorithm):
    """Whether a run, own models included, is another with other blocks: the harm itself."""
    ends = []
    for block in (1, 5):
        data, model = classification(5, 3, 3, 0), network(3, 3)
        plan = Plan("one", block, 1)
        with ar.LocalEngine(algorithm, data, model, plan=plan) as engine:
            try:
                for t in range(2):
                    engine.round(t, range(5))
            except ar.ArchipelError:  # numbers that are no more: nobody takes these for a result
                return False
            state = list(engine.state().values())
            own = engine.evaluate(own=True, split="train").parties if engine.has_own else {}
            ends.append([*state, *own.values()])
    return not all(torch.allclose(a.double(), b.double()) for a, b in zip(*ends, strict=True))


def check_mutants(folder, count, seed, monkeypatch):
    """So many mutants, each caught unless it is harmless; how many were caught."""
    monkeypatch.setattr(local, "probe_once", lambda *_: None)
    caught = 0
    for k, (path, statement, text) in enumerate(mutants(count, seed)):
        module = loaded(folder / f"{path.stem}_{k}.py", text)
        kinds = [kind for kind in vars(module).values() if hasattr(kind, "party")]
        for kind in (each for each in kinds if each.__module__ == module.__name__):
            try:
                probe(kind(), classification(5, 3, 3, 0), network(3, 3))
            except ar.ArchipelError as error:
                caught += 1
                assert "mixes parties" in str(error) or "fails on a stack" in str(error)
                continue
            assert is_peer(kind) or not depends_on_the_stack(kind()), (path.name, statement)
    return caught


def test_mutations_of_bundled_algorithms_are_caught(tmp_path, monkeypatch):
    assert check_mutants(tmp_path, 16, 0, monkeypatch) > 6


@pytest.mark.slow
def test_many_mutations_of_bundled_algorithms_are_caught(tmp_path, monkeypatch):
    assert check_mutants(tmp_path, 300, 1, monkeypatch) > 200
