"""Networks as functions of a vector against torch's own layers, and parts of a vector by name."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import archipel as ar
from archipel.core import Blueprint, Examples
from archipel.models.networks import Embedding, Perceptron, first_weights, pull_back
from archipel.vector import ParamSpec, join

few = settings(max_examples=20)
SHAPES = [(4,), (2, 3), (1, 18, 16), (16, 17), (3, 20, 20)]
KINDS = [*(("examples", shape) for shape in SHAPES), ("labels", (4,)), ("labels", (1, 18, 16))]
leads = st.sampled_from([(), (2,), (2, 3)])


def is_image(kind, shape):
    return kind == "examples" and min(shape[-2:]) >= 16


def draw(generator, *shape):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def problem(kind, shape, lead, seed, classes=3, size=4, most=5):
    """An embedding, its weights per party, and points of which the last of each may be padding."""
    g = torch.Generator().manual_seed(seed)
    embedding = Embedding(kind, shape, classes, size)
    eta = 0.3 * draw(g, *lead, embedding.spec.size)
    lengths = torch.randint(1, most + 1, lead, generator=g)
    weights = (torch.arange(most) < lengths[..., None]) / lengths[..., None].double()
    y = torch.randint(0, classes, (*lead, most), generator=g)
    return embedding, eta, Examples(draw(g, *lead, most, *shape), y, weights)


class OfImages(nn.Module):
    """phi as the paper has it, the label as constant channels beside the image's, and once more."""

    def __init__(self, channels, classes, flat, size):
        super().__init__()
        self.first, self.second = nn.Conv2d(channels + classes, 16, 5), nn.Conv2d(16, 32, 5)
        self.dense = nn.Sequential(
            nn.Linear(flat + classes, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, size),
        )  # fmt: skip
        self.classes = classes

    def forward(self, x, y):
        hot = nn.functional.one_hot(y, self.classes).to(x)
        h = torch.cat([x, hot[..., None, None].expand(-1, -1, *x.shape[-2:])], dim=1)
        for layer in (self.first, self.second):
            h = nn.functional.max_pool2d(torch.relu(layer(h)), 2)
        return self.dense(torch.cat([h.flatten(1), hot], dim=1))


def plain(embedding, eta, x, y):
    """phi(x, y) of each point `[b, e]`, by torch's layers."""
    views, classes = embedding.spec.views(eta), embedding.classes
    hot = nn.functional.one_hot(y, classes).to(eta.dtype)
    linear = nn.functional.linear(hot, views.pop("label"))
    if embedding.kind == "labels":
        return linear
    label, again = views.pop("first.label"), views.pop("dense.label", None)
    dense = [view for name, view in views.items() if name.startswith("dense.")]
    if "0.weight" not in views:
        weight = torch.cat([dense[0], label], dim=1)
        h = torch.relu(nn.functional.linear(torch.cat([x.flatten(1), hot], 1), weight, dense[1]))
        h = torch.relu(nn.functional.linear(h, dense[2], dense[3]))
        return linear + nn.functional.linear(h, dense[4], dense[5])
    x = x[:, None] if x.dim() == 3 else x
    module = OfImages(x.shape[1], classes, dense[0].shape[1], embedding.size).double()
    # a constant channel meets all 25 numbers of its kernel: their sum is the label's term
    planes = (label / 25)[..., None, None].expand(-1, -1, 5, 5)
    views["0.weight"] = torch.cat([views["0.weight"], planes], 1)
    views["dense.0.weight"] = torch.cat([views["dense.0.weight"], again], 1)
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), views.values(), strict=True):
            parameter.copy_(value)
        return linear + module(x, y)


@few
@given(
    widths=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    b=st.integers(1, 4),
    lead=leads,
    seed=st.integers(0, 999),
)
def test_a_perceptron_is_torchs_chain_of_layers(widths, b, lead, seed):
    network, g = Perceptron(tuple(widths)), torch.Generator().manual_seed(seed)
    w, x = draw(g, *lead, network.spec.size), draw(g, *lead, b, widths[0])
    got = network(w, x).reshape(-1, b, widths[-1])

    flat = zip(w.reshape(-1, w.shape[-1]), x.reshape(-1, b, widths[0]), got, strict=True)
    for vector, points, output in flat:
        layers = []
        for i, o in pairwise(widths):
            layers += [nn.Linear(i, o), nn.ReLU()]
        module = nn.Sequential(*layers[:-1]).double()
        nn.utils.vector_to_parameters(vector, module.parameters())
        torch.testing.assert_close(output, module(points))


