"""A private mean between sites: the coordinator passes on, policies hold, ledgers are charged."""

import asyncio
import json
import socket
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from math import sqrt

import pytest
import torch
from typer.testing import CliRunner

from archipel.aggregation import averaging
from archipel.aggregation.averaging import Question
from archipel.cli import app
from archipel.engines.network.letters import Letter
from archipel.errors import ArchipelError, BelowQuorum, RunFailed
from archipel.federation import averages
from archipel.federation.certificates import Invitation
from archipel.federation.coordinator.coordinator import Coordinator
from archipel.federation.coordinator.folder import CoordinatorFolder
from archipel.federation.coordinator.relay import Relay
from archipel.federation.numbers import NumbersFile, Seat
from archipel.federation.peer import average as peer
from archipel.federation.site import ledger, relayed, statement
from archipel.federation.site.averages import NUMBERS, Asked, account_named, release_of
from archipel.federation.site.policy import Overspent, Policy, Withheld
from archipel.federation.site.site import Site
from archipel.privacy.accounting import epsilon
from archipel.privacy.sources import Simulated
from archipel.verifiable import verify

NAMES = ["bonn", "lyon", "oslo"]
VALUES = {"bonn": (10.0, 1.0), "lyon": (20.0, 2.0), "oslo": (60.0, 3.0)}
QUESTION = Question(
    ("deaths", "births"), (0.0, 0.0), (100.0, 10.0), 2.0, honest=1.0, contribution=(1.0, 1.0)
)


def free():
    with socket.create_server(("localhost", 0)) as server:
        return int(server.getsockname()[1])


class Federation:
    """A coordinator that can be brought up, and sites that joined it."""

    def __init__(self, path):
        self.port = free()
        self.home = CoordinatorFolder.create(path / "c", "test", f"localhost:{self.port}")
        self.sites = {}
        self.path = path

        async def join():
            async with self.up():
                for name in NAMES:
                    token = Invitation.read(self.home.invite(name).token())
                    self.sites[name] = await Site.join(path / name, token)

        asyncio.run(join())

    @asynccontextmanager
    async def up(self):
        self.coordinator = Coordinator(self.home)
        await self.coordinator.up(f"localhost:{self.port}")
        try:
            yield self.coordinator
        finally:
            await self.coordinator.down()

    def file(self, name, question=QUESTION, **more):
        seats = tuple(relayed.seat(site) for site in self.sites.values())
        return NumbersFile(question, {name: VALUES[name]}, sites=seats, **more)

    def asked(self, name, question=QUESTION, verifiable=False, **more):
        return relayed.asked(
            self.sites[name], self.file(name, question, **more), NUMBERS, verifiable
        )

    def play(self, names=NAMES, wait=60.0, patience=30.0, before=lambda _: None, **given):
        async def all_of_them():
            async with self.up() as coordinator:
                before(coordinator)
                parts = [self.asked(name, **given) for name in names]
                if given.get("verifiable"):
                    each = [
                        relayed.prove(part, self.path / f"{name}.jsonl", wait, patience)
                        for name, part in zip(names, parts, strict=True)
                    ]
                else:
                    each = [relayed.take_part(part, wait, patience) for part in parts]
                return await asyncio.gather(*each, return_exceptions=True)

        return asyncio.run(all_of_them())


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    return Federation(tmp_path_factory.mktemp("federation"))


@pytest.fixture
def federation(joined):
    """Sites whose ledgers are new."""
    for site in joined.sites.values():
        site.audit.path.unlink(missing_ok=True)
        (site.home / "policy.toml").unlink(missing_ok=True)
        joined.sites[site.name] = Site(site.home)
    for path in joined.path.glob("*.jsonl"):
        path.unlink()
    return joined


def test_sites_find_the_mean_and_are_charged_before(federation):
    found = federation.play()

    assert {each.parties for each in found} == {tuple(NAMES)}
    assert len({each.estimate.tobytes() for each in found}) == 1
    deviation = QUESTION.deviation(QUESTION.plan(3), 3)
    assert all(abs(found[0].estimate - (30.0, 2.0)) < 6 * deviation)
    for site in federation.sites.values():
        (entry,) = ledger.entries(site)
        assert (entry.table, entry.unit, entry.delta) == (NUMBERS, "record", 1e-5)
        assert epsilon(entry.by_record, 1e-5) == pytest.approx(2.0, rel=1e-6)
        (account,) = statement.tables(site)
        assert account.epsilon == pytest.approx(2.0, rel=1e-6)
        with pytest.raises(ArchipelError, match=r"has answered this on .*; give run = 2"):
            federation.asked(site.name).refuse()
        federation.asked(site.name, run=2).refuse()


