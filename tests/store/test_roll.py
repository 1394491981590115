"""The roll of a federation, in SQLite and in PostgreSQL: nobody joins twice, nobody is lost."""

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
from archipel.store import roll as rolls
from archipel.store.roll import Roll

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
def roll(url):
    with Roll.open(url) as roll:
        yield roll


def join(roll, *names):
    for name in names:
        roll.invite(name, b"secret", LATER)
        roll.redeem(name, b"secret", KEY, f"1{name.encode().hex()}", LATER)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(database, "_TRIES", 2)


def refused(what):
    return pytest.raises(ArchipelError, match=what)


# -- sites -----------------------------------------------------------------------------------------


def test_a_site_joins_by_its_invitation(roll):
    roll.invite("mainz", b"secret", LATER)
    roll.redeem("mainz", b"secret", KEY, "a1", LATER)

    (site,) = roll.sites()
    assert site == roll.site("mainz")
    assert (site.name, site.identity, site.revoked, site.reason) == ("mainz", KEY, None, None)
    assert site.until == "2100-01-01T00:00:00+00:00"
    assert datetime.fromisoformat(site.joined).utcoffset() == timedelta(0)
    (invitation,) = roll.invitations()
    assert invitation.used is not None and invitation.withdrawn is None
    roll.admitted("mainz", "a1")


def test_the_secret_itself_is_nowhere(roll):
    roll.invite("mainz", b"very secret", LATER)

    with roll._reading() as connection:
        (row,) = connection.execute(sa.select(rolls.INVITATIONS))
    assert row.secret == sha256(b"very secret").hexdigest()


@pytest.mark.parametrize(
    "name", ["", "-mainz", "Mainz", "mainz\n", "a" * 41, "ma_inz", "coordinator", "invited-1"]
)
def test_names_that_no_site_may_have(name, tmp_path):
    with Roll.open(f"sqlite:///{tmp_path}/roll.db") as roll, refused("choose .*name"):
        roll.invite(name, b"secret", LATER)


def test_longest_name(roll):
    join(roll, "a" * 40)

    assert roll.site("a" * 40).name == "a" * 40


def test_an_enrolled_site_is_not_invited_again(roll):
    join(roll, "mainz")

    with refused(r"'mainz': belongs .* since .*revoke it first"):
        roll.invite("mainz", b"new", LATER)


def test_each_refusal_of_an_invitation_says_which(roll):
    def redeem(site, secret):
        roll.redeem(site, secret, KEY, "a1", LATER)

    roll.invite("mainz", b"first", LATER)
    roll.invite("mainz", b"second", LATER)
    roll.invite("trier", b"late", PAST)
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
    assert [site.name for site in roll.sites()] == ["mainz"]


def test_a_certificate_that_another_has_leaves_the_invitation_unused(roll):
    join(roll, "mainz")
    serial = f"1{b'mainz'.hex()}"
    roll.invite("trier", b"secret", LATER)

    with refused(f"certificate {serial} is on the roll already"):
        roll.redeem("trier", b"secret", KEY, serial, LATER)
    roll.redeem("trier", b"secret", KEY, "b2", LATER)
    roll.admitted("trier", "b2")


def test_who_is_admitted(roll):
    join(roll, "mainz", "trier")
    roll.renewed("mainz", "c3", LATER + timedelta(days=30))
    roll.revoke("trier", "left the\nfederation")

    roll.admitted("mainz", "c3")
    roll.admitted("mainz", f"1{b'mainz'.hex()}")
    assert roll.site("mainz").until.startswith("2100-01-31")
    assert roll.site("trier").reason == "left the federation"
    with refused("'bonn': does not belong"):
        roll.admitted("bonn", "c3")
    with refused("'trier': was revoked on .* \\(left the federation\\)"):
        roll.admitted("trier", f"1{b'trier'.hex()}")
    with refused("'mainz': certificate 99 is none of"):
        roll.admitted("mainz", "99")
    with refused("'mainz': certificate 1.* is none of"):
        roll.admitted("mainz", f"1{b'trier'.hex()}")
    with refused("'trier': was revoked"):
        roll.renewed("trier", "d4", LATER)
    with refused("unknown site 'mains': did you mean 'mainz'"):
        roll.site("mains")


