"""`archipel`, killed with signal 9 at one moment of a round.

    KILLED="charged 3" python -m network.killed site up --home site

The moments of a site: its secrets are kept, the round is charged, computed, kept, signed, sent. Of
a coordinator: all uploads are there, the mean is made, the round is in the journal. Rounds are
counted from 0.
"""

import os
import signal

from archipel.cli import main
from archipel.engines.network.party_loop import PartyLoop
from archipel.engines.network.party_state import PartyState
from archipel.engines.network.server import Steps
from archipel.federation.site.ledger import Charging
from archipel.federation.site.site import Site
from archipel.runs.recording import Recorder

SITE = ("secrets kept", "charged", "computed", "kept", "signed", "sent")
COORDINATOR = ("gathered", "averaged", "committed")


def _ends(kind, name, moments, is_it):
    """Have a method end the process, before or after its work, where `is_it` says so."""
    before, after = moments
    whole = getattr(kind, name)

    def method(self, *args, **kwargs):
        if before == MOMENT and is_it(self, *args, **kwargs):
            os.kill(os.getpid(), signal.SIGKILL)
        found = whole(self, *args, **kwargs)
        if after == MOMENT and is_it(self, *args, **kwargs):
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(kind, name, method)


def _sent(self, kind, arrays=(), **fields):
    async def asked():
        answer = await _ask(self, kind, arrays, **fields)
        if MOMENT == "sent" and kind == "upload" and fields["round"] == ROUND:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    return asked()


_ask = PartyLoop._ask

if __name__ == "__main__":
    MOMENT, _, number = os.environ.pop("KILLED").rpartition(" ")
    ROUND = int(number)
    _ends(Charging, "__call__", SITE[:2], lambda _, t, *__: t == ROUND)
    _ends(PartyState, "work", (None, "computed"), lambda _, t, *__: t == ROUND)
    _ends(
        Site, "sign", SITE[3:5],
        lambda _, letter: letter.kind == "upload" and letter["round"] == ROUND,
    )  # fmt: skip
    _ends(Steps, "take", COORDINATOR[:2], lambda self, *_: self.t == ROUND)
    _ends(Recorder, "round", (None, "committed"), lambda self, *_: self.rounds == ROUND + 1)
    PartyLoop._ask = _sent
    main()
