# SPDX-License-Identifier: Apache-2.0
"""What all commands of a site share: its folder, and its conversation with the coordinator."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from archipel.cli.logs import say
from archipel.errors import ArchipelError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine

    from archipel.federation.site.site import Site

T = TypeVar("T")
Where = Annotated[Path, typer.Option("--home", help="The site's folder.")]
Study = Annotated[str, typer.Argument(help="A study's name, or the beginning of its hash.")]
HOME = Path("site")
_PATIENCE = 10.0  # seconds that a command waits for the coordinator


def site_at(path: Path) -> Site:
    """The site of a folder."""
    from archipel.federation.site.site import Site

    return Site(path)


@cache
def _runner() -> asyncio.Runner:
    """Of all of a command's conversations: gRPC complains of loops that were closed.

    What is still under way when the command ends is cancelled, not dropped.
    """
    import asyncio
    import atexit

    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


def run(work: Coroutine[Any, Any, T]) -> T:
    """Wait for a conversation to end; return what came of it."""
    return _runner().run(work)


def asking(site: Site, ask: Callable[[Any], Awaitable[Any]]) -> bool:
    """Talk to the coordinator; whether it answered. Why not is said beside."""
    import asyncio

    from archipel.engines.network.transport import Cut

    async def main() -> None:
        link = site.link()
        try:
            async with asyncio.timeout(_PATIENCE):
                await ask(link)
        finally:
            await link.close()

    try:
        run(main())
    except (Cut, TimeoutError) as error:
        say(str(error) or f"no connection: no answer within {_PATIENCE:.0f} s.", err=True)
        return False
    return True


def readable(site: Site, study: str) -> bool | str:
    """Whether this Archipel can take part in a study, or why not."""
    try:
        site.site_studies.gist(study)
    except ArchipelError as error:
        return str(error)
    return True


def fetched(site: Site) -> None:
    """Have every study that the coordinator tells of here, if it answers."""

    async def ask(link: Any) -> None:
        for each in await site.studies(link):
            await site.fetch(link, each)

    asking(site, ask)


def known(site: Site, name: str) -> tuple[str, list[str]]:
    """The hash of a study that was fetched, if it could be, and who approved it."""
    members: list[str] = []
    fetched(site)
    found = site.site_studies.find(name)

    async def ask(link: Any) -> None:
        members.extend((await site.fetch(link, found))[1])

    asking(site, ask)
    return found, members


def rows_of(site: Site, digest: str) -> Any:
    """Training and test rows of the table that is bound for a study; None before one is."""
    from archipel.federation.site import binding
    from archipel.federation.site.exposure import Rows

    try:
        records = binding.records(site.home / "data", site.site_studies.read(digest))
    except ArchipelError:
        return None
    test = int(records.is_test.sum())
    return Rows(len(records.x) - test, test)
