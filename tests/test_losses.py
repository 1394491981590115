# SPDX-License-Identifier: Apache-2.0
"""Losses: against torch's own, against autograd, stacked against looped, padded against cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from archipel.errors import ArchipelError
from archipel.models.losses import DEFAULT, LOSSES, Loss, default_loss, loss

SHAPES = st.lists(st.integers(1, 3), max_size=2).map(tuple)


def draw(name: str, lead: tuple[int, ...], b: int, seed: int, k: int = 4) -> tuple[Tensor, ...]:
    """Return outputs, targets and uneven weights, in double precision."""
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(*lead, b, 1, generator=generator, dtype=torch.float64)
    if name == "cross_entropy":
        outputs = torch.randn(*lead, b, k, generator=generator, dtype=torch.float64)
        targets = torch.randint(k, (*lead, b), generator=generator)
    elif name in ("binary_cross_entropy", "adaboost"):
        targets = torch.randint(2, (*lead, b), generator=generator)
    elif name == "cox":
        times = torch.randint(1, 4, (*lead, b), generator=generator)  # many ties
        events = torch.randint(2, (*lead, b), generator=generator)
        targets = torch.stack([times, events], dim=-1).double()
    else:
        targets = torch.randn(*lead, b, generator=generator, dtype=torch.float64)
    weights = torch.rand(*lead, b, generator=generator, dtype=torch.float64) + 0.1
    return outputs, targets, weights / weights.sum(dim=-1, keepdim=True)


def by_autograd(f: Loss, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    leaf = outputs.clone().requires_grad_(True)
    return torch.autograd.grad(f(leaf, targets, weights).sum(), leaf)[0]


@pytest.mark.parametrize("name", LOSSES)
@given(lead=SHAPES, b=st.integers(1, 6), seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_output_grad_equals_autograd_and_leaves_its_arguments(
    name: str, lead: tuple[int, ...], b: int, seed: int
) -> None:
    outputs, targets, weights = draw(name, lead, b, seed, k=4 if seed % 2 else 20)
    before = [outputs.clone(), targets.clone(), weights.clone()]

    value = LOSSES[name](outputs, targets, weights)
    grad = LOSSES[name].output_grad(outputs.requires_grad_(True), targets, weights)

    assert value.shape == lead
    assert grad.shape == outputs.shape
    assert not grad.requires_grad
    torch.testing.assert_close(grad, by_autograd(LOSSES[name], outputs.detach(), targets, weights))
    for now, then in zip([outputs, targets, weights], before, strict=True):
        torch.testing.assert_close(now, then)


@pytest.mark.parametrize("name", LOSSES)
def test_stacked_equals_looped_equals_vmapped(name: str) -> None:
    batch = draw(name, (5,), 7, seed=1)
    f = LOSSES[name]

    stacked, grads = f(*batch), f.output_grad(*batch)
    looped = torch.stack([f(*party) for party in zip(*batch, strict=True)])
    vmapped = torch.func.vmap(f)(*batch)
    vmapped_grads = torch.func.vmap(torch.func.grad(f))(*batch)

    torch.testing.assert_close(stacked, looped)
    torch.testing.assert_close(stacked, vmapped)
    torch.testing.assert_close(grads, vmapped_grads)


@pytest.mark.parametrize("name", LOSSES)
def test_padding_rows_change_nothing(name: str) -> None:
    outputs, targets, weights = draw(name, (3,), 6, seed=2)
    weights[..., 4:] = 0
    weights /= weights.sum(dim=-1, keepdim=True)
    f = LOSSES[name]

    cut = [x[:, :4] for x in (outputs, targets, weights)]
    grad = f.output_grad(outputs, targets, weights)

    torch.testing.assert_close(f(outputs, targets, weights), f(*cut))
    torch.testing.assert_close(grad[:, :4], f.output_grad(*cut))
    assert (grad[:, 4:] == 0).all()


def test_values_are_torchs() -> None:
    def mean(name: str) -> tuple[Tensor, Tensor, Tensor]:
        outputs, targets, _ = draw(name, (), 9, seed=3)
        value = LOSSES[name](outputs, targets, torch.full((9,), 1 / 9, dtype=torch.float64))
        return value, outputs, targets

    value, outputs, targets = mean("cross_entropy")
    torch.testing.assert_close(value, functional.cross_entropy(outputs, targets))
    value, outputs, targets = mean("binary_cross_entropy")
    reference = functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.double())
    torch.testing.assert_close(value, reference)
    value, outputs, targets = mean("squared_error")
    torch.testing.assert_close(value, functional.mse_loss(outputs[:, 0], targets) / 2)
    value, outputs, targets = mean("absolute_error")
    torch.testing.assert_close(value, functional.l1_loss(outputs[:, 0], targets))
    value, outputs, targets = mean("huber")
    torch.testing.assert_close(value, functional.huber_loss(outputs[:, 0], targets))


def test_text_counts_the_mean_over_characters() -> None:
    outputs, targets = torch.randn(2, 3, 5, 20), torch.randint(20, (2, 3, 5))
    weights = torch.full((2, 3), 1 / 3)
    f = LOSSES["cross_entropy"]

    for party in range(2):
        reference = functional.cross_entropy(
            outputs[party].reshape(-1, 20), targets[party].reshape(-1)
        )
        torch.testing.assert_close(f(outputs, targets, weights)[party], reference)
    grad = f.output_grad(outputs, targets, weights)
    torch.testing.assert_close(grad, by_autograd(f, outputs, targets, weights))


def test_a_quantity_may_come_without_its_last_dimension() -> None:
    outputs, targets, weights = draw("squared_error", (2,), 4, seed=4)
    f = LOSSES["squared_error"]

    flat = f.output_grad(outputs.squeeze(-1), targets, weights)

    assert flat.shape == (2, 4)
    torch.testing.assert_close(flat, f.output_grad(outputs, targets, weights).squeeze(-1))


def test_large_logits_stay_finite() -> None:
    outputs = torch.tensor([[1e4, -1e4, 0.0]])
    one, label = torch.ones(1), torch.tensor([1])

    assert LOSSES["cross_entropy"](outputs, label, one) == 2e4
    assert LOSSES["cross_entropy"].output_grad(outputs, label, one).tolist() == [[1, -1, 0]]
    assert LOSSES["binary_cross_entropy"](outputs[:, :1], torch.tensor([0]), one) == 1e4


def cox_by_definition(risk: list[float], time: list[float], event: list[float]) -> float:
    """Breslow's formula, one row at a time."""
    total = 0.0
    for i in range(len(risk)):
        if event[i]:
            at_risk = sum(
                torch.tensor(risk[j]).exp() for j in range(len(risk)) if time[j] >= time[i]
            )
            total += float(torch.as_tensor(at_risk).log()) - risk[i]
    return total / max(sum(event), 1)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_cox_is_breslows_formula(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 8))
    risk = data.draw(st.lists(st.floats(-3, 3, width=32), min_size=n, max_size=n))
    time = data.draw(st.lists(st.sampled_from([1.0, 2.0, 3.5]), min_size=n, max_size=n))
    event = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n))

    outputs = torch.tensor(risk).unsqueeze(-1)
    targets = torch.stack([torch.tensor(time), torch.tensor(event)], dim=-1)
    value = LOSSES["cox"](outputs, targets, torch.full((n,), 1 / n))

    assert float(value) == pytest.approx(cox_by_definition(risk, time, event), abs=1e-4)