def test_admission_is_one_query(roll):
    join(roll, "mainz")
    asked = []
    sa.event.listen(roll._engine, "before_cursor_execute", lambda *call: asked.append(call[2]))
    roll.admitted("mainz", f"1{b'mainz'.hex()}")

    assert len([each for each in asked if each != "BEGIN"]) == 1


def test_a_revoked_site_comes_back_with_new_keys_only(roll):
    join(roll, "mainz")
    roll.revoke("mainz", "key stolen")
    roll.invite("mainz", b"again", LATER)
    roll.redeem("mainz", b"again", OTHER, "b2", LATER)

    roll.admitted("mainz", "b2")
    assert (roll.site("mainz").identity, roll.site("mainz").revoked) == (OTHER, None)
    with refused("is none of"):
        roll.admitted("mainz", f"1{b'mainz'.hex()}")


def test_revoking(roll):
    join(roll, "mainz")
    roll.invite("trier", b"secret", LATER)
    roll.revoke("mainz", "left")
    roll.revoke("trier", "invited by mistake")

    with refused("'mainz': was revoked already"):
        roll.revoke("mainz", "left")
    with refused("unknown site 'bonn'"):
        roll.revoke("bonn", "left")
    with refused("was withdrawn"):
        roll.redeem("trier", b"secret", KEY, "b2", LATER)


# -- studies ---------------------------------------------------------------------------------------


def test_a_study_is_its_bytes(roll):
    first = roll.submit("heart", b"[study]\n")
    again = roll.submit("heart again", b"[study]\n")
    other = roll.submit("heart", b"[study]\n\n")

    assert first == again == sha256(b"[study]\n").hexdigest() != other
    assert [each.hash for each in roll.studies()] == [first, other]
    study = roll.study(first)
    assert (study.name, study.text, study.state, study.note) == ("heart", b"[study]\n", "open", "")


def test_a_study_may_be_for_some_sites(roll):
    """M8: for others it is as if there were no such study."""
    join(roll, "mainz", "trier")
    roll.invite("bonn", b"secret", LATER)
    everybodys = roll.submit("heart", b"heart")
    theirs = roll.submit("lung", b"lung", ["mainz", "bonn"])
    roll.submit("heart", b"heart", ["trier"])

    assert [each.hash for each in roll.studies("mainz")] == [everybodys, theirs]
    assert [each.hash for each in roll.studies("trier")] == [everybodys]
    assert roll.study(theirs, "bonn").name == "lung"
    with refused("no study here has this hash") as hidden:
        roll.study(theirs, "trier")
    with refused("no study here has this hash") as absent:
        roll.study("0" * 64, "trier")
    assert str(hidden.value).replace(theirs, "") == str(absent.value).replace("0" * 64, "")
    assert roll.named(theirs) == ["bonn", "mainz"] and roll.named(everybodys) == ["trier"]
    roll.submit("lung", b"lung", ["trier"])
    assert roll.study(theirs, "trier").name == "lung"


def test_a_study_is_for_sites_that_there_are(roll):
    join(roll, "mainz", "trier")
    roll.revoke("trier", "left")

    for name in ("mains", "trier"):
        with refused(f"unknown site '{name}'"):
            roll.submit("heart", b"heart", ["mainz", name])
    assert roll.studies() == []


def test_states(roll):
    study = roll.submit("heart", b"\x00\xff")
    roll.set_state(study, "failed", "below quorum")

    assert roll.study(study)[-2:] == ("failed", "below quorum")
    assert roll.study(study).text == b"\x00\xff"
    with refused("unknown state of a study 'finished'"):
        roll.set_state(study, "finished", "")
    for wrong in ("0" * 64, "\x00", study[:12]):
        with refused("no study here has this hash"):
            roll.set_state(wrong, "done", "")


def test_the_latest_decision_counts(roll):
    join(roll, "bonn", "mainz", "trier", "worms")
    study = roll.submit("heart", b"text")
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
        roll.decide(study, site, decision, {"points": number, "note": "ü"}, bytes([number]))

    latest = roll.decisions(study)
    assert [(each.site, each.decision) for each in latest] == [
        ("trier", "approved"),
        ("bonn", "withdrawn"),
        ("mainz", "approved"),
        ("worms", "rejected"),
    ]
    assert [each.signature for each in latest] == [b"\x06", b"\x07", b"\x04", b"\x00"]
    assert latest[0].facts == {"points": 6, "note": "ü"} and latest[0].identity == KEY
    assert [each.facts["points"] for each in roll.history(study)] == list(range(8))
    assert roll.decisions(roll.submit("other", b"other")) == []


