"""A private mean between peers: over mutual TLS, by processes, without anybody in the middle."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace

import pytest

from archipel.aggregation import averaging
from archipel.aggregation.averaging import Question
from archipel.engines.network.transport import Cut, Refused
from archipel.errors import ArchipelError, BelowQuorum
from archipel.federation import averages
from archipel.federation.numbers import NumbersFile
from archipel.federation.peer import average
from archipel.federation.peer.mesh import Mesh, said
from archipel.verifiable import verify
from archipel.verifiable.terms import Terms

NAMES = ["bonn", "lyon", "oslo", "riga"]
VALUES = {"bonn": (10.0,), "lyon": (20.0,), "oslo": (30.0,), "riga": (40.0,)}
QUESTION = Question(("deaths",), (0.0,), (50.0,), 4.0, honest=1.0, dropouts=0.25)


def free():
    with socket.create_server(("localhost", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def whole(tmp_path):
    """The file of all parties, with a folder for each."""
    cards = [average.card(tmp_path / name, name, f"localhost:{free()}") for name in NAMES]
    return NumbersFile(QUESTION, VALUES, tuple(cards))


def mine(file, name):
    return replace(file, values={name: file.values[name]})


def play(whole, tmp_path, names=NAMES, wait=60.0, patience=30.0):
    """Parties as tasks of one process, each on a port of its own."""

    async def all_of_them():
        return await asyncio.gather(
            *(average.take_part(mine(whole, each), each, tmp_path / each, wait, patience)
              for each in names),
            return_exceptions=True,
        )  # fmt: skip

    return asyncio.run(all_of_them())


def test_all_peers_have_the_same_mean(whole, tmp_path):
    found = play(whole, tmp_path)

    assert {each.parties for each in found} == {tuple(NAMES)}
    assert len({each.estimate.tobytes() for each in found}) == 1
    deviation = QUESTION.deviation(QUESTION.plan(4), 4)
    assert abs(found[0].estimate - 25.0) < 6 * deviation
    for name in NAMES:
        (entry,) = average.published(tmp_path / name)
        assert (entry["epsilon"], entry["session"]) == (4.0, whole.session)


def test_the_same_question_is_answered_once(whole, tmp_path):
    play(whole, tmp_path)
    again = play(whole, tmp_path)
    assert all("run = 1: " in str(no) and "give run = 2" in str(no) for no in again)

    assert all(each.parties for each in play(replace(whole, run=2), tmp_path))
    assert [len(average.published(tmp_path / name)) for name in NAMES] == [2, 2, 2, 2]


def test_one_that_never_comes_is_left_out(whole, tmp_path):
    found = play(whole, tmp_path, ["bonn", "lyon", "riga"], wait=5.0)

    assert {each.parties for each in found} == {("bonn", "lyon", "riga")}
    assert len({each.estimate.tobytes() for each in found}) == 1


def test_one_that_vanishes_when_it_publishes_is_rolled_back(whole, tmp_path, monkeypatch):
    inner = averaging.member

    def member(question, plan, number, *rest):
        box = inner(question, plan, number, *rest)
        if number != NAMES.index("oslo"):
            return (yield from box)
        told = yield next(box)
        yield box.send(told)
        raise ArchipelError("oslo vanishes")

    monkeypatch.setattr(averaging, "member", member)
    found = play(whole, tmp_path, patience=5.0)
    rest = [each for each in found if isinstance(each, averages.Average)]

    assert [str(each) for each in found if isinstance(each, Exception)] == ["oslo vanishes"]
    assert {each.parties for each in rest} == {("bonn", "lyon", "riga")}
    assert len({each.estimate.tobytes() for each in rest}) == 1
    assert abs(rest[0].estimate - 70 / 3) < 6 * QUESTION.deviation(QUESTION.plan(4), 3)


def test_too_few_stop_before_anything_is_published(whole, tmp_path):
    found = play(whole, tmp_path, ["bonn", "lyon"], wait=2.0, patience=1.0)

    assert all(isinstance(each, BelowQuorum) for each in found)
    assert all("2 of 4 parties are there" in str(each) for each in found)
    assert not any(average.published(tmp_path / name) for name in NAMES)


def test_a_party_with_another_file_is_refused(whole, tmp_path):
    async def both():
        wider = mine(replace(whole, question=replace(QUESTION, epsilon=1.0)), "lyon")
        return await asyncio.gather(
            average.take_part(mine(whole, "bonn"), "bonn", tmp_path / "bonn", 4.0),
            average.take_part(wider, "lyon", tmp_path / "lyon", 4.0),
            return_exceptions=True,
        )

    found = asyncio.run(both())
    assert any("differs: compare [average] and [[peers]] of both" in str(each) for each in found)
    assert not any(average.published(tmp_path / name) for name in NAMES)


def test_a_stranger_is_not_heard_and_the_first_word_counts(whole, tmp_path):
    stranger = tmp_path / "stranger"
    average.card(stranger, "bonn", "localhost:1")  # the right name, and another key

    async def main():
        mesh = Mesh(tmp_path / "lyon", whole.session, whole.peers, 1)
        await mesh._server.start(f"localhost:{whole.peers[1].address[10:]}", mesh._trusted)
        key = said(whole.session, 0, b"key")
        try:
            outside = Mesh(stranger, whole.session, whole.peers, 0)
            with suppress(Cut, ArchipelError, TimeoutError):
                async with asyncio.timeout(3.0):
                    await outside._links[1].ask(key)
            assert mesh._heard == {}
            inside = Mesh(tmp_path / "bonn", whole.session, whole.peers, 0)
            await inside._links[1].ask(key)
            await inside._links[1].ask(said(whole.session, 0, b"other"))
            assert mesh._heard == {0: {0: b"key"}}
            with pytest.raises(Refused, match="no such step"):
                await inside._links[1].ask(said(whole.session, 1000, b"key"))
        finally:
            await mesh._server.stop(0.1)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "me", "says"),
    [
        ({}, "nice", "--me nice: is not among the"),
        ({"values": {}}, "bonn", "has bonn's own numbers alone; give them"),
        ({"values": VALUES}, "bonn", "those of lyon are another's, leave them out"),
        ({"values": {"bonn": (70.0,)}}, "bonn", "deaths is not in its range"),
        ({"values": {"lyon": (7.0,)}}, "lyon", "its key is not that of lyon"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_leaves(whole, tmp_path, change, me, says):
    file = replace(mine(whole, "bonn"), **change)
    with pytest.raises(ArchipelError, match=says):
        asyncio.run(average.take_part(file, me, tmp_path / "bonn", 1.0))


def test_a_folder_without_a_key_is_told_how_to_make_one(whole, tmp_path):
    with pytest.raises(ArchipelError, match="has no key; make it with 'archipel average --me bonn"):
        asyncio.run(average.take_part(mine(whole, "bonn"), "bonn", tmp_path / "nothing", 1.0))


# -- with proofs -----------------------------------------------------------------------------------


def prove(whole, tmp_path, names=NAMES, wait=60.0, patience=30.0):
    async def all_of_them():
        return await asyncio.gather(
            *(average.prove(mine(whole, each), each, tmp_path / each,
                            tmp_path / f"{each}.jsonl", wait, patience) for each in names),
            return_exceptions=True,
        )  # fmt: skip

    return asyncio.run(all_of_them())


def files(tmp_path):
    return {path.read_bytes() for path in tmp_path.glob("*.jsonl")}


def test_peers_write_one_bulletin_that_anybody_verifies(whole, tmp_path):
    found = prove(whole, tmp_path)
    verdict = verify(tmp_path / "oslo.jsonl")

    assert len(files(tmp_path)) == 1 and found == [verdict] * 4
    assert verdict.right and verdict.outcomes[0].sealed == tuple(NAMES)
    assert abs(averages.proved(verdict).estimate - 25.0) < 6 * verdict.outcomes[0].deviation[0]
    assert [len(average.published(tmp_path / name)) for name in NAMES] == [1, 1, 1, 1]
    again = prove(whole, tmp_path)
    assert all("give run = 2" in str(no) for no in again)
    assert len(files(tmp_path)) == 1


def test_one_with_proofs_that_never_comes_is_left_out(whole, tmp_path):
    found = prove(whole, tmp_path, ["bonn", "lyon", "riga"], wait=5.0)

    assert len(files(tmp_path)) == 1
    assert {each.outcomes[0].counted for each in found} == {("bonn", "lyon", "riga")}
    assert not average.published(tmp_path / "oslo")


def test_one_whose_value_is_out_of_range_is_named_before_anything_is_spent(whole, tmp_path):
    wide = replace(whole, values={**VALUES, "lyon": (70.0,)})
    with pytest.MonkeyPatch.context() as patch:
        inner = Question.scaled
        patch.setattr(Question, "scaled", lambda self, values, whose: (
            inner(self, values, whose) if whose != "lyon" else None
        ))  # fmt: skip
        steps = Terms.steps
        patch.setattr(Terms, "steps", lambda self, values: (
            steps(self, values) if values != (70.0,) else [self.tops[0] + 1]
        ))  # fmt: skip
        found = prove(wide, tmp_path)

    assert len(files(tmp_path)) == 1 and len({each.head for each in found}) == 1
    with pytest.raises(ArchipelError, match="lyon: out of range") as no:
        averages.proved(found[0])
    assert no.value.exit_code == 1
    assert not any(average.published(tmp_path / name) for name in NAMES)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"identity": ""}, "oslo has no identity"),
        ({"identity": "00" * 32}, "its identity is not that of oslo"),
    ],
)
def test_keys_that_do_not_fit_are_refused_before_anything_leaves(whole, tmp_path, change, says):
    file = replace(mine(whole, "oslo"), peers=tuple(
        card._replace(**change) if card.name == "oslo" else card for card in whole.peers
    ))  # fmt: skip
    with pytest.raises(ArchipelError, match=says):
        asyncio.run(average.prove(file, "oslo", tmp_path / "oslo", tmp_path / "b.jsonl", 1.0))


def test_one_with_proofs_and_one_without_do_not_meet(whole, tmp_path):
    async def both():
        return await asyncio.gather(
            average.take_part(mine(whole, "bonn"), "bonn", tmp_path / "bonn", 4.0),
            average.prove(mine(whole, "lyon"), "lyon", tmp_path / "lyon", tmp_path / "b", 4.0),
            return_exceptions=True,
        )

    assert any("whether both say --verifiable" in str(each) for each in asyncio.run(both()))


def test_processes_write_one_bulletin(tmp_path):
    """Each a process with keys of its own, over mutual TLS, as `--peers --verifiable` has it."""
    file = NumbersFile(replace(QUESTION, dropouts=0.0), {name: VALUES[name] for name in NAMES[:3]})
    found = asyncio.run(average.rehearse(file, tmp_path, verifiable=True))
    verdict = verify(tmp_path / "bonn" / averages.BULLETIN)

    assert verdict.right and found.parties == tuple(NAMES[:3])
    assert verdict.outcomes[0].mean == tuple(found.estimate)


KILLED = """
import os
from archipel.verifiable import peers
inner = peers.member
def member(party, terms, board, dropouts, before):
    def dies(phase):
        if phase == "publish":
            os.kill(os.getpid(), 9)
        before(phase)
    return inner(party, terms, board, dropouts, dies)
