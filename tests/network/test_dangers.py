# SPDX-License-Identifier: Apache-2.0
"""A review says on what it depends that noise and sums hide an upload, and what they do not."""

import pytest

from archipel.aggregation.shuffler import Place
from archipel.federation.confirmed import Confirmed
from archipel.federation.peer.known_keys import KnownKeys
from archipel.federation.roster import fingerprint
from archipel.federation.site.looking import review_at
from archipel.federation.site.policy import Policy
from network.test_consent import site  # noqa: F401
from network.test_privacy import Desk

WHOLLY = "whatever the coordinator sends or whoever looks"
SHUFFLER = Place("localhost", 8443, b"\1" * 32, b"\2" * 32).text()
SUM = {"unit": "party", "trust": "sum", "honest": 3}
REPORTS = {"unit": "party", "trust": "shuffler"}
SCAFFOLD = {"name": "scaffold"}
OF_SUMS = {"unit": "party", "trust": "server", "server_sees": "sums"}
SHUFFLED = {"sum": f"shuffled:least=100:shuffler={SHUFFLER}"}


@pytest.fixture
def said(site, tmp_path):  # noqa: F811
    def review(members=(), **sections):
        desk = Desk(site, tmp_path, **sections)
        return " ".join(review_at(site, desk.text, desk.empty, members, desk.rows).split())

    return review


@pytest.mark.parametrize("privacy", [{"unit": "record"}, {"unit": "party", "trust": "nobody"}])
def test_noise_that_is_whole_when_it_leaves_depends_on_nobody(said, privacy):
    assert WHOLLY in said(privacy=privacy)


def test_noise_in_shares_depends_on_who_the_others_are(said):
    found = said(privacy=SUM, wire={"sum": "secure"})

    assert WHOLLY not in found
    assert "only if at least 3 of its sites are real and honest" in found
    assert "compare them by telephone ('archipel site keys')" in found
    assert "A dishonest coordinator can invent sites" in found
    assert "Noise is added by the coordinator" not in found


def test_reports_depend_on_the_shuffler_and_are_not_seen_one_by_one(said):
    found = said(privacy=REPORTS, wire=SHUFFLED)

    assert WHOLLY not in found
    assert "only if the shuffler does not work with the coordinator" in found
    assert "a bit each, and not whose they are, as long as the shuffler" in found
    assert "sees your uploads one by one" not in found
    assert "nothing is promised of it" not in found


# -- numbers of rows -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "privacy", "leaves"),
    [
        ("fedavg", {"unit": "record"}, True),
        ("scaffold", {"unit": "record"}, False),
        ("fedavg", SUM, False),  # every site counts once
    ],
)
def test_rows_that_are_added_up_leave_and_a_policy_judges_that(
    site, tmp_path, said, algorithm, privacy, leaves  # noqa: F811
):  # fmt: skip
    how = {"algorithm": {"name": algorithm}, "privacy": privacy, "wire": {"sum": "secure"}}
    desk, found = Desk(site, tmp_path, **how), said(**how)

    assert desk.exposure().counts is desk.exposure().counts_in_sums is leaves
    assert ("the sum of the sites' numbers of rows; from two sums, one site's" in found) is leaves
    rules = {
        rule.key: rule.met for rule in site.policy.changed(["counts=false"]).judge(desk.exposure())
    }
    assert rules["counts"] is not leaves
    assert ("NOT MET counts: the sum of the sites' numbers of rows" in found) is leaves
    assert ("in sums with those of other sites, which leaves" in found) is leaves


# -- keys ------------------------------------------------------------------------------------------


def test_a_review_says_whose_keys_are_known(site, said):  # noqa: F811
    KnownKeys(site.home / "peers.json").trust("bonn", "00" * 32)
    found = said([site.name, "bonn", "celle"], wire={"sum": "secure"})

    assert "Of 3 sites that approved it so far this site knows the keys of 2" in found
    assert "has not met 1: celle. Nobody here has confirmed the keys of 2: bonn, celle." in found
    assert "believes the coordinator once who others are" in found
    assert "(later ones, too): look then at 'archipel site keys'" in found
    closed = said(["celle"], wire={"sum": "secure"}, round={"late_joiners": False})
    assert "(nobody after these)" in closed
    assert "has not met" not in said(["bonn", "celle"])


def test_a_review_says_whose_keys_nobody_has_confirmed(site, said):  # noqa: F811
    KnownKeys(site.home / "peers.json").trust("bonn", "00" * 32)
    confirmed = Confirmed(site.home)
    confirmed.confirm("bonn", fingerprint("00" * 32))
    members = [site.name, "bonn", "celle"]

    assert "confirmed the keys of 1: celle. It believes" in said(members, wire={"sum": "secure"})
    confirmed.confirm("celle", fingerprint("11" * 32))  # before it was met
    assert "has confirmed all of their keys" in said(members, wire={"sum": "gopa"})
    site.policy.changed(["confirmed=true"]).write(site.home)
    found = said([*members, "dresden"], wire={"sum": "secure"})
    assert "confirmed the keys of 1: dresden. This site adds up with none" in found
    KnownKeys(site.home / "peers.json").trust("celle", "22" * 32)  # another key than confirmed
    assert "confirmed the keys of 1: celle" in said(members, wire={"sum": "secure"})


# -- numbers of rows, in sums alone ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "policy", "met"),
    [
        ({"sum": "secure"}, "sums", True),
        ({"sum": "gopa"}, "sums", True),
        ({"sum": "secure"}, "false", False),
        ({"sum": "secure"}, "true", True),
        ({}, "sums", False),
        ({}, "true", True),
    ],
)
def test_rows_may_be_let_leave_in_sums_alone(site, tmp_path, wire, policy, met):  # noqa: F811
    desk = Desk(site, tmp_path, algorithm={"name": "fedavg"}, wire=wire)
    changed = site.policy.changed([f"counts={policy}"])
    rules = {rule.key: rule.met for rule in changed.judge(desk.exposure())}

    assert rules["counts"] is met
    changed.write(site.home)
    assert Policy.read(site.home).counts == changed.counts
    assert changed.tells_counts is (policy == "true")


def test_with_counts_in_sums_nothing_else_tells_how_many_rows_there_are(said, site):  # noqa: F811
    site.policy.changed(["counts=sums"]).write(site.home)
    found = said(wire={"sum": "secure"}, algorithm={"name": "fedavg"})

    assert "met counts: the sum of the sites' numbers of rows leaves every round" in found
    assert "numbers of training rows, test rows and gradients" not in found
    assert "NOT MET counts" not in found


def test_a_promise_of_sums_is_kept_by_cryptography_and_the_review_says_so(said):
    """`server_sees = "sums"`: with secure sums the coordinator could not look if it wanted to."""
    for how in ("secure", "gopa"):
        kept = said(wire={"sum": how}, privacy=OF_SUMS, algorithm=SCAFFOLD)
        assert "The coordinator sees sums of uploads, and no single one: cryptography" in kept
        assert ("GOPA has no second mask" in kept) is (how == "gopa")
    believed = said(privacy=OF_SUMS, algorithm=SCAFFOLD)
    assert "cryptography" not in believed
    assert "sees your uploads without it" in believed