def test_sites_prove_it_and_write_one_bulletin(federation):
    found = federation.play(verifiable=True)
    verdict = verify(federation.path / "oslo.jsonl")

    assert found == [verdict] * 3 and verdict.right
    assert len({path.read_bytes() for path in federation.path.glob("*.jsonl")}) == 1
    assert verdict.outcomes[0].sealed == tuple(NAMES)
    (entry,) = ledger.entries(federation.sites["bonn"])
    assert epsilon(entry.by_record, 1e-5) == pytest.approx(verdict.outcomes[0].epsilon)


def test_the_account_is_what_the_plan_says():
    for question, n in (
        (QUESTION, 3),
        (replace(QUESTION, contribution=None, epsilon=0.5), 8),
        (replace(QUESTION, honest=0.7, dropouts=0.1), 40),
    ):
        release = release_of(question, n)
        assert epsilon([release], question.delta) == pytest.approx(question.epsilon, rel=0.02)
        plan = question.plan(n)
        ideal = plan.independent * sqrt(plan.honest) / question.moved
        assert release.mechanism.noise == pytest.approx(ideal, rel=1e-3)


def test_one_that_comes_late_finds_the_others_of_the_next_attempt(federation):
    """What sites told in an attempt that came to nothing is not taken for their word in another."""

    async def main():
        async with federation.up():
            parts = {name: federation.asked(name) for name in NAMES}
            early = [relayed.take_part(parts[name], 2.0, 2.0) for name in ("bonn", "lyon")]
            assert all(
                isinstance(each, BelowQuorum)
                for each in await asyncio.gather(*early, return_exceptions=True)
            )
            first = asyncio.create_task(relayed.take_part(parts["bonn"], 60.0, 30.0))
            await asyncio.sleep(0.5)  # it would hear what lyon told before
            rest = [relayed.take_part(parts[name], 60.0, 30.0) for name in ("lyon", "oslo")]
            return await asyncio.gather(first, *rest)

    found = asyncio.run(main())
    assert len({each.estimate.tobytes() for each in found}) == 1
    assert all(len(ledger.entries(site)) == 1 for site in federation.sites.values())


def test_one_that_begins_anew_is_not_mixed_up_and_nothing_is_spent(federation):
    async def main():
        async with federation.up():
            parts = {name: federation.asked(name) for name in NAMES}
            lyon = asyncio.create_task(relayed.take_part(parts["lyon"], 30.0, 3.0))
            gone = asyncio.create_task(relayed.take_part(parts["bonn"], 30.0, 3.0))
            await asyncio.sleep(2.0)  # they have heard each other
            gone.cancel()
            rest = [relayed.take_part(parts[name], 10.0, 3.0) for name in ("bonn", "oslo")]
            return await asyncio.gather(lyon, *rest, return_exceptions=True)

    found = asyncio.run(main())
    assert all(isinstance(each, BelowQuorum) for each in found), found
    assert not any(ledger.entries(site) for site in federation.sites.values())


# -- a site's own rules ----------------------------------------------------------------------------


def test_what_the_budget_does_not_bear_is_refused_with_code_4(federation):
    bonn = federation.sites["bonn"]
    Policy().changed(["epsilon=2.5"]).write(bonn.home)
    federation.asked("bonn").refuse()
    federation.play()

    with pytest.raises(Overspent, match=r"above this site's budget epsilon = 2\.5") as no:
        federation.asked("bonn", run=2).refuse()
    assert no.value.exit_code == 4
    found = federation.play(run=2, wait=10.0, patience=3.0)
    assert isinstance(found[0], Overspent)  # also where nobody looked before: nothing leaves
    assert all(isinstance(each, BelowQuorum) for each in found[1:])
    assert len(ledger.entries(bonn)) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("least_sites=4", r"a mean of 3 parties: .* wants 4 \(least_sites\)"),
        ("algorithms=fedavg", "average: this site's policy has fedavg alone"),
    ],
)
def test_a_policy_that_is_not_met_is_said(federation, change, says):
    Policy().changed([change]).write(federation.sites["bonn"].home)
    with pytest.raises(Withheld, match=says):
        federation.asked("bonn").refuse()