def test_decisions_signed_by_a_lost_key_count_no_more(roll):
    join(roll, "mainz")
    study = roll.submit("heart", b"text")
    roll.decide(study, "mainz", "approved", {}, b"by the first key")
    roll.revoke("mainz", "key stolen")
    roll.invite("mainz", b"again", LATER)
    roll.redeem("mainz", b"again", OTHER, "b2", LATER)

    assert roll.decisions(study) == []
    assert [each.identity for each in roll.history(study)] == [KEY]


def test_a_place_is_what_decisions_and_seats_say(roll):
    join(roll, "mainz", "ulm")
    first, second = roll.submit("s", b"text"), roll.submit("t", b"other")
    nothing = (KEY, None, None)
    assert roll.place(first, "mainz") == nothing == roll.place("no hash", "ulm")

    for study, site, decision in [
        (first, "ulm", "approved"),
        (first, "mainz", "rejected"),
        (first, "mainz", "approved"),
        (second, "mainz", "approved"),
        (second, "mainz", "withdrawn"),
    ]:
        roll.decide(study, site, decision, {}, b"s")
    roll.number(first)

    assert roll.place(first, "mainz") == (KEY, "approved", 0)
    assert roll.place(second, "mainz") == (KEY, "withdrawn", None)
    roll.revoke("mainz", "left")
    with refused("was revoked"):
        roll.place(first, "mainz")
    roll.invite("mainz", b"secret", LATER)
    roll.redeem("mainz", b"secret", OTHER, "a9", LATER)
    assert roll.place(first, "mainz") == (OTHER, None, 0)  # it decides anew


def test_who_may_decide_what(roll):
    join(roll, "mainz", "trier")
    study = roll.submit("heart", b"text")
    roll.revoke("trier", "left")

    with refused("unknown decision 'maybe'"):
        roll.decide(study, "mainz", "maybe", {}, b"")
    with refused("facts of site 'mainz': are no JSON"):
        roll.decide(study, "mainz", "approved", {"mean": float("nan")}, b"")
    with refused("no study here has this hash"):
        roll.decide("0" * 64, "mainz", "approved", {}, b"")
    with refused("'bonn': does not belong"):
        roll.decide(study, "bonn", "approved", {}, b"")
    with refused("'trier': was revoked"):
        roll.decide(study, "trier", "approved", {}, b"")
    with refused("no study here has this hash"):
        roll.decisions("0" * 64)


def approve(roll, study, *sites):
    for site in sites:
        roll.decide(study, site, "approved", {}, b"signature")


def test_numbers_go_by_name_and_are_for_ever(roll):
    """E6: whoever approves first, numbers are the same."""
    join(roll, "mainz", "trier", "bonn", "aachen", "worms")
    heart, lung = roll.submit("heart", b"heart"), roll.submit("lung", b"lung")
    approve(roll, heart, "trier", "mainz", "bonn", "worms")
    roll.decide(heart, "worms", "withdrawn", {}, b"signature")

    assert roll.seats(heart) == []
    assert roll.number(heart) == ["bonn", "mainz", "trier"]
    approve(roll, heart, "worms", "aachen")
    roll.decide(heart, "mainz", "withdrawn", {}, b"signature")
    assert roll.number(heart) == ["bonn", "mainz", "trier", "aachen", "worms"] == roll.seats(heart)
    assert roll.number(lung) == []
    with refused("no study here"):
        roll.number("0" * 64)


def test_a_revoked_site_decides_nothing_and_gets_no_number(roll):
    """H4: its approval counts no more, whenever numbers are given."""
    join(roll, "mainz", "trier", "bonn")
    study = roll.submit("heart", b"heart")
    approve(roll, study, "trier", "mainz")
    roll.revoke("mainz", "left")

    assert [each.site for each in roll.decisions(study)] == ["trier"]
    assert roll.number(study) == ["trier"]
    assert [each.site for each in roll.history(study)] == ["trier", "mainz"]