def test_a_perceptron_starts_near_the_output_it_is_told():
    network, output = Perceptron((3, 50, 50, 20)), torch.linspace(-1, 1, 20)
    w = first_weights(network.spec, 0, output)
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    before = w.clone()
    started = network(network.starting_at(w, output), x)

    assert torch.equal(w, before)
    assert float((started - output).abs().max()) < 0.1
    assert float((network(w, x) - output).abs().max()) > 0.5
    assert float(started.std(dim=0).min()) > 0  # parties differ from the first round on


@pytest.mark.parametrize(("kind", "shape"), KINDS, ids=str)
@settings(max_examples=6)
@given(lead=leads, seed=st.integers(0, 999))
def test_an_embedding_is_the_mean_of_phi_over_the_points_that_count(kind, shape, lead, seed):
    embedding, eta, points = problem(kind, shape, lead, seed)
    got = embedding(eta, points)

    assert got.shape == (*lead, embedding.size)
    rows = zip(
        eta.reshape(-1, eta.shape[-1]),
        points.x.reshape(-1, 5, *shape),
        points.y.reshape(-1, 5),
        points.weights.reshape(-1, 5),
        got.reshape(-1, embedding.size),
        strict=True,
    )
    for vector, x, y, weights, v in rows:
        used = weights > 0
        torch.testing.assert_close(v, plain(embedding, vector, x[used], y[used]).mean(dim=0))


@pytest.mark.parametrize(("kind", "shape"), KINDS, ids=str)
@settings(max_examples=6)
@given(lead=leads, seed=st.integers(0, 999))
def test_an_embedding_is_blind_to_order_and_to_what_padding_holds(kind, shape, lead, seed):
    embedding, eta, points = problem(kind, shape, lead, seed)
    v = embedding(eta, points)
    g = torch.Generator().manual_seed(seed)
    x, y = points.x.clone(), points.y.clone()
    flat = (x.view(-1, 5, *shape), y.view(-1, 5), points.weights.view(-1, 5))
    for some_x, some_y, weights in zip(*flat, strict=True):
        used = int((weights > 0).sum())
        order = torch.randperm(used, generator=g)
        some_x[:used], some_y[:used] = some_x[:used][order], some_y[:used][order]
        some_x[used:], some_y[used:] = 1e3, 0

    torch.testing.assert_close(embedding(eta, points._replace(x=x, y=y)), v)


@pytest.mark.parametrize(("kind", "shape"), KINDS, ids=str)
def test_an_embedding_knows_padding_by_its_weight_wherever_it_is(kind, shape):
    embedding, eta, points = problem(kind, shape, (3,), seed=1)
    turned = Examples(points.x.flip(1), points.y.flip(1), points.weights.flip(1))

    assert bool((turned.weights[:, 0] == 0).any())  # some begin with padding
    torch.testing.assert_close(embedding(eta, turned), embedding(eta, points))


@pytest.mark.parametrize(("kind", "shape"), KINDS, ids=str)
def test_an_embedding_sees_labels_and_where_it_says_so_examples(kind, shape):
    embedding, eta, points = problem(kind, shape, (), seed=3)
    v = embedding(eta, points)
    relabelled = embedding(eta, points._replace(y=(points.y + 1) % embedding.classes))
    other = embedding(eta, points._replace(x=points.x + 1))

    assert float((relabelled - v).abs().max()) > 1e-3
    assert torch.equal(other, v) == (kind == "labels")


@pytest.mark.parametrize(("kind", "shape"), KINDS, ids=str)
def test_pulling_back_is_the_transposed_jacobian(kind, shape):
    embedding, eta, points = problem(kind, shape, (2,), seed=2, size=3)
    eta.requires_grad_()
    d = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]], dtype=torch.float64)
    (got,) = pull_back(embedding(eta, points), (eta,), d)

    direction = draw(torch.Generator().manual_seed(0), *eta.shape)
    _, slope = torch.func.jvp(lambda at: embedding(at, points), (eta.detach(),), (direction,))
    torch.testing.assert_close((got * direction).sum(dim=-1), (slope * d).sum(dim=-1))


