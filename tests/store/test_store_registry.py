"""The registry of a federation, in SQLite and in PostgreSQL: nobody joins twice, nobody is lost."""

import os
import re
import shutil
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from threading import Barrier

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from archipel.errors import ArchipelError, RunFailed
from archipel.store import database, journal
from archipel.store.registry import Registry
from archipel.store.tables import INVITATIONS, METADATA

LATER = datetime(2100, 1, 1, tzinfo=UTC)
PAST = datetime(2001, 1, 1, tzinfo=UTC)
KEY, OTHER = b"k" * 32, b"o" * 32
NEXT = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "004", "003"


def upgrade():
    op.add_column("sites", sa.Column("contact", sa.String, nullable=False, server_default="none"))
    with op.batch_alter_table("studies") as studies:
        studies.alter_column("note", nullable=True)
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/roll.db"
    return request.getfixturevalue("server").address()


@pytest.fixture
def registry(url):
    with Registry.open(url) as registry:
        yield registry


def join(registry, *names):
    for name in names:
        registry.invite(name, b"secret", LATER)
        registry.redeem(name, b"secret", KEY, f"1{name.encode().hex()}", LATER)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(database, "_TRIES", 2)


def refused(what):
    return pytest.raises(ArchipelError, match=what)


# -- sites -----------------------------------------------------------------------------------------


def test_a_site_joins_by_its_invitation(registry):
    registry.invite("mainz", b"secret", LATER)
    registry.redeem("mainz", b"secret", KEY, "a1", LATER)

    (site,) = registry.sites()
    assert site == registry.site("mainz")
    assert (site.name, site.identity, site.revoked, site.reason) == ("mainz", KEY, None, None)
    assert site.until == "2100-01-01T00:00:00+00:00"
    assert datetime.fromisoformat(site.joined).utcoffset() == timedelta(0)
    (invitation,) = registry.invitations()
    assert invitation.used is not None and invitation.withdrawn is None
    registry.admitted("mainz", "a1")


def test_the_secret_itself_is_nowhere(registry):
    registry.invite("mainz", b"very secret", LATER)

    with registry._reading() as connection:
        (row,) = connection.execute(sa.select(INVITATIONS))
    assert row.secret == sha256(b"very secret").hexdigest()


@pytest.mark.parametrize(
    "name", ["", "-mainz", "Mainz", "mainz\n", "a" * 41, "ma_inz", "coordinator", "invited-1"]
)
def test_names_that_no_site_may_have(name, tmp_path):
    with Registry.open(f"sqlite:///{tmp_path}/roll.db") as registry, refused("choose .*name"):
        registry.invite(name, b"secret", LATER)


def test_longest_name(registry):
    join(registry, "a" * 40)

    assert registry.site("a" * 40).name == "a" * 40


def test_an_enrolled_site_is_not_invited_again(registry):
    join(registry, "mainz")

    with refused(r"'mainz': belongs .* since .*revoke it first"):
        registry.invite("mainz", b"new", LATER)


def test_each_refusal_of_an_invitation_says_which(registry):
    def redeem(site, secret):
        registry.redeem(site, secret, KEY, "a1", LATER)

    registry.invite("mainz", b"first", LATER)
    registry.invite("mainz", b"second", LATER)
    registry.invite("trier", b"late", PAST)
    redeem("mainz", b"second")

    with refused("'bonn': was never invited"):
        redeem("bonn", b"first")
    with refused("'mainz': .*secret is wrong"):
        redeem("mainz", b"third")
    with refused("'mainz': .* was withdrawn on"):
        redeem("mainz", b"first")
    with refused("'mainz': .* was used already"):
        redeem("mainz", b"second")
    with refused("'trier': .* expired on 2001-01-01T"):
        redeem("trier", b"late")
    assert [site.name for site in registry.sites()] == ["mainz"]


def test_a_certificate_that_another_has_leaves_the_invitation_unused(registry):
    join(registry, "mainz")
    serial = f"1{b'mainz'.hex()}"
    registry.invite("trier", b"secret", LATER)

    with refused(f"certificate {serial} is in the registry already"):
        registry.redeem("trier", b"secret", KEY, serial, LATER)
    registry.redeem("trier", b"secret", KEY, "b2", LATER)
    registry.admitted("trier", "b2")


