# SPDX-License-Identifier: Apache-2.0
"""What a wake-up of Dada sends between peers over mutual TLS: a model, or a boosted step."""

import asyncio

import pytest

from archipel.engines.network.grpc import GrpcLink
from archipel.engines.network.letters import encode
from network.test_peers import attend, coordinator, gathered, run

ROUNDS, PEERS = 4, 3
STUDY = """
[study]
name = "bytes"
rounds = 4
[data]
name = "moons"
parties = 3
[model]
name = "stumps"
count = 200
low = -2.0
high = 2.0
[algorithm]
name = "{}"
learned = false
[topology]
name = "ring"
pause = 0.01
"""


@pytest.fixture
def told(monkeypatch):
    """Numbers' bytes and all bytes of every letter with news that goes into a TLS stream."""
    found, ask = [], GrpcLink.ask

    async def counted(link, letter):
        if letter.kind == "news":
            numbers = sum(each.numel() * each.element_size() for each in letter.arrays)
            found.append((numbers, len(encode(letter))))
        return await ask(link, letter)

    monkeypatch.setattr(GrpcLink, "ask", counted)
    return found


def test_a_boosted_step_is_a_tenth_of_a_model_at_most(tmp_path, told):
    async def play(name):
        async with coordinator(tmp_path / name) as one:
            digest, peers = await gathered(one, tmp_path / name, STUDY.format(name), PEERS)
            tasks = [asyncio.create_task(attend(site, data, digest)) for site, data in peers]
            outcome = await one.run(digest)
            assert await asyncio.gather(*tasks) == [ROUNDS] * PEERS
            return outcome.spent.up

    sizes = {}
    for name in ("dada", "dada_boosted"):
        told.clear()
        assert run(play(name)) > 0
        (sizes[name],) = set(told)  # all of one size
    print(sizes)
    assert sizes["dada"][0] == 4 * (201 + 1)  # the weights of the stumps, and the loss
    assert sizes["dada_boosted"][0] == 2 + 4 + 4  # which stump and its sign, gamma, the loss
    headers = [whole - numbers for numbers, whole in sizes.values()]
    assert max(headers) < 250  # with a signature
    assert sizes["dada"][1] > 4 * sizes["dada_boosted"][1]