def test_a_pause_holds(federation):
    federation.sites["bonn"].pause()
    try:
        with pytest.raises(Withheld, match="is paused"):
            federation.asked("bonn").refuse()
        with pytest.raises(Withheld, match="is paused"):
            federation.asked("bonn").charge()
        assert not ledger.entries(federation.sites["bonn"])
    finally:
        federation.sites["bonn"].resume()


def test_numbers_of_a_table_are_charged_to_it(federation, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n")
    site, file = federation.sites["bonn"], federation.file("bonn")
    this = Asked(site, file, tuple(NAMES), account_named(path))
    this.charge()

    (entry,) = ledger.entries(site)
    assert entry.table == account_named(path) != NUMBERS
    assert ledger.account_of(site, "", NUMBERS).epsilon(1e-5) == 0
    with pytest.raises(ArchipelError, match=r"--table .*: cannot be read"):
        account_named(tmp_path / "nothing.csv")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"values": {}}, "has bonn's own numbers alone; give them"),
        ({"values": {"bonn": (1.0, 1.0), "lyon": (1.0, 1.0)}}, "those of lyon are another's"),
        ({"values": {"bonn": (200.0, 1.0)}}, "deaths is not in its range"),
        ({"sites": (Seat("lyon", "00" * 32),)}, "bonn is not among them"),
        ({"sites": (Seat("bonn", "00" * 32), Seat("x", "11" * 32))}, "identity of bonn is not"),
        ({"question": replace(QUESTION, delta=0.5)}, "average.delta = 0.5"),
    ],
)
def test_a_file_that_is_not_this_sites_is_refused(federation, change, says):
    with pytest.raises(ArchipelError, match=says):
        relayed.asked(federation.sites["bonn"], replace(federation.file("bonn"), **change))


# -- a coordinator that lies -----------------------------------------------------------------------


class Lying(Relay):
    """It keeps back, changes or mixes up what it passes on."""

    def __init__(self, lie):
        super().__init__()
        self.lie, self.heard = lie, []

    async def answer(self, sender, letter):
        self.heard.append((sender, letter))
        return self.lie(sender, letter, await super().answer(sender, letter))


def lying(lie):
    def put(coordinator):
        coordinator._relay = Lying(lie)

    return put


def changed(sender, letter, answer):
    if letter["number"] != 0 or not answer.arrays:
        return answer
    return Letter("heard", answer.fields, [array.clone().fill_(7) for array in answer.arrays])


def swapped(sender, letter, answer):
    names = sorted(answer["signatures"])
    if len(names) < 2:
        return answer
    return Letter("heard", answer.fields, [*answer.arrays][::-1])


def other_names(sender, letter, answer):
    return Letter("heard", {"signatures": {"eve": bytes(64)}}, answer.arrays[:1])


@pytest.mark.parametrize(
    ("lie", "says"),
    [
        (changed, "did not sign"),
        (swapped, "did not sign"),
        (other_names, "something else than was asked for"),
    ],
)
def test_a_coordinator_that_changes_anything_is_found_out(federation, lie, says):
    found = federation.play(wait=8.0, patience=2.0, before=lying(lie))

    assert any(isinstance(each, RunFailed) and says in str(each) for each in found), found
    assert not any(isinstance(each, averages.Average) for each in found)
    assert not any(ledger.entries(site) for site in federation.sites.values())


@pytest.mark.parametrize("verifiable", [False, True])
def test_one_who_keeps_a_value_back_has_no_terms_opened(federation, verifiable):
    """The coordinator has what oslo published, and tells nobody: no site tells a key or a term."""
    publishing = 4 if verifiable else 2  # the step

    def lie(sender, letter, answer):
        if letter["number"] < publishing or sender == "oslo":
            return answer
        names = sorted(answer["signatures"])
        left = [(name, array) for name, array in zip(names, answer.arrays, strict=True)
                if name != "oslo"]  # fmt: skip
        signatures = {name: answer["signatures"][name] for name, _ in left}
        return Letter("heard", {"signatures": signatures}, [array for _, array in left])

    found = federation.play(wait=20.0, patience=2.0, before=lying(lie), verifiable=verifiable)
    relay = federation.coordinator._relay

    for each in found[:2]:
        assert isinstance(each, BelowQuorum) and "another epsilon" in str(each)
    assert max(letter["number"] for by, letter in relay.heard if by != "oslo") == publishing
    for name in ("bonn", "lyon"):
        assert len(ledger.entries(federation.sites[name])) == 1  # what was published is spent


