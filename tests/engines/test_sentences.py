"""What torch would say in its own words is said in a sentence."""

from dataclasses import dataclass

import pytest
from torch import nn

import archipel as ar
from problems import classification, network

ONE = ar.Plan("one", 1, 1)


@dataclass(frozen=True)
class Replies:
    """A reply of as many numbers as there are uploads, and of one more from round to round."""

    def init(self, w):
        return w, None

    def party(self, me, w, own):
        back = yield w
        return w * back.sum(), own

    def server(self, w, uploads):
        more = int(w.sum() > 1e3)
        uploads = yield w.new_zeros(uploads.sampled, 1 + more)
        return w + uploads.mean() + 1e3


class Advises(Replies):
    def party(self, me, w, own):
        return w, own

    def server(self, w, uploads):
        return w

    def personal(self, me, w, own):
        back = yield w
        return w * back.sum(dim=-1, keepdim=True)

    def advise(self, w, uploads):
        return w.new_zeros(uploads.sampled)


def test_a_reply_may_grow_with_the_parties_and_not_with_the_rounds():
    engine = ar.LocalEngine(Replies(), classification(4, 3, 3, 0), network(3, 3), plan=ONE)
    with engine:
        engine.round(0, [0, 2])
        with pytest.raises(ar.ArchipelError) as error:
            engine.round(1, [0, 2])
    assert str(error.value).startswith(
        "reply 1 of Replies.server has shapes [[2, 2]], where before the first round they were "
        "[[4, 1]]: "
    )


def test_an_answer_of_another_size():
    data = classification(9, 3, 3, 0)
    with (
        ar.LocalEngine(Advises(), data, network(3, 3), plan=ONE) as engine,
        pytest.raises(ar.ArchipelError, match=r"answer 1 of Advises.advise has shapes \[\[9\]\]"),
    ):
        engine.evaluate(own=True, split="train")


class NoGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3).double()

    def forward(self, x):
        return self.inner(x).detach()


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (NoGradient(), "the model NoGradient has no gradient: its outputs do not depend on its"),
        (nn.LazyLinear(3), r"the model's layer \(LazyLinear\) does not know its size yet"),
    ],
)
def test_a_module_without_gradients_or_sizes(module, says):
    with pytest.raises(ar.ArchipelError, match=says):
        ar.simulate(ar.FedAvg(), classification(4, 3, 3, 0), module, rounds=1, workers=1)
