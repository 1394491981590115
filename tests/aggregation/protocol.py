"""A secure sum run by hand: parties may be lost at any message, and the server may lie."""

from hashlib import blake2b

import numpy as np
import torch

from archipel.aggregation.coding import Terms
from archipel.aggregation.others import Simulated
from archipel.core import Each
from archipel.exchange.talk import Talk
from archipel.tree import tree_map

MESSAGES = ("keys", "shares", "masked", "signatures", "unmask")


class Me:
    """A party as a protocol sees it."""

    def __init__(self, number, t=0, seed=0, least=0, attempt=0, others=None):
        self.number, self.round = torch.tensor([number]), t
        self.others = others or Simulated(number, seed, least)
        self._key = b"%d %d %d %d" % (number, t, seed, attempt)

    def secret(self, purpose):
        drawn = blake2b(purpose.encode(), key=self._key, digest_size=32).digest()
        return torch.frombuffer(bytearray(drawn), dtype=torch.uint8)


class Came:
    """What came of a message."""

    def __init__(self, said, t=0, seed=0):
        self.said = said
        self.present = torch.tensor(list(said))
        self.parties = self.cohort = len(said)
        self.session, self.round = Simulated(0, seed).session, t

    def stack(self):
        return tree_map(lambda *rows: torch.stack(rows), *self.said.values())

    def total(self):
        rows = [row.numpy() for row in self.said.values()]
        return torch.from_numpy(np.sum(rows, axis=0, dtype=rows[0].dtype))


def terms(x):
    return Terms(uploads=(torch.as_tensor(x),))


def play(how, xs, *, answers=None, lie=None, t=0, number=0, seed=0, mes=None, seen=None):
    """The total of parties' terms, by number; `answers` says how many messages each answers.

    `lie(step, party, reply)` is what the server tells a party in place of a reply, and `seen` is
    given all that parties said, message by message.
    """
    answers = answers or {}
    mes = mes or {k: Me(k, t, seed) for k in xs}
    parties = {k: Talk(how.party(mes[k], xs[k], number)) for k in xs}
    server, there = None, list(xs)
    for step in range(len(MESSAGES)):
        there = [k for k in there if answers.get(k, len(MESSAGES)) > step]
        said = {k: parties[k].said for k in there}
        if seen is not None:
            seen.append(said)
        came = Came(said, t, seed)
        if server is None:
            form = tree_map(torch.zeros_like, next(iter(xs.values())))
            server = Talk(how.server(came, form, number))
        else:
            server.send(came)
        if server.ended:
            return server.said
        for i, k in enumerate(there):
            reply = server.said
            if isinstance(reply, Each):
                reply = tree_map(lambda leaf, i=i: leaf[i], reply.rows)
            if lie is not None:
                reply = lie(step, k, reply)
            if answers.get(k, len(MESSAGES)) > step + 1:
                parties[k].send(reply)
    raise AssertionError("the server has more to say")