def test_who_is_admitted(registry):
    join(registry, "mainz", "trier")
    registry.renewed("mainz", "c3", LATER + timedelta(days=30))
    registry.revoke("trier", "left the\nfederation")

    registry.admitted("mainz", "c3")
    registry.admitted("mainz", f"1{b'mainz'.hex()}")
    assert registry.site("mainz").until.startswith("2100-01-31")
    assert registry.site("trier").reason == "left the federation"
    with refused("'bonn': does not belong"):
        registry.admitted("bonn", "c3")
    with refused("'trier': was revoked on .* \\(left the federation\\)"):
        registry.admitted("trier", f"1{b'trier'.hex()}")
    with refused("'mainz': certificate 99 is none of"):
        registry.admitted("mainz", "99")
    with refused("'mainz': certificate 1.* is none of"):
        registry.admitted("mainz", f"1{b'trier'.hex()}")
    with refused("'trier': was revoked"):
        registry.renewed("trier", "d4", LATER)
    with refused("unknown site 'mains': did you mean 'mainz'"):
        registry.site("mains")


def test_admission_is_one_query(registry):
    join(registry, "mainz")
    asked = []
    sa.event.listen(registry._engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
    registry.admitted("mainz", f"1{b'mainz'.hex()}")

    assert len([each for each in asked if each != "BEGIN"]) == 1


def test_a_revoked_site_comes_back_with_new_keys_only(registry):
    join(registry, "mainz")
    registry.revoke("mainz", "key stolen")
    registry.invite("mainz", b"again", LATER)
    registry.redeem("mainz", b"again", OTHER, "b2", LATER)

    registry.admitted("mainz", "b2")
    assert (registry.site("mainz").identity, registry.site("mainz").revoked) == (OTHER, None)
    with refused("is none of"):
        registry.admitted("mainz", f"1{b'mainz'.hex()}")


def test_revoking(registry):
    join(registry, "mainz")
    registry.invite("trier", b"secret", LATER)
    registry.revoke("mainz", "left")
    registry.revoke("trier", "invited by mistake")

    with refused("'mainz': was revoked already"):
        registry.revoke("mainz", "left")
    with refused("unknown site 'bonn'"):
        registry.revoke("bonn", "left")
    with refused("was withdrawn"):
        registry.redeem("trier", b"secret", KEY, "b2", LATER)


# -- studies ---------------------------------------------------------------------------------------


def test_a_study_is_its_bytes(registry):
    first = registry.submit("heart", b"[study]\n")
    again = registry.submit("heart again", b"[study]\n")
    other = registry.submit("heart", b"[study]\n\n")

    assert first == again == sha256(b"[study]\n").hexdigest() != other
    assert [each.hash for each in registry.studies()] == [first, other]
    study = registry.study(first)
    assert (study.name, study.text, study.state, study.note) == ("heart", b"[study]\n", "open", "")


def test_a_study_may_be_for_some_sites(registry):
    """M8: for others it is as if there were no such study."""
    join(registry, "mainz", "trier")
    registry.invite("bonn", b"secret", LATER)
    everybodys = registry.submit("heart", b"heart")
    theirs = registry.submit("lung", b"lung", ["mainz", "bonn"])
    registry.submit("heart", b"heart", ["trier"])

    assert [each.hash for each in registry.studies("mainz")] == [everybodys, theirs]
    assert [each.hash for each in registry.studies("trier")] == [everybodys]
    assert registry.study(theirs, "bonn").name == "lung"
    with refused("no study here has this hash") as hidden:
        registry.study(theirs, "trier")
    with refused("no study here has this hash") as absent:
        registry.study("0" * 64, "trier")
    assert str(hidden.value).replace(theirs, "") == str(absent.value).replace("0" * 64, "")
    assert registry.named(theirs) == ["bonn", "mainz"] and registry.named(everybodys) == ["trier"]
    registry.submit("lung", b"lung", ["trier"])
    assert registry.study(theirs, "trier").name == "lung"


def test_a_study_is_for_sites_that_there_are(registry):
    join(registry, "mainz", "trier")
    registry.revoke("trier", "left")

    for name in ("mains", "trier"):
        with refused(f"unknown site '{name}'"):
            registry.submit("heart", b"heart", ["mainz", name])
    assert registry.studies() == []


def test_states(registry):
    study = registry.submit("heart", b"\x00\xff")
    registry.set_state(study, "failed", "below quorum")

    assert registry.study(study)[-2:] == ("failed", "below quorum")
    assert registry.study(study).text == b"\x00\xff"
    with refused("unknown state of a study 'finished'"):
        registry.set_state(study, "finished", "")
    for wrong in ("0" * 64, "\x00", study[:12]):
        with refused("no study here has this hash"):
            registry.set_state(wrong, "done", "")


def test_the_latest_decision_counts(registry):
    join(registry, "bonn", "mainz", "trier", "worms")
    study = registry.submit("heart", b"text")
    for number, (site, decision) in enumerate(
        [
            ("worms", "rejected"),
            ("trier", "approved"),
            ("mainz", "rejected"),
            ("bonn", "approved"),
            ("mainz", "approved"),
            ("trier", "withdrawn"),
            ("trier", "approved"),
            ("bonn", "withdrawn"),
        ]
    ):
        registry.decide(study, site, decision, {"points": number, "note": "ü"}, bytes([number]))

    latest = registry.decisions(study)
    assert [(each.site, each.decision) for each in latest] == [
        ("trier", "approved"),
        ("bonn", "withdrawn"),
        ("mainz", "approved"),
        ("worms", "rejected"),
    ]
    assert [each.signature for each in latest] == [b"\x06", b"\x07", b"\x04", b"\x00"]
    assert latest[0].facts == {"points": 6, "note": "ü"} and latest[0].identity == KEY
    assert [each.facts["points"] for each in registry.history(study)] == list(range(8))
    assert registry.decisions(registry.submit("other", b"other")) == []


def test_decisions_signed_by_a_lost_key_count_no_more(registry):
    join(registry, "mainz")
    study = registry.submit("heart", b"text")
    registry.decide(study, "mainz", "approved", {}, b"by the first key")
    registry.revoke("mainz", "key stolen")
    registry.invite("mainz", b"again", LATER)
    registry.redeem("mainz", b"again", OTHER, "b2", LATER)

    assert registry.decisions(study) == []
    assert [each.identity for each in registry.history(study)] == [KEY]


def test_a_place_is_what_decisions_and_seats_say(registry):
    join(registry, "mainz", "ulm")
    first, second = registry.submit("s", b"text"), registry.submit("t", b"other")
    nothing = (KEY, None, None)
    assert registry.place(first, "mainz") == nothing == registry.place("no hash", "ulm")

    for study, site, decision in [
        (first, "ulm", "approved"),
        (first, "mainz", "rejected"),
        (first, "mainz", "approved"),
        (second, "mainz", "approved"),
        (second, "mainz", "withdrawn"),
    ]:
        registry.decide(study, site, decision, {}, b"s")
    registry.number(first)

    assert registry.place(first, "mainz") == (KEY, "approved", 0)
    assert registry.place(second, "mainz") == (KEY, "withdrawn", None)
    registry.revoke("mainz", "left")
    with refused("was revoked"):
        registry.place(first, "mainz")
    registry.invite("mainz", b"secret", LATER)
    registry.redeem("mainz", b"secret", OTHER, "a9", LATER)
    assert registry.place(first, "mainz") == (OTHER, None, 0)  # it decides anew


def test_who_may_decide_what(registry):
    join(registry, "mainz", "trier")
    study = registry.submit("heart", b"text")
    registry.revoke("trier", "left")

    with refused("unknown decision 'maybe'"):
        registry.decide(study, "mainz", "maybe", {}, b"")
    with refused("facts of site 'mainz': are no JSON"):
        registry.decide(study, "mainz", "approved", {"mean": float("nan")}, b"")
    with refused("no study here has this hash"):
        registry.decide("0" * 64, "mainz", "approved", {}, b"")
    with refused("'bonn': does not belong"):
        registry.decide(study, "bonn", "approved", {}, b"")
    with refused("'trier': was revoked"):
        registry.decide(study, "trier", "approved", {}, b"")
    with refused("no study here has this hash"):
        registry.decisions("0" * 64)


def approve(registry, study, *sites):
    for site in sites:
        registry.decide(study, site, "approved", {}, b"signature")


def test_numbers_go_by_name_and_are_for_ever(registry):
    """E6: whoever approves first, numbers are the same."""
    join(registry, "mainz", "trier", "bonn", "aachen", "worms")
    heart, lung = registry.submit("heart", b"heart"), registry.submit("lung", b"lung")
    approve(registry, heart, "trier", "mainz", "bonn", "worms")
    registry.decide(heart, "worms", "withdrawn", {}, b"signature")

    assert registry.party_states(heart) == []
    assert registry.number(heart) == ["bonn", "mainz", "trier"]
    approve(registry, heart, "worms", "aachen")
    registry.decide(heart, "mainz", "withdrawn", {}, b"signature")
    assert (
        registry.number(heart)
        == ["bonn", "mainz", "trier", "aachen", "worms"]
        == registry.party_states(heart)
    )
    assert registry.number(lung) == []
    with refused("no study here"):
        registry.number("0" * 64)


def test_a_revoked_site_decides_nothing_and_gets_no_number(registry):
    """H4: its approval counts no more, whenever numbers are given."""
    join(registry, "mainz", "trier", "bonn")
    study = registry.submit("heart", b"heart")
    approve(registry, study, "trier", "mainz")
    registry.revoke("mainz", "left")

    assert [each.site for each in registry.decisions(study)] == ["trier"]
    assert registry.number(study) == ["trier"]
    assert [each.site for each in registry.history(study)] == ["trier", "mainz"]


# -- several at once -------------------------------------------------------------------------------


def at_once(url, calls):
    """Results or refusals of calls that start together, each with a connection of its own."""
    barrier = Barrier(len(calls))

    def run(call):
        with Registry.read(url) as registry:
            barrier.wait()
            try:
                return call(registry)
            except ArchipelError as error:
                return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_one_of_many_redeems_wins(url, registry):
    for number in range(3):
        name = f"site-{number}"
        registry.invite(name, b"secret", LATER)

        def redeem(each, key, name=name):
            each.redeem(name, b"secret", bytes([key]) * 32, f"{name}{key}".encode().hex(), LATER)
            return key

        found = at_once(url, [lambda each, key=key: redeem(each, key) for key in range(8)])
        winners = [each for each in found if isinstance(each, int)]
        losers = [str(each) for each in found if not isinstance(each, int)]

        assert len(winners) == 1 and len(losers) == 7
        assert all("was used already" in each for each in losers)
        assert registry.site(name).identity == bytes(winners) * 32


def test_numbers_under_many_calls(url, registry):
    names = [f"site-{number}" for number in range(5)]
    join(registry, *names)
    study = registry.submit("heart", b"text")

    def approves(each, name):
        approve(each, study, name)
        return each.number(study)

    found = at_once(url, [lambda each, name=name: approves(each, name) for name in names * 2])
    party_states = registry.party_states(study)
    assert sorted(party_states) == names
    assert all(party_states[: len(each)] == each for each in found)


# -- the lease -------------------------------------------------------------------------------------


def coordinator(url, worker=False):
    """Fork a process that opens the registry, and one from that if asked; pid and what it says."""
    said, says = os.pipe()
    hold, held = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(held)
        try:
            registry = Registry.open(url)
            if worker and os.fork() == 0:
                os.read(hold, 1)  # until the test ends
                os._exit(0)
            os.write(says, b"open")
            os.read(hold, 1)
            registry.close()
        except ArchipelError as error:
            os.write(says, str(error).encode())
        finally:
            os._exit(0)
    os.close(says)
    os.close(hold)
    text = os.read(said, 1000).decode()
    os.close(said)
    return pid, text, held


@pytest.mark.parametrize("worker", [False, True])
def test_a_second_coordinator_waits_for_the_first_to_die(url, worker, monkeypatch):
    pid, text, held = coordinator(url, worker)
    try:
        assert text == "open"
        since = datetime.now(UTC).isoformat()[:10]
        holder = rf"process {pid} on {re.escape(os.uname().nodename)} since {since}T"
        with monkeypatch.context() as patch, refused(holder):
            patch.setattr(database, "_TRIES", 2)
            Registry.open(url)
        with Registry.read(url) as beside:
            beside.invite("mainz", b"secret", LATER)

        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with Registry.open(url) as registry:
            registry.redeem("mainz", b"secret", KEY, "a1", LATER)
    finally:
        os.close(held)


def test_closing_gives_the_lease_back(url, impatient):
    Registry.open(url).close()
    with Registry.open(url), refused("stop that one"):
        Registry.open(url)
    with Registry.open(url) as registry:
        assert registry.sites() == []
    registry.close()
    with refused("open it again"):
        registry.invite("mainz", b"secret", LATER)


def end_session(server):
    """Have the server drop the connection that is the lease."""
    with server.connect() as connection:
        query = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        assert connection.execute(query).fetchall() == [(True,)]


def test_a_lost_connection_is_no_lost_lease(server, impatient):
    url = server.address()
    with Registry.open(url) as registry:
        end_session(server)
        registry.invite("mainz", b"secret", LATER)

        with refused("has a coordinator"):
            Registry.open(url)


def test_a_lease_that_another_took_is_lost(server, impatient):
    url = server.address()
    with Registry.open(url) as registry:
        end_session(server)
        with Registry.open(url):
            for _ in range(2):
                with refused("has a coordinator"):
                    registry.invite("mainz", b"secret", LATER)
        registry.invite("mainz", b"secret", LATER)


# -- whose it is ----------------------------------------------------------------------------------


def test_two_federations_share_no_database(url):
    """E8: the first coordinator's authority has it for good."""
    Registry.open(url, "a" * 64, claims=False).close()
    Registry.open(url, "b" * 64).close()

    for enter in (Registry.open, Registry.read):
        with refused("holds another federation, of the authority bbbbbbbbbbbb, and this one's is"):
            enter(url, "a" * 64)
        enter(url, "b" * 64).close()
        enter(url).close()


def test_a_password_comes_from_the_environment_and_is_shown_nowhere(monkeypatch):
    """E8: neither that of the address nor that of the environment."""
    monkeypatch.setenv(database.PASSWORD, "hidden")
    engine = database.engine_of("postgresql://me@host/name", leads=False)
    own = database.engine_of("postgresql://me:secret@host/name?password=secret", leads=False)

    assert engine.url.password == "hidden" and own.url.password == "secret"
    for each in (database.shown(engine), database.shown(own), repr(engine), repr(own)):
        assert "hidden" not in each and "secret@" not in each
    assert database.has_password("postgresql://me@host/name?password=x")
    assert not database.has_password("postgresql://me@host/name")


# -- the tables ------------------------------------------------------------------------------------


def tables(registry):
    with registry._reading() as connection:
        names = sa.inspect(connection).get_table_names()
        return {name: connection.execute(sa.text(f"SELECT * FROM {name}")).all() for name in names}


def test_migrations_make_the_tables_that_queries_use(registry):
    with registry._reading() as connection:
        options = {"version_table": database.VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, [METADATA, journal.METADATA]) == []


def test_opening_again_changes_nothing(url):
    with Registry.open(url) as registry:
        join(registry, "mainz")
        registry.decide(registry.submit("heart", b"text"), "mainz", "approved", {}, b"signature")
        before = tables(registry)
    with Registry.open(url) as registry:
        assert tables(registry) == before


def test_a_later_version_adds_a_column_and_is_refused_by_this_one(url, tmp_path, monkeypatch):
    with Registry.open(url) as registry:
        join(registry, "mainz")
        study = registry.submit("heart", b"text")
        registry.decide(study, "mainz", "approved", {}, b"signature")
    folder = tmp_path / "100% later"
    shutil.copytree(database.MIGRATIONS, folder)
    (folder / "versions" / "v004.py").write_text(NEXT)
    with monkeypatch.context() as later:
        later.setattr(database, "MIGRATIONS", folder)
        with refused("has tables of version 003 and this Archipel needs version 004"):
            Registry.read(url)
        with Registry.open(url) as registry:
            assert tables(registry)["sites"][0].contact == "none"
            assert registry.site("mainz").identity == KEY and registry.study(study).text == b"text"
            assert [each.site for each in registry.decisions(study)] == ["mainz"]

    for refuse in (Registry.open, Registry.read, Registry.open):
        with refused("newer Archipel .*version 004, this one knows 003"):
            refuse(url)


def test_a_database_of_the_first_version_gets_the_tables_of_runs(url, tmp_path, monkeypatch):
    first = tmp_path / "first"
    shutil.copytree(database.MIGRATIONS, first)
    for later in ("v002.py", "v003.py"):
        (first / "versions" / later).unlink()
    with monkeypatch.context() as earlier:
        earlier.setattr(database, "MIGRATIONS", first)
        with Registry.open(url) as registry:
            join(registry, "mainz")
            before = tables(registry)
            assert "runs" not in before

    with Registry.open(url) as registry:
        after = tables(registry)
        assert {name: after[name] for name in before if name != database.VERSION_TABLE} == {
            name: rows for name, rows in before.items() if name != database.VERSION_TABLE
        }
        assert all(after[name] == [] for name in journal.METADATA.tables)


def test_a_failed_migration_leaves_what_was_there(url, tmp_path, monkeypatch):
    with Registry.open(url) as registry:
        before = tables(registry)
    folder = tmp_path / "later"
    shutil.copytree(database.MIGRATIONS, folder)
    broken = NEXT.replace('studies.alter_column("note", nullable=True)', "raise ValueError")
    (folder / "versions" / "v004.py").write_text(broken)
    with monkeypatch.context() as later:
        later.setattr(database, "MIGRATIONS", folder)
        with pytest.raises(ValueError):
            Registry.open(url)

    with Registry.open(url) as registry:
        assert tables(registry) == before


def test_a_database_of_another_program(url):
    Registry.open(url).close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP TABLE {database.VERSION_TABLE}"))
    engine.dispose()

    with refused("belongs to another program, whose table is called 'access'"):
        Registry.open(url)


# -- addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("roll.db", "write sqlite:///path"),
        ("mysql://me:pass@host/name", r"'mysql://me:\*\*\*@host/name': .*SQLite and PostgreSQL"),
        ("sqlite://", "needs a file"),
        ("sqlite:///{tmp}/nowhere/roll.db", "No such file or directory"),
        ("sqlite:///{tmp}/text.db", "file is not a database"),
        ("postgresql://me:pass@/x?host=/nowhere&password=pass", "cannot be used"),
    ],
)
def test_what_is_no_database(url, what, tmp_path):
    (tmp_path / "text.db").write_text("no database " * 100)

    with refused(what) as caught:
        Registry.open(url.format(tmp=tmp_path))
    assert "pass" not in str(caught.value).replace("password", "")