peers.member = member
from archipel.cli import main
main()
"""

DYING = """
import os
from archipel.aggregation import averaging
inner = averaging.member
def member(*args):
    box = inner(*args)
    told = yield next(box)
    told = yield box.send(told)
    os.kill(os.getpid(), 9)
averaging.member = member
from archipel.cli import main
main()
"""


def started(tmp_path, dying, *more):
    """Cards, files, one process per party, as institutions do it; oslo is killed."""
    archipel = [sys.executable, "-m", "archipel", "average"]
    cards = [average.card(tmp_path / name, name, f"localhost:{free()}") for name in NAMES]
    for name in NAMES:
        (tmp_path / f"{name}.toml").write_text(
            "[average]\nnames = ['deaths']\nlow = 0\nhigh = 50\nepsilon = 4.0\n"
            f"honest = 1.0\ndropouts = 0.25\n[values]\n{name} = {VALUES[name][0]}\n"
            + "".join(card.text() for card in cards)
        )
    processes = {}
    for name in NAMES:
        how = [sys.executable, "-c", dying, "average"] if name == "oslo" else archipel
        flags = ["--me", name, "--home", str(tmp_path / name), "--wait", "120", "--json"]
        flags += ["--patience", "15"]
        processes[name] = subprocess.Popen(
            [*how, str(tmp_path / f"{name}.toml"), *flags, *more], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    try:
        ended = {name: process.communicate(timeout=300) for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()

    assert processes["oslo"].returncode == -9, ended["oslo"]
    told = [json.loads(out) for name, (out, _) in ended.items() if name != "oslo"]
    assert [each["parties"] for each in told] == [3, 3, 3]
    assert len({json.dumps(each["estimate"]) for each in told}) == 1
    assert told[0]["vanished"] == 1
    assert abs(told[0]["estimate"]["deaths"] - 70 / 3) < 6 * told[0]["deviation"]["deaths"]
    assert all(b"goes on without oslo" in err for name, (_, err) in ended.items() if name != "oslo")


@pytest.mark.slow
def test_processes_find_the_mean_though_one_is_killed_when_it_publishes(tmp_path):
    started(tmp_path, DYING)


@pytest.mark.slow
def test_processes_write_one_bulletin_though_one_is_killed_when_it_publishes(tmp_path):
    started(tmp_path, KILLED, "--verifiable")
    kept = {(tmp_path / name / averages.BULLETIN).read_bytes() for name in NAMES if name != "oslo"}
    verdict = verify(tmp_path / "bonn" / averages.BULLETIN)

    assert len(kept) == 1 and verdict.right
    assert verdict.outcomes[0].sealed == verdict.outcomes[0].counted == ("bonn", "lyon", "riga")
