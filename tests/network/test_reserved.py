"""What approved studies plan counts before another is approved: a budget is not given out twice."""

import asyncio
import re

import pytest

from archipel.engines.network.transport import Refused
from archipel.federation.site import reserved
from archipel.federation.site.account import epsilon_of
from archipel.federation.site.policy import Overspent
from archipel.federation.site.service import Service
from archipel.privacy.release import Gaussian, Poisson, Release
from network.test_privacy import Desk, run, site  # noqa: F401


@pytest.fixture
def approve(run):  # noqa: F811
    """Review and approve on the command line; exit code, output and errors of the latter."""

    def command(desk):
        run("site", "review", desk.digest[:12])
        found = run("site", "approve", desk.digest[:12], "--yes")
        if found[0] == 0:
            desk.site.site_studies.seated(desk.digest, 0)
        return found

    return command


@pytest.fixture
def two(site, tmp_path, approve):  # noqa: F811
    """A budget that bears each of two studies, and not both; the first is approved."""
    site.policy.changed(["epsilon=2.2"]).write(site.home)
    one = Desk(site, tmp_path, name="lung")
    assert approve(one)[0] == 0
    return one, Desk(site, tmp_path)


def test_two_studies_that_fit_alone_and_not_together_are_not_both_approved(two, approve, run):  # noqa: F811
    one, other = two
    code, _, err = approve(other)

    assert code == 4 and one.site.site_studies.approved() == [one.digest]
    assert "study heart: this site's policy is not met: epsilon = 2.2: ε = 0 was spent" in err
    assert re.search(
        r"is 2 with what approved ones still plan \(lung\), 2\.\d+ with all rounds", err
    )
    assert "'archipel site leave lung', or change the policy with 'archipel site policy" in err
    assert err.strip().splitlines()[-1].count("archipel:") == 1
    assert one.charged == other.charged == []
    review = " ".join(run("site", "review", other.digest[:12])[1].split())
    said = "of this table other studies have spent ε = 0, 2 with what those that you approved"
    assert f"{said} still plan (lung); with all of this one it is 2." in review
    assert "NOT MET epsilon: ε = 0 was spent by other studies and is 2 with" in review


def test_it_is_composed_and_not_added_up(two, approve):
    one, other = two
    both = [*one.exposure().planned, *other.exposure().planned]
    together = epsilon_of(both, 1e-5)
    assert 2.0 < together < 3.0 < 4.0
    one.site.policy.changed([f"epsilon={together + 1e-6}"]).write(one.site.home)

    assert approve(other)[0] == 0
    one.rounds(5)
    other.rounds(5)  # and both are done to the end
    assert other.account().epsilon(1e-5) <= together


def test_what_was_spent_is_not_planned_any_more(two):
    """A study half done counts as much as one that has not begun, and no more."""
    one, other = two
    before = other.account()
    assert before.others == () and [each.study for each in before.planned] == ["lung"]
    one.rounds(3)

    after = other.account()

    rounds = sum(r.times for r in after.to_come) / sum(r.times for r in before.to_come)
    assert rounds == pytest.approx(2 / 5)
    whole = [*after.others, *after.to_come]
    assert epsilon_of(whole, 1e-5) == epsilon_of(before.to_come, 1e-5)


@pytest.mark.parametrize("how", ["leave", "reject", "done", "elsewhere"])
def test_what_is_over_gives_back_what_it_did_not_spend(two, approve, run, how):  # noqa: F811
    one, other = two
    if how != "elsewhere":
        one.rounds(1)
    assert approve(other)[0] == 4
    if how in ("leave", "reject"):
        assert run("site", how, one.digest[:12])[0] == 0
    elif how == "done":
        one.site.site_studies.end(one.digest, 1)
        one.site.audit.append("done", study=one.digest, rounds=1)
    else:
        _hears_of_its_end(one)
    assert other.account().planned == ()

    assert approve(other)[0] == 0
    other.rounds(5)
    assert one.charged == [1] * (how != "elsewhere")