def test_what_the_coordinator_hears_is_uniform_and_no_number(federation):
    """Words of a site whose number is 0 and of one whose number is the largest, by their bits."""
    bits = []
    for value in ((0.0, 0.0), (100.0, 10.0)):
        words = []
        for run in range(40):
            members = {
                j: averaging.member(
                    QUESTION, QUESTION.plan(3), j, QUESTION.scaled(value, "x"),
                    bytes([run, j] * 16), Simulated(run, 0, [j], "average"), opens=False,
                )
                for j in range(3)
            }  # fmt: skip
            _, told = averaging.together(members)
            words.append(told[2][0][32:])
        bits.append(sum(bin(byte).count("1") for word in words for byte in word))
    total = 40 * 2 * 64
    assert all(abs(each - total / 2) < 5 * sqrt(total) / 2 for each in bits)


# -- peers that are sites --------------------------------------------------------------------------


def test_a_peer_in_a_sites_folder_is_asked_and_charged(federation, tmp_path):
    site = federation.sites["bonn"]
    cards = [peer.card(site.home, "bonn", f"localhost:{free()}")]
    cards += [peer.card(tmp_path / name, name, f"localhost:{free()}") for name in NAMES[1:]]
    path = tmp_path / "numbers.toml"
    path.write_text(
        '[average]\nnames = ["deaths"]\nlow = 0\nhigh = 100\ncontribution = 1\nepsilon = 2.0\n'
        f"honest = 1.0\n[values]\nbonn = 10\n{''.join(card.text() for card in cards)}"
    )
    words = ["average", str(path), "--me", "bonn", "--home", str(site.home), "--wait", "1"]
    refused = CliRunner().invoke(app, words, input="n\n")
    assert refused.exit_code == 1 and "everybody learns the mean and no more" in refused.output
    Policy().changed(["epsilon=1"]).write(site.home)
    spent = CliRunner().invoke(app, [*words, "--yes"])
    assert isinstance(spent.exception, Overspent)
    Policy().changed(["epsilon=3"]).write(site.home)
    file = NumbersFile.read(path)
    this = Asked(site, file, tuple(NAMES))

    async def meet():
        others = {name: replace(file, values={name: (5.0,)}) for name in NAMES[1:]}
        return await asyncio.gather(
            peer.take_part(file, "bonn", site.home, 60.0, 30.0, charge=this.charge),
            *(peer.take_part(each, name, tmp_path / name, 60.0, 30.0)
              for name, each in others.items()),
        )  # fmt: skip

    assert len({each.estimate.tobytes() for each in asyncio.run(meet())}) == 1
    (entry,) = ledger.entries(site)
    assert entry.study == file.session and epsilon(entry.by_record, 1e-5) == pytest.approx(2.0)


# -- the relay -------------------------------------------------------------------------------------


def test_a_relay_keeps_the_first_word_and_has_limits():
    def letter(content, number=0, wanted=(), study="s", signature=bytes(64)):
        fields = {"study": study, "number": number, "wanted": list(wanted)}
        return Letter("relay", {**fields, "signature": signature}, [torch.tensor(content).byte()])

    async def main():
        now = [0.0]
        relay = Relay(lambda: now[0])
        await relay.answer("bonn", letter([1]))
        await relay.answer("bonn", letter([2]))
        answer = await relay.answer("lyon", letter([3], wanted=["bonn", "lyon"]))
        assert [each.tolist() for each in answer.arrays] == [[1]]
        await relay.answer("eve", letter([1]))
        await relay.answer("eve", letter([2]))  # whom nobody asked for begins nothing anew
        await relay.answer("bonn", letter([4], number=1))
        await relay.answer("bonn", letter([5], number=1))
        answer = await relay.answer("lyon", letter([3], number=1, wanted=["bonn"]))
        assert [each.tolist() for each in answer.arrays] == [[4]]
        await relay.answer("bonn", letter([6]))
        assert [*relay._sessions["s"].said] == [0] and [*relay._sessions["s"].said[0]] == ["bonn"]
        for wrong in (
            letter([1], number=-1),
            letter([1], number=1 << 20),
            letter([1], wanted=["x"] * 300),
            letter([1], signature=b"short"),
            Letter("relay", letter([1]).fields, []),
        ):
            with pytest.raises(ArchipelError):
                await relay.answer("bonn", wrong)
        for k in range(7):
            await relay.answer("bonn", letter([1], study=f"s{k}"))
        with pytest.raises(ArchipelError, match="8 conversations that you began"):
            await relay.answer("bonn", letter([1], study="more"))
        await relay.answer("lyon", letter([1], study="more"))
        now[0] = 4000.0
        await relay.answer("bonn", letter([1], study="later"))
        assert list(relay._sessions) == ["later"]

    asyncio.run(main())


