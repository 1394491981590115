# SPDX-License-Identifier: Apache-2.0
"""Reference networks: sizes of the papers, shapes, seeds, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from archipel.errors import ArchipelError
from archipel.models import MODELS, build, default_model
from archipel.models.losses import default_loss


def size(module: nn.Module) -> int:
    return sum(w.numel() for w in module.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "weights"),
    [
        ("2nn", (784,), 10, 199_210),
        ("2nn", (1, 28, 28), 10, 199_210),
        ("cnn", (1, 28, 28), 10, 1_663_370),
        ("cnn", (28, 28), 10, 1_663_370),
        ("lenet", (3, 32, 32), 10, 121_182),
        ("logistic", (784,), 10, 7_850),
        ("linear", (13,), 1, 14),
        ("cox", (13,), 1, 13),
        ("linear_score", (13,), 2, 14),
        ("mlp", (13,), 2, 13 * 64 + 64 + 64 * 2 + 2),
        ("char_lstm", (80,), 90, 822_570),
        ("char_lstm", (80,), 258, 867_090),
    ],
)
def test_numbers_of_weights(name: str, shape: tuple[int, ...], outputs: int, weights: int) -> None:
    assert size(build(name, shape, outputs)) == weights


def test_mcmahans_lstm_is_ours_with_peepholes_and_one_bias() -> None:
    """His 866,578: torch's second bias off (2 layers x 4 x 256), peepholes on (2 x 3 x 256)."""
    assert size(build("char_lstm", (80,), 258)) - 2 * 4 * 256 + 2 * 3 * 256 == 866_578


@pytest.mark.parametrize(
    ("name", "shape", "outputs"),
    [
        ("linear", (5,), 1),
        ("logistic", (2, 3), 4),
        ("mlp", (5,), 3),
        ("2nn", (5,), 3),
        ("cnn", (3, 9, 13), 5),
        ("cnn", (8, 8), 5),
        ("lenet", (3, 17, 20), 5),
        ("lenet", (28, 28), 62),
        ("cox", (5,), 1),
    ],
)
def test_one_row_of_outputs_per_example(name: str, shape: tuple[int, ...], outputs: int) -> None:
    assert build(name, shape, outputs)(torch.randn(4, *shape)).shape == (4, outputs)


def test_text_gives_one_row_per_character() -> None:
    model = build("char_lstm", (7,), 11, hidden=6, layers=1)

    assert model(torch.randint(11, (4, 7))).shape == (4, 7, 11)


@pytest.mark.parametrize("name", MODELS)
def test_weights_come_from_the_seed_alone(name: str) -> None:
    shape, outputs = ((20, 20), 1) if name != "char_lstm" else ((20,), 9)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)

    first, again, other = (build(name, shape, outputs, seed=seed) for seed in (1, 1, 2))

    torch.testing.assert_close(torch.rand(3), expected)
    pairs = zip(first.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    if name not in ("linear_score", "stumps"):  # which begin at zero
        assert not torch.equal(next(first.parameters()), next(other.parameters()))


@pytest.mark.parametrize(
    ("name", "shape", "outputs"),
    [("logistic", (6,), 3), ("mlp", (6,), 3), ("lenet", (16, 16), 3), ("cox", (6,), 1)],
)
def test_models_can_be_stacked(name: str, shape: tuple[int, ...], outputs: int) -> None:
    module = build(name, shape, outputs)
    x = torch.randn(2, 5, *shape)
    weights = {k: torch.stack([w, 2 * w]).detach() for k, w in module.named_parameters()}

    def predict(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        outputs: Tensor = torch.func.functional_call(module, weights, (x,))
        return outputs

    stacked = torch.func.vmap(predict)(weights, x)

    for party in range(2):
        alone = predict({k: w[party] for k, w in weights.items()}, x[party])
        torch.testing.assert_close(stacked[party], alone)


def test_default_models_fit_their_tasks() -> None:
    cases: list[tuple[str, tuple[int, ...], str, int]] = [
        ("classification", (13,), "logistic", 2),
        ("classification", (1, 28, 28), "cnn", 10),
        ("classification", (2, 3), "logistic", 2),
        ("regression", (8,), "linear", 1),
        ("survival", (39,), "cox", 1),
        ("text", (20,), "char_lstm", 12),
    ]
    for task, shape, name, outputs in cases:
        assert default_model(task, shape) == name
        x = torch.randint(2, (4, *shape)) if task == "text" else torch.randn(4, *shape)
        y = torch.zeros(4, 2) if task == "survival" else torch.zeros(4)
        y = {"classification": y.long(), "text": x}.get(task, y)
        default_loss(task).check(build(name, shape, outputs)(x), y)
    with pytest.raises(ArchipelError, match="unknown task 'clasification': did you mean"):
        default_model("clasification", (3,))


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "options", "words"),
    [
        ("ccn", (28, 28), 10, {}, "did you mean 'cnn'"),
        ("cnn", (13,), 2, {}, r"examples have shape \[13\]: use 'mlp' or 'logistic'"),
        ("lenet", (8, 8), 2, {}, "at least 16x16 but examples are 8x8"),
        ("char_lstm", (28, 28), 2, {}, "reads text"),
        ("cox", (5,), 2, {}, "one log-risk, not 2"),
        ("mlp", (5,), 2, {"width": 3}, "did you mean 'widths'"),
        ("mlp", (5,), 2, {"widths": 3}, "widths of the model 'mlp' is 3: give a list"),
        ("mlp", (5,), 2, {"widths": [3, 0]}, "whole numbers from 1 on"),
        ("char_lstm", (5,), 2, {"hidden": 2.5}, "hidden of the model 'char_lstm' is 2.5"),
        ("linear", (5,), 0, {}, "outputs of the model 'linear' is 0"),
        ("linear", (0,), 1, {}, "shape of the model 'linear'"),
        ("linear", (5,), 1, {"bias": False}, "has no options: remove 'bias'"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, shape: tuple[int, ...], outputs: int, options: dict[str, object], words: str
) -> None:
    with pytest.raises(ArchipelError, match=words) as caught:
        build(name, shape, outputs, **options)  # type: ignore[arg-type]
    assert str(caught.value).endswith(".")


def test_widths_may_be_a_list_or_empty() -> None:
    assert size(build("mlp", (4,), 2, widths=[3, 5])) == 4 * 3 + 3 + 3 * 5 + 5 + 5 * 2 + 2
    assert size(build("mlp", (4,), 2, widths=[])) == size(build("logistic", (4,), 2))
