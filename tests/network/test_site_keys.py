# SPDX-License-Identifier: Apache-2.0
"""`archipel site keys`: keys of other sites are shown, confirmed beforehand, and forgotten."""

import json

from archipel.federation.confirmed import Confirmed
from archipel.federation.peer.known_keys import KnownKeys
from archipel.federation.roster import fingerprint
from network.test_consent import run, site  # noqa: F401

BONN, OTHER = "00" * 32, "11" * 32


def rows(printed):
    return {row["site"]: row for row in json.loads(printed)["keys"]}


def test_a_key_is_confirmed_before_and_after_the_two_have_met(site, run):  # noqa: F811
    words = fingerprint(BONN)
    code, printed, _ = run("keys", "--trust", "bonn", words.upper(), "--json")
    assert code == 0
    before = rows(printed)["bonn"]
    KnownKeys(site.home / "peers.json").trust("bonn", BONN)
    KnownKeys(site.home / "peers.json").trust("celle", OTHER)
    after = rows(run("keys", "--json")[1])

    assert before["fingerprint"] == words and before["known"] == "not met yet"
    assert after["bonn"]["confirmed"].startswith("confirmed 20")
    assert after["bonn"]["known"].startswith("known since")
    assert after["celle"]["confirmed"] == "not confirmed"
    assert after[site.name]["known"] == "this site"
    assert [entry.detail["peer"] for entry in site.audit.entries("trusted")] == ["bonn"]
    code, printed, _ = run("keys")
    assert code == 0 and "not confirmed" in printed


def test_words_of_another_key_are_not_confirmed(site, run):  # noqa: F811
    KnownKeys(site.home / "peers.json").trust("bonn", OTHER)
    for arguments, says in (
        (("bonn", fingerprint(BONN)), "knows bonn by another key since"),
        (("bonn", "acorn actor"), "give the 12 words that 'archipel site keys' shows"),
        ((site.name, fingerprint(BONN)), "is this site; name the other one"),
    ):
        code, _, said = run("keys", "--trust", *arguments)
        assert code != 0 and says in " ".join(said.split())
    assert Confirmed(site.home).all() == {}

    assert run("keys", "--trust", "celle", fingerprint(BONN))[0] == 0
    code, _, said = run("keys", "--trust", "celle", fingerprint(OTHER))
    assert code != 0 and "other words were confirmed on" in " ".join(said.split())


def test_what_is_forgotten_is_not_confirmed_any_more(site, run):  # noqa: F811
    Confirmed(site.home).confirm("bonn", fingerprint(BONN))
    KnownKeys(site.home / "peers.json").trust("bonn", BONN)

    assert run("keys", "--forget", "bonn")[0] == 0
    assert Confirmed(site.home).all() == {} == KnownKeys(site.home / "peers.json").known()
    code, _, said = run("keys", "--forget", "bonn")
    assert code != 0 and "bonn" in said