# -- several at once -------------------------------------------------------------------------------


def at_once(url, calls):
    """Results or refusals of calls that start together, each with a connection of its own."""
    barrier = Barrier(len(calls))

    def run(call):
        with Roll.read(url) as roll:
            barrier.wait()
            try:
                return call(roll)
            except ArchipelError as error:
                return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_one_of_many_redeems_wins(url, roll):
    for number in range(3):
        name = f"site-{number}"
        roll.invite(name, b"secret", LATER)

        def redeem(each, key, name=name):
            each.redeem(name, b"secret", bytes([key]) * 32, f"{name}{key}".encode().hex(), LATER)
            return key

        found = at_once(url, [lambda each, key=key: redeem(each, key) for key in range(8)])
        winners = [each for each in found if isinstance(each, int)]
        losers = [str(each) for each in found if not isinstance(each, int)]

        assert len(winners) == 1 and len(losers) == 7
        assert all("was used already" in each for each in losers)
        assert roll.site(name).identity == bytes(winners) * 32


def test_numbers_under_many_calls(url, roll):
    names = [f"site-{number}" for number in range(5)]
    join(roll, *names)
    study = roll.submit("heart", b"text")

    def approves(each, name):
        approve(each, study, name)
        return each.number(study)

    found = at_once(url, [lambda each, name=name: approves(each, name) for name in names * 2])
    seats = roll.seats(study)
    assert sorted(seats) == names
    assert all(seats[: len(each)] == each for each in found)


# -- the lease -------------------------------------------------------------------------------------


def coordinator(url, worker=False):
    """Fork a process that opens the roll, and one from that if asked; its pid and what it says."""
    said, says = os.pipe()
    hold, held = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(held)
        try:
            roll = Roll.open(url)
            if worker and os.fork() == 0:
                os.read(hold, 1)  # until the test ends
                os._exit(0)
            os.write(says, b"open")
            os.read(hold, 1)
            roll.close()
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
            Roll.open(url)
        with Roll.read(url) as beside:
            beside.invite("mainz", b"secret", LATER)

        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with Roll.open(url) as roll:
            roll.redeem("mainz", b"secret", KEY, "a1", LATER)
    finally:
        os.close(held)


def test_closing_gives_the_lease_back(url, impatient):
    Roll.open(url).close()
    with Roll.open(url), refused("stop that one"):
        Roll.open(url)
    with Roll.open(url) as roll:
        assert roll.sites() == []
    roll.close()
    with refused("open it again"):
        roll.invite("mainz", b"secret", LATER)


def end_session(server):
    """Have the server drop the connection that is the lease."""
    with server.connect() as connection:
        query = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        assert connection.execute(query).fetchall() == [(True,)]


def test_a_lost_connection_is_no_lost_lease(server, impatient):
    url = server.address()
    with Roll.open(url) as roll:
        end_session(server)
        roll.invite("mainz", b"secret", LATER)

        with refused("has a coordinator"):
            Roll.open(url)


def test_a_lease_that_another_took_is_lost(server, impatient):
    url = server.address()
    with Roll.open(url) as roll:
        end_session(server)
        with Roll.open(url):
            for _ in range(2):
                with refused("has a coordinator"):
                    roll.invite("mainz", b"secret", LATER)
        roll.invite("mainz", b"secret", LATER)


# -- whose it is ----------------------------------------------------------------------------------


def test_two_federations_share_no_database(url):
    """E8: the first coordinator's authority has it for good."""
    Roll.open(url, "a" * 64, claims=False).close()
    Roll.open(url, "b" * 64).close()

    for enter in (Roll.open, Roll.read):
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


def tables(roll):
    with roll._reading() as connection:
        names = sa.inspect(connection).get_table_names()
        return {name: connection.execute(sa.text(f"SELECT * FROM {name}")).all() for name in names}


def test_migrations_make_the_tables_that_queries_use(roll):
    with roll._reading() as connection:
        options = {"version_table": database.VERSION_TABLE}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, [rolls.METADATA, journal.METADATA]) == []