def test_reading_makes_nothing(tmp_path):
    with refused("there is no such file"):
        Registry.read(f"sqlite:///{tmp_path}/roll.db")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "roll.db").touch()
    with refused("holds no registry"):
        Registry.read(f"sqlite:///{tmp_path}/roll.db")


def test_an_sqlite_file_is_the_same_by_every_path(tmp_path, monkeypatch, impatient):
    monkeypatch.chdir(tmp_path)
    with Registry.open("sqlite:///roll.db") as registry:
        (tmp_path / "link.db").symlink_to("roll.db")
        with refused("has a coordinator"):
            Registry.open(f"sqlite:///{tmp_path}/link.db")
        monkeypatch.chdir("/")
        join(registry, "mainz")

    with closing(sqlite3.connect(tmp_path / "roll.db")) as plain:
        assert plain.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert plain.execute("SELECT name FROM sites").fetchall() == [("mainz",)]


def test_trouble_with_a_database_is_one_sentence(registry):
    with pytest.raises(RunFailed, match="cannot be used"), registry._reading() as connection:
        connection.execute(sa.text("SELECT * FROM nothing"))


def test_versions_are_told_as_alembic_tells_them():
    from alembic.script import ScriptDirectory

    revisions = ScriptDirectory(str(database.MIGRATIONS))
    files = (database.MIGRATIONS / "versions").glob("v*.py")
    names = sorted(path.stem.removeprefix("v") for path in files)
    assert names == sorted(each.revision for each in revisions.walk_revisions())
    assert names[-1] == revisions.get_current_head()