def test_first_weights_have_the_scale_of_torchs_layers_and_follow_the_seed():
    spec = Perceptron((400, 300, 100)).spec
    like = torch.zeros(1, dtype=torch.float64)
    views = spec.views(first_weights(spec, 3, like))

    for name, inputs in (("0.weight", 400), ("0.bias", 400), ("1.weight", 300), ("1.bias", 300)):
        values = views[name]
        assert float(values.std()) == pytest.approx((3 * inputs) ** -0.5, rel=0.2)
        assert float(values.abs().max()) <= inputs**-0.5
    assert views["0.weight"].dtype == torch.float64
    assert torch.equal(first_weights(spec, 3, like), first_weights(spec, 3, like))
    assert not torch.equal(first_weights(spec, 3, like), first_weights(spec, 4, like))


def test_first_weights_of_two_purposes_never_share_a_stream():
    spec, like = Perceptron((3, 2)).spec, torch.zeros(1)
    drawn = [
        first_weights(spec, seed, like, purpose)
        for seed in range(4)
        for purpose in ("embedding network", "hyper-network")
    ]

    assert len({tuple(w.tolist()) for w in drawn}) == len(drawn)


def test_embeddings_that_cannot_be():
    spec = ParamSpec(("w",), ((1,),))
    with pytest.raises(ar.ArchipelError, match=r"unknown embedding 'label'.*'labels'"):
        Embedding.of("label", Blueprint(spec, (4,), 2, 0), 3)
    with pytest.raises(ar.ArchipelError, match="class labels and the task has none"):
        Embedding.of("examples", Blueprint(spec, (4,), None, 0), 3)


# -- parts of a vector by name ---------------------------------------------------------------------

NAMES = ("conv.weight", "conv.bias", "fc1.weight", "fc1.bias", "fc10.weight", "fc2.0.weight")
SPEC = ParamSpec(NAMES, ((2, 1), (2,), (3, 2), (3,), (4,), (2, 2)))


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("last", {"fc2.0.weight"}),
        ("fc1.*", {"fc1.weight", "fc1.bias"}),
        ("fc1.* fc2.*", {"fc1.weight", "fc1.bias", "fc2.0.weight"}),
        ("*.bias", {"conv.bias", "fc1.bias"}),
        ("fc1*", {"fc1.weight", "fc1.bias", "fc10.weight"}),
        ("fc[12].*", {"fc1.weight", "fc1.bias", "fc2.0.weight"}),
    ],
)
def test_a_mask_covers_the_parameters_of_these_names(pattern, chosen):
    mask = SPEC.mask(pattern)
    views = SPEC.views(mask)

    assert mask.dtype == torch.bool and mask.shape == (SPEC.size,)
    for name, view in views.items():
        assert bool((view == (name in chosen)).all()), name


@pytest.mark.parametrize(
    ("pattern", "told"), [("fc3.*", "none"), ("", "none"), ("FC1.*", "none"), ("*", "all")]
)
def test_a_mask_of_nothing_or_everything_is_refused_in_a_sentence(pattern, told):
    with pytest.raises(ar.ArchipelError) as caught:
        SPEC.mask(pattern)

    text = str(caught.value)
    assert f"'{pattern}' names {told} of the model's parameters" in text
    assert "conv.weight" in text and text.endswith(".") and "\n" not in text


def test_the_last_layer_of_a_lone_layer_is_all_of_it():
    with pytest.raises(ar.ArchipelError, match="'last' names all of the model's parameters"):
        ar.Model(nn.Linear(3, 2)).spec.mask("last")


@given(
    mask=st.lists(st.booleans(), min_size=1, max_size=8),
    lead=leads,
    shared=st.booleans(),
)
def test_join_undoes_taking_apart(mask, lead, shared):
    mask = torch.tensor(mask)
    w = torch.arange(len(mask), dtype=torch.float64) + 100 * torch.rand(*lead, 1).double()
    no = w[..., ~mask]
    if shared and lead:  # a body for all, a head for each
        no = no[(0,) * len(lead)]
    whole = join(mask, w[..., mask], no)

    assert torch.equal(whole[..., mask], w[..., mask])
    assert torch.equal(whole[..., ~mask], no.expand(*lead, -1))
    if not shared:
        assert torch.equal(whole, w)