def test_cox_without_an_event_is_flat() -> None:
    outputs, targets, weights = draw("cox", (2,), 5, seed=5)
    targets[..., 1] = 0

    assert (LOSSES["cox"](outputs, targets, weights) == 0).all()
    assert (LOSSES["cox"].output_grad(outputs, targets, weights) == 0).all()


def mean_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - targets).square().mean() / 2


def errors(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - targets).square() / 2


@pytest.mark.parametrize("function", [mean_error, errors])
def test_a_users_function_is_a_loss(function: object) -> None:
    outputs, targets, weights = draw("squared_error", (2, 3), 4, seed=6)
    own, reference = loss(function), LOSSES["squared_error"]  # type: ignore[arg-type]

    own.check(outputs[0, 0], targets[0, 0])

    assert own.separable
    assert own.name == function.__name__  # type: ignore[attr-defined]
    torch.testing.assert_close(own(outputs, targets, weights), reference(outputs, targets, weights))
    torch.testing.assert_close(
        own.output_grad(outputs, targets, weights), reference.output_grad(outputs, targets, weights)
    )
    assert loss(own) is own


def test_names_and_defaults() -> None:
    assert loss("cox") is LOSSES["cox"]
    assert {task: default_loss(task).name for task in DEFAULT} == DEFAULT
    with pytest.raises(ArchipelError, match="did you mean 'cross_entropy'"):
        loss("cross_entropie")
    with pytest.raises(ArchipelError, match="unknown task 'ranking'"):
        default_loss("ranking")
    with pytest.raises(ArchipelError, match="loss is 3: give one of"):
        loss(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "classes", "words"),
    [
        (
            "cross_entropy",
            (6, 5),
            torch.arange(6) + 4,
            None,
            "5 outputs but labels go up to 9: give",
        ),
        ("cross_entropy", (6, 5), torch.zeros(6).long(), 10, "give the model 10 outputs"),
        ("cross_entropy", (6, 1), torch.ones(6).long(), 2, "gives 1 output but labels go up to 1"),
        ("cross_entropy", (6, 5), torch.zeros(6), None, "'squared_error' to predict a quantity"),
        ("cross_entropy", (6, 5), -torch.ones(6).long(), None, "labels go down to -1"),
        ("cross_entropy", (6, 3, 5), torch.zeros(6).long(), None, "one row of outputs per label"),
        ("binary_cross_entropy", (6, 1), torch.arange(6), None, "use the loss 'cross_entropy'"),
        ("binary_cross_entropy", (6, 2), torch.zeros(6), 2, "give the model 1 output"),
        ("squared_error", (6, 3), torch.zeros(6), None, "give the model 1 output"),
        ("squared_error", (6, 1), torch.zeros(6, 2), None, "needs one output per target"),
        ("cox", (6, 1), torch.zeros(6), None, r"targets of shape \[n, 2\]"),
        ("cox", (6, 2), torch.zeros(6, 2), None, "2 outputs but the loss 'cox' needs one"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, outputs: tuple[int, ...], targets: Tensor, classes: int | None, words: str
) -> None:
    with pytest.raises(ArchipelError, match=words) as caught:
        LOSSES[name].check(torch.zeros(outputs), targets, classes)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("name", LOSSES)
def test_what_fits_is_accepted(name: str) -> None:
    outputs, targets, _ = draw(name, (), 6, seed=7)

    LOSSES[name].check(outputs, targets, 4 if name == "cross_entropy" else None)


def test_a_users_function_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ArchipelError, match=r"'squares' gave shape \[1, 3\]"):

        def squares(outputs: Tensor, targets: Tensor) -> Tensor:
            return outputs.square()

        loss(squares).check(torch.zeros(4, 3), torch.zeros(4))


def test_descending_the_output_gradient_lowers_every_loss() -> None:
    for name, f in LOSSES.items():
        outputs, targets, weights = draw(name, (3,), 6, seed=8)
        values = []
        for _ in range(4):
            values.append(f(outputs, targets, weights))
            outputs = outputs - 0.05 * f.output_grad(outputs, targets, weights)
        assert all((later <= earlier).all() for earlier, later in pairwise(values)), name