def _hears_of_its_end(desk):
    """The coordinator says that a study is done in which this site did not take part."""

    async def look():
        service = Service(desk.site, lambda _: None)
        states = {desk.digest: "done"}

        async def told(*_):
            return states if _ else None

        desk.site.tell, desk.site.studies = told, told
        await service.look()
        await service.look()
        await service.end()

    asyncio.run(look())
    assert [e.what for e in desk.site.audit.entries()].count("done") == 1


class _Elsewhere:
    """A coordinator that refuses whatever it is asked."""

    most = pieces = 0

    async def ask(self, letter):
        raise Refused("no.")


def test_a_study_that_goes_on_after_its_end_reserves_anew(two, approve, monkeypatch):
    """A coordinator that says "done" and goes on has given up its place, not the budget's limit."""
    one, other = two
    one.rounds(1)
    site = one.site  # noqa: F811
    monkeypatch.setattr(site, "place", lambda *_: asyncio.sleep(0))

    def ends():
        site.site_studies.end(one.digest, 1)
        site.audit.append("done", study=one.digest, rounds=1)

    def goes_on():
        asyncio.run(site.attend(_Elsewhere(), one.digest, one.data))

    ends()
    with pytest.raises(Refused):
        goes_on()
    assert approve(other)[0] == 4  # what the first still plans is kept free again

    ends()
    assert approve(other)[0] == 0
    with pytest.raises(Overspent, match=r"with what approved ones still plan \(heart\)"):
        goes_on()


def test_who_was_approved_first_comes_first(two, approve):
    """A budget that was lowered bears the first and not the second, whichever begins."""
    one, other = two
    one.site.policy.changed(["epsilon=4"]).write(one.site.home)
    assert approve(other)[0] == 0
    one.site.policy.changed(["epsilon=2.2"]).write(one.site.home)

    with pytest.raises(Overspent, match=r"with what approved ones still plan \(lung\)"):
        other.begin()
    one.rounds(5)
    with pytest.raises(Overspent):
        other.begin()
    assert other.charged == []


def test_approving_again_reserves_nothing_twice(two, approve):
    one, _ = two
    assert approve(one)[0] == 0
    one.begin()
    kinds = [e.what for e in one.site.audit.entries()]
    assert kinds.count("reserved") == 1


def test_a_study_that_was_approved_by_an_older_version_is_counted_once_it_begins(site, tmp_path):  # noqa: F811
    one, other = Desk(site, tmp_path, name="lung").approve(), Desk(site, tmp_path)
    assert other.account().planned == ()
    one.begin()
    assert [each.study for each in other.account().planned] == ["lung"]


def test_two_decisions_at_once_are_one_after_the_other(two, approve):
    one, _ = two
    with reserved.deciding(one.site):
        code, _, err = approve(one)
    assert code == 2 and "another study is being approved there now; try again" in err
    assert approve(one)[0] == 0


def test_the_budget_shows_what_is_planned(two, run):  # noqa: F811
    said = run("site", "budget")[1]
    assert "With what approved studies still plan (lung) it is 2." in said
    assert "ε = 0 at δ = 1e-05 spent by 0 studies, of a budget of 2.2; 2.2 is left." in said


def test_of_a_plan_the_rest_is_left():
    noise = Gaussian(1.5)
    plan = [Release(noise, Poisson(0.1), 3), Release(noise, None, 2), Release(noise, Poisson(0.1))]
    left = reserved._without(plan, [Release(noise, Poisson(0.1), 3), Release(Gaussian(9.0))])
    assert left[:-1] == (Release(noise, Poisson(0.1)),)
    assert 1 / left[-1].mechanism.noise ** 2 == pytest.approx(2 / 1.5**2 - 1 / 9.0**2)
    assert reserved._without(plan, [*plan, *plan]) == ()
