"""Four things that stand between parties and a server, each one short file, work as they should."""

import ast
import io
import tokenize

import numpy as np
import pytest
import torch

import archipel as ar
from archipel.conformance import _problem
from archipel.engines.local.engine import LocalEngine
from archipel.engines.plan import Plan
from archipel.exchange.sender import Sender
from archipel.wire import Float16
from wire.examples import HERE, ClipAndNoise, Int8, Krum, SecureSum

ONE, STACKED, TWO = Plan("one", 1, 1), Plan("stacked", 3, 1), Plan("stacked", 2, 2)
WIRES = {
    "clip and noise": ar.Wire(up=(ClipAndNoise(1.0, 0.1),)),
    "int8": ar.Wire(up=(Int8(),)),
    "krum": ar.Wire(rule=Krum(1, 3)),
    "secure sum": ar.Wire(sum=SecureSum()),
    "clip, noise and secure sum": ar.Wire(up=(ClipAndNoise(1.0, 0.1),), sum=SecureSum()),
    "int8 up and down, krum": ar.Wire((Int8(),), (Float16(),), Krum(1, 3)),
}
ALGORITHMS = [ar.FedAvg(lr=0.1), ar.Scaffold(lr=0.1)]


def learn(algorithm, wire=None, plan=ONE, rounds=3, parties=range(5), **asked):
    """The state after some rounds, and what became of the last."""
    data, model = _problem()
    with LocalEngine(algorithm, data, model, plan=plan, wire=wire) as engine:
        for t in range(rounds):
            outcome = engine.round(t, parties, **asked)
        return engine.state(), outcome, engine.anatomy


def assert_same(found, expected, tolerance=1e-9):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=tolerance, atol=tolerance, msg=lambda m, at=name: f"{at}: {m}"
        )


def code_lines(text):
    """How many lines of code: not blank, no comment, no docstring, no import."""
    left_out = set()
    for node in ast.walk(ast.parse(text)):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if docstring or isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, node.end_lineno + 1))
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    used = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in layout | {tokenize.ENDMARKER}
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(used - left_out)


@pytest.mark.parametrize("path", sorted(HERE.glob("*.py")), ids=lambda path: path.name)
def test_each_is_short(path):
    assert code_lines(path.read_text()) <= 60


def test_lines_are_counted_as_a_reader_would():
    text = '"""Doc."""\n\nimport a\nfrom b import (\n    c,\n)\n\n# said\nx = [\n    1,\n]\n'
    assert code_lines(text) == 3


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_stacked_looped_and_in_two_workers(algorithm, wire):
    state, outcome, _ = learn(algorithm, wire)

    for plan in (STACKED, TWO):
        found, other, _ = learn(algorithm, wire, plan)
        assert_same(found, state)
        assert (other.up, other.down, other.gradients) == (
            outcome.up, outcome.down, outcome.gradients,
        )  # fmt: skip


def test_clipping_without_noise_bounds_the_step():
    before = _problem()[1].w
    after = learn(ar.FedAvg(lr=0.1), ar.Wire(up=(ClipAndNoise(1e-3, 0.0),)), rounds=1)[0]

    assert 0 < float((after["shared.0"] - before).norm()) <= 1e-3 * (1 + 1e-9)


# -- int8 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: type(each).__name__)
def test_int8_is_near_the_plain_run_and_sends_an_eighth(algorithm):
    plain, before, _ = learn(algorithm)
    coded, after, anatomy = learn(algorithm, WIRES["int8"])

    torch.testing.assert_close(coded["shared.0"], plain["shared.0"], rtol=0, atol=1e-3)
    assert after.up < before.up / 5 and after.down == before.down
    assert after.up == 5 * anatomy.bytes_up and anatomy.sums_only


def test_what_int8_leaves_out_is_sent_the_next_time():
    """One number among large ones is lost in a message, and not in many."""
    upload = torch.tensor([1000.0, 0.5], dtype=torch.float64)
    me, own, total = Sender(0, 0, 0, np.array([0])), (torch.zeros_like(upload),), 0.0
    for _ in range(100):
        payload, own = Int8().send(me, (upload,), own)
        total += float(Int8().receive(me, payload, (upload,))[0][1])

    assert total == pytest.approx(50.0, abs=5.0)