# -- the command -----------------------------------------------------------------------------------


def test_the_command_shows_asks_and_refuses(federation, tmp_path):
    run = CliRunner()
    seats = "".join(
        run.invoke(app, ["average", "--site", str(site.home)]).stdout
        for site in federation.sites.values()
    )
    path = tmp_path / "numbers.toml"
    path.write_text(
        '[average]\nnames = ["deaths"]\nlow = 0\nhigh = 100\ncontribution = 1\nepsilon = 2.0\n'
        f"honest = 1.0\n[values]\nbonn = 10\n{seats}"
    )
    home = str(federation.sites["bonn"].home)
    refused = run.invoke(app, ["average", str(path), "--site", home], input="n\n")
    assert refused.exit_code == 1
    for words in (
        "Mean of deaths (0 to 100) over 3 parties: bonn, lyon, oslo.",
        "through the coordinator of test, which learns the mean and no more",
        "One person moves deaths by 1 at most",
        "epsilon 2, delta 1e-05",
        "Charged to plain numbers: ε = 0 was spent, 2 with this",
    ):
        assert words in refused.output, refused.output
    assert not list(federation.sites["bonn"].audit.entries("average"))
    Policy().changed(["epsilon=1"]).write(federation.sites["bonn"].home)
    spent = run.invoke(app, ["average", str(path), "--site", home, "--yes"])
    assert isinstance(spent.exception, Overspent) and spent.exception.exit_code == 4
    for words, says in (
        (["--site", home, "--parties", "5"], "give one of them, or none"),
        (["--table", "t.csv"], "is charged in a site's ledger"),
    ):
        found = run.invoke(app, ["average", str(path), *words])
        assert isinstance(found.exception, ArchipelError) and says in str(found.exception)


def test_the_ledger_shows_a_mean(federation):
    federation.asked("bonn").charge()
    told = CliRunner().invoke(
        app, ["privacy", "ledger", "--home", str(federation.sites["bonn"].home)]
    )
    assert told.exit_code == 0, told.exception
    assert "ε = 2 at δ = 1e-05 spent by 1 study" in told.output
    plain = CliRunner().invoke(
        app, ["privacy", "ledger", "--home", str(federation.sites["bonn"].home), "--json"]
    )
    assert json.loads(plain.output)["tables"][0]["tables"] == ["numbers"]


@pytest.mark.slow
@pytest.mark.parametrize("verifiable", [False, True])
def test_sites_are_processes(federation, tmp_path, verifiable):
    """The command of every site, as institutions run it, while the coordinator is up."""
    seats = "".join(relayed.seat(site).text() for site in federation.sites.values())
    flags = ["--yes", "--json", "--wait", "200", *(["--verifiable"] if verifiable else [])]

    async def main():
        async with federation.up():
            started = []
            for name, site in federation.sites.items():
                (site.home / averages.BULLETIN).unlink(missing_ok=True)
                path = tmp_path / f"{name}.toml"
                path.write_text(
                    '[average]\nnames = ["deaths", "births"]\nlow = 0\nhigh = [100, 10]\n'
                    f"contribution = 1\nepsilon = 2.0\nhonest = 1.0\n[values]\n"
                    f"{name} = {list(VALUES[name])}\n{seats}"
                )
                words = ["average", str(path), "--site", str(site.home), *flags]
                started.append(await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "archipel", *words, stdout=asyncio.subprocess.PIPE,
                ))  # fmt: skip
            told = [(await each.communicate())[0] for each in started]
            assert not any(each.returncode for each in started)
            return [json.loads(each) for each in told]

    found = asyncio.run(main())
    assert len({json.dumps(each["estimate"]) for each in found}) == 1
    assert abs(found[0]["estimate"]["deaths"] - 30) < 6 * found[0]["deviation"]["deaths"]
    assert all(len(ledger.entries(Site(site.home))) == 1 for site in federation.sites.values())
    if verifiable:
        kept = {(site.home / averages.BULLETIN).read_bytes() for site in federation.sites.values()}
        assert len(kept) == 1 and verify(federation.sites["bonn"].home / averages.BULLETIN).right
