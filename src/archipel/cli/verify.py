# SPDX-License-Identifier: Apache-2.0
"""`archipel verify`: what anybody can check of a bulletin, and who cheated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archipel.cli import options as o

if TYPE_CHECKING:
    from archipel.verifiable.verification import Outcome

BulletinFile = Annotated[
    Path, typer.Argument(metavar="BULLETIN", help="A bulletin.", show_default=False)
]
Head = Annotated[
    str | None,
    typer.Option(
        metavar="HASH", help="The hash of a line that you kept: that the log still has it."
    ),
]


def verify(bulletin: BulletinFile, head: Head = None, as_json: o.Json = False) -> None:
    """Check a bulletin: every signature and every proof of every party, offline.

    \b
    Says the verified mean with the deviation of its noise and its epsilon; or names who cheated and
    how, and exits with 1. Where the file was changed or cut, it says that, and charges nobody.

    \b
    Examples:
      archipel verify bulletin.jsonl
      archipel verify bulletin.jsonl --head 5f1c...e2 --json
    """
    from archipel.errors import clean
    from archipel.verifiable.verification import in_plain
    from archipel.verifiable.verification import verify as check

    verdict = check(bulletin, head)
    if as_json:
        o.print_json(in_plain(verdict))
    else:
        for fault in verdict.faults:
            print(clean(f"{fault.party or 'the bulletin'}: {fault.kind}: {fault.detail}."))
        for number, outcome in enumerate(verdict.outcomes, 1):
            for line in _told(outcome, f"Run {number}" if len(verdict.outcomes) > 1 else "The run"):
                print(clean(line))
        for name, cost in verdict.together.items():
            print(
                clean(f"All runs on {name or 'data without a name'} together: epsilon {cost:.3g}.")
            )
        if any(each.of_the_log for each in verdict.told):
            print(
                "Nobody is charged, since whoever held the file may have done that: get an "
                "unchanged copy, and compare it with a hash that somebody kept (--head)."
            )
        if verdict.right:
            print("Every signature and every proof holds.")
        print(f"{verdict.entries} entries; the last has the hash {verdict.head}.")
    if not verdict.right:
        raise typer.Exit(1)


def _told(outcome: Outcome, run: str) -> list[str]:
    """An outcome, line by line."""
    lines = [
        f"{each.party or ('the bulletin' if each.of_the_log else 'the keeper')}: {each.kind}: "
        f"{each.detail}."
        for each in outcome.faults
    ]
    if any(each.of_the_log for each in outcome.faults):
        return [*lines, f"{run} has no verified mean."]
    if outcome.mean is None:
        return [*lines, f"{run} has no verified mean: it must be repeated without those named."]
    return [
        *lines,
        f"{run} has a verified mean of {len(outcome.counted)} of {outcome.parties} parties:",
        *(
            f"  {name}: {mean:.6g} ± {deviation:.3g}"
            for name, mean, deviation in zip(
                outcome.names, outcome.mean, outcome.deviation, strict=True
            )
        ),
        "± is one deviation of the noise that all coins made.",
        f"It costs every {outcome.protected} epsilon {outcome.epsilon:.3g} at delta "
        f"{outcome.delta:g}, if {outcome.honest:.0%} of the parties are honest.",
        *(
            [f"Nobody kept the bulletin; sealed by {len(outcome.sealed)} parties: "
             f"{', '.join(outcome.sealed)}."]
            if outcome.sealed else []
        ),
    ]  # fmt: skip