# -- krum ------------------------------------------------------------------------------------------


class Liar(ar.FedAvg):
    """Party 2 sends a thousand times the opposite."""

    def party(self, me, w, own):
        upload, own = super().party(me, w, own)
        return upload * torch.where(me.number == 2, -1000.0, 1.0), own


@pytest.mark.parametrize("plan", [ONE, STACKED, TWO])
def test_krum_withstands_a_liar(plan):
    honest = learn(ar.FedAvg(lr=0.1), plan=plan)[0]["shared.0"]
    fooled = learn(Liar(lr=0.1), plan=plan)[0]["shared.0"]
    guarded, _, anatomy = learn(Liar(lr=0.1), WIRES["krum"], plan)

    assert float((fooled - honest).norm()) > 10
    assert float((guarded["shared.0"] - honest).norm()) < 0.5
    assert not anatomy.sums_only


def test_krum_needs_enough_parties():
    with pytest.raises(ar.ArchipelError, match=r"Krum with f = 2 needs 7 uploads and has 5"):
        learn(ar.FedAvg(lr=0.1), ar.Wire(rule=Krum(2, 1)))


# -- the secure sum --------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("message", [0, 1, 2, 3, 4])
def test_the_secure_sum_is_the_mean_of_those_who_sent_it(algorithm, message):
    """Party 2 answers so many messages: once its masked upload is there, it counts."""
    answers = np.array([9, 9, message, 9, 9])
    there = range(5) if message >= 3 else [0, 1, 3, 4]
    plain = learn(algorithm, rounds=1, parties=there)[0]["shared.0"]

    for plan in (ONE, STACKED, TWO):
        found, outcome, anatomy = learn(algorithm, WIRES["secure sum"], plan, 1, answers=answers)
        torch.testing.assert_close(found["shared.0"], plain, rtol=0, atol=1e-9)
        assert anatomy.sums_only
        assert outcome.arrived.tolist() == ([0, 1, 2, 3, 4] if message == 4 else [0, 1, 3, 4])


@pytest.mark.parametrize("message", [0, 1, 2, 3])
def test_below_its_threshold_a_round_changes_nothing(message):
    before = learn(ar.FedAvg(lr=0.1), WIRES["secure sum"], rounds=1)[0]
    data, model = _problem()
    with LocalEngine(ar.FedAvg(lr=0.1), data, model, plan=ONE, wire=WIRES["secure sum"]) as engine:
        engine.round(0, range(5))
        answers = np.array([message, message, message, 9, 9])
        outcome = engine.round(1, range(5), answers=answers, needed=3)

        assert len(outcome.arrived) == 0
        assert_same(engine.state(), before, 0)


def test_what_the_server_gets_says_nothing_of_one_upload():
    """Masked uploads of two rounds from the same model have nothing in common."""
    sent = []

    class Curious(SecureSum):
        def server(self, uploads, form, number):
            inner = super().server(uploads, form, number)
            reply = next(inner)
            while True:
                uploads = yield reply
                sent.append(uploads.stack())
                try:
                    reply = inner.send(uploads)
                except StopIteration as end:
                    return end.value

    def masked():
        sent.clear()
        learn(ar.FedAvg(lr=0.1), ar.Wire(sum=Curious()), rounds=1)
        return [rows for rows in sent if rows.dtype == torch.int64][-1]

    first, second = masked(), masked()

    assert not (first == second).any()
    assert float(first.double().abs().mean()) > 2.0**60  # as numbers drawn from all of 64 bits


def test_an_upload_that_does_not_fit_is_refused():
    with pytest.raises(ar.ArchipelError, match="too large for SecureSum: clip it first"):
        learn(ar.FedAvg(lr=0.1), ar.Wire(sum=SecureSum(bits=61)))


@pytest.mark.parametrize("name", ["clip and noise", "int8", "krum", "secure sum"])
def test_conformance_on_the_wire(name):
    """Stacked, looped, in two workers, in a sweep and over letters; rounds have three parties."""
    wire = ar.Wire(rule=Krum(0, 2)) if name == "krum" else WIRES[name]
    ar.check_algorithm(ar.FedAvg(lr=0.1, batch_size=3), wire=wire)