def test_opening_again_changes_nothing(url):
    with Roll.open(url) as roll:
        join(roll, "mainz")
        roll.decide(roll.submit("heart", b"text"), "mainz", "approved", {}, b"signature")
        before = tables(roll)
    with Roll.open(url) as roll:
        assert tables(roll) == before


def test_a_later_version_adds_a_column_and_is_refused_by_this_one(url, tmp_path, monkeypatch):
    with Roll.open(url) as roll:
        join(roll, "mainz")
        study = roll.submit("heart", b"text")
        roll.decide(study, "mainz", "approved", {}, b"signature")
    folder = tmp_path / "100% later"
    shutil.copytree(database.MIGRATIONS, folder)
    (folder / "versions" / "v004.py").write_text(NEXT)
    with monkeypatch.context() as later:
        later.setattr(database, "MIGRATIONS", folder)
        with refused("has tables of version 003 and this Archipel needs version 004"):
            Roll.read(url)
        with Roll.open(url) as roll:
            assert tables(roll)["sites"][0].contact == "none"
            assert roll.site("mainz").identity == KEY and roll.study(study).text == b"text"
            assert [each.site for each in roll.decisions(study)] == ["mainz"]

    for refuse in (Roll.open, Roll.read, Roll.open):
        with refused("newer Archipel .*version 004, this one knows 003"):
            refuse(url)


def test_a_database_of_the_first_version_gets_the_tables_of_runs(url, tmp_path, monkeypatch):
    first = tmp_path / "first"
    shutil.copytree(database.MIGRATIONS, first)
    for later in ("v002.py", "v003.py"):
        (first / "versions" / later).unlink()
    with monkeypatch.context() as earlier:
        earlier.setattr(database, "MIGRATIONS", first)
        with Roll.open(url) as roll:
            join(roll, "mainz")
            before = tables(roll)
            assert "runs" not in before

    with Roll.open(url) as roll:
        after = tables(roll)
        assert {name: after[name] for name in before if name != database.VERSION_TABLE} == {
            name: rows for name, rows in before.items() if name != database.VERSION_TABLE
        }
        assert all(after[name] == [] for name in journal.METADATA.tables)


def test_a_failed_migration_leaves_what_was_there(url, tmp_path, monkeypatch):
    with Roll.open(url) as roll:
        before = tables(roll)
    folder = tmp_path / "later"
    shutil.copytree(database.MIGRATIONS, folder)
    broken = NEXT.replace('studies.alter_column("note", nullable=True)', "raise ValueError")
    (folder / "versions" / "v004.py").write_text(broken)
    with monkeypatch.context() as later:
        later.setattr(database, "MIGRATIONS", folder)
        with pytest.raises(ValueError):
            Roll.open(url)

    with Roll.open(url) as roll:
        assert tables(roll) == before


def test_a_database_of_another_program(url):
    Roll.open(url).close()
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP TABLE {database.VERSION_TABLE}"))
    engine.dispose()

    with refused("belongs to another program, whose table is called 'access'"):
        Roll.open(url)


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
        Roll.open(url.format(tmp=tmp_path))
    assert "pass" not in str(caught.value).replace("password", "")


def test_reading_makes_nothing(tmp_path):
    with refused("there is no such file"):
        Roll.read(f"sqlite:///{tmp_path}/roll.db")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "roll.db").touch()
    with refused("holds no roll"):
        Roll.read(f"sqlite:///{tmp_path}/roll.db")


def test_an_sqlite_file_is_the_same_by_every_path(tmp_path, monkeypatch, impatient):
    monkeypatch.chdir(tmp_path)
    with Roll.open("sqlite:///roll.db") as roll:
        (tmp_path / "link.db").symlink_to("roll.db")
        with refused("has a coordinator"):
            Roll.open(f"sqlite:///{tmp_path}/link.db")
        monkeypatch.chdir("/")
        join(roll, "mainz")

    with closing(sqlite3.connect(tmp_path / "roll.db")) as plain:
        assert plain.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert plain.execute("SELECT name FROM sites").fetchall() == [("mainz",)]


def test_trouble_with_a_database_is_one_sentence(roll):
    with pytest.raises(RunFailed, match="cannot be used"), roll._reading() as connection:
        connection.execute(sa.text("SELECT * FROM nothing"))
