# SPDX-License-Identifier: Apache-2.0
"""Conversations over gRPC, always with mutual TLS.

One method carries all: a stream of byte strings each way. A site opens it, to the coordinator's
one port, directly or through an HTTP CONNECT proxy (gRPC reads `https_proxy` and `no_proxy`). Who
asks is the common name of the certificate that TLS checked, never what a letter says.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import resource
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what goes wrong is told by whom it concerns
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # nothing here forks with a channel open
import grpc

from archipel.engines.network.failures import Goal, explain
from archipel.engines.network.letters import Letter
from archipel.engines.network.transport import SMALL, Answer, Cut, Partials, ask, serve
from archipel.errors import ArchipelError, RunFailed

_METHOD = "/archipel.Federation/Converse"
_OPTIONS = [
    ("grpc.keepalive_time_ms", 20_000),  # an idle link that a firewall dropped is noticed
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_receive_message_length", 2 << 20),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 20_000),  # also how long connecting may take, with TLS
    ("grpc.max_reconnect_backoff_ms", 5_000),
]
_SERVER = [
    ("grpc.so_reuseport", 0),  # nobody else listens on the same port
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_concurrent_streams", 128),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.max_connection_age_ms", 86_400_000),  # certificates are looked at anew every day
]
_AT_ONCE = 64  # conversations of one caller, which may take part in several studies
_FILES = 1 << 16  # that are open at once; the usual limit is 1024


@dataclass(frozen=True)
class Credentials:
    """What one side shows, and whom it trusts: PEM."""

    key: bytes = field(repr=False)
    chain: bytes
    authority: bytes


class _Stream:
    """A gRPC stream of either side; each piece there or back is waited for so long."""

    def __init__(
        self,
        read: Callable[[], Any],
        write: Callable[[bytes], Any],
        patience: float | None = None,
    ) -> None:
        self._read, self._write, self._patience = read, write, patience

    async def send(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await self._write(data)
        except TimeoutError:
            raise Cut("the other side takes nothing.") from None
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
            raise _cut(error) from None

    async def receive(self) -> bytes:
        try:
            async with asyncio.timeout(self._patience):
                data = await self._read()
        except TimeoutError:
            raise Cut("the other side sends nothing.") from None
        except (grpc.RpcError, grpc.aio.BaseError) as error:
            raise _cut(error) from None
        if data is grpc.aio.EOF:
            raise Cut("the other side ended the conversation.")
        return bytes(data)


def _cut(error: Exception) -> Cut:
    details = error.details() if isinstance(error, grpc.aio.AioRpcError) else None
    return Cut(f"no connection: {details or type(error).__name__}.")


class GrpcLink:
    """A site's way to its coordinator, or to another peer."""

    def __init__(self, address: str, name: str, credentials: Credentials, most: int = SMALL):
        """`most` is how large an answer may be; whoever expects a model says so."""
        self._partials, self.most, self.pieces = Partials(), most, 0
        self._goal = Goal(address, name, credentials.chain, credentials.authority)
        self._channel = grpc.aio.secure_channel(
            f"dns:///{address}",  # a name or an IP address, and never a scheme
            grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.chain),
            [*_OPTIONS, ("grpc.ssl_target_name_override", name)],
        )
        self._method = self._channel.stream_stream(_METHOD)

    async def ask(self, letter: Letter) -> Letter:
        call = self._method()
        try:
            stream = _Stream(call.read, call.write)
            answer = await ask(stream, letter, self._partials, self.most, self._came)
            await call.done_writing()
            return answer
        except Cut:
            code = None
            with suppress(TimeoutError):  # why comes a moment after the cut itself
                async with asyncio.timeout(1.0):
                    code = await call.code()
            if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
                raise ArchipelError(f"{self._goal.name} refuses: {await call.details()}") from None
            if code == grpc.StatusCode.UNAVAILABLE:
                raise Cut(await explain(await call.details() or "", self._goal)) from None
            raise
        finally:
            call.cancel()

    def _came(self) -> None:
        self.pieces += 1

    async def close(self) -> None:
        await self._channel.close()


@dataclass(frozen=True)
class Caller:
    """Who is at the other end, by its certificate."""

    name: str
    certificate: bytes  # PEM


def _allow_files() -> None:
    """As many open files as the system lets a process have: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _end(context: Any, code: Any, why: str) -> None:
    """End a conversation with a reason, unless it is over: the caller is gone, or the server is."""
    try:
        await context.abort(code, why)
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError:
        pass


class GrpcServer:
    """The coordinator's port."""

    def __init__(
        self,
        answer: Answer,
        admit: Callable[[Caller], str],
        most: Callable[[str], int] = lambda _: 1 << 62,
        patience: float = 120.0,
        moved: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`admit` returns the name under which a caller is known, or raises what it is told.

        A caller that for `patience` seconds sends no piece, or takes none, is cut off; `moved` is
        told of every piece of a large letter.
        """
        self._answer, self._admit, self._most = answer, admit, most
        self._patience, self._moved = patience, moved
        self._partials = Partials()
        self._talking: Counter[str] = Counter()  # conversations under way, by caller
        self._server: Any = None

    async def start(self, address: str, credentials: Credentials) -> int:
        """Listen, and return the port."""
        _allow_files()
        self._server = grpc.aio.server(options=[*_OPTIONS, *_SERVER])
        handler = grpc.stream_stream_rpc_method_handler(self._converse)
        service, _, method = _METHOD[1:].partition("/")
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        tls = grpc.ssl_server_credentials(
            [(credentials.key, credentials.chain)],
            credentials.authority,
            require_client_auth=True,
        )
        try:
            port = self._server.add_secure_port(address, tls)
        except RuntimeError:
            port = 0
        if port == 0:
            raise ArchipelError(f"address {address}: cannot listen there; is the port in use?")
        await self._server.start()
        return int(port)

    async def _converse(self, _: Any, context: Any) -> None:
        auth = context.auth_context()
        names = auth.get("x509_common_name", [])
        pem = auth.get("x509_pem_cert", [])
        if len(names) != 1 or len(pem) != 1:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no certificate with a name")
        try:
            name = self._admit(Caller(names[0].decode(), pem[0]))
        except RunFailed:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no answer now")
        except ArchipelError as error:
            with suppress(TimeoutError):  # a caller that still writes would not learn why
                async with asyncio.timeout(5.0):
                    await context.read()
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        if self._talking[name] >= _AT_ONCE:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many conversations")
        self._talking[name] += 1
        try:
            stream = _Stream(context.read, context.write, self._patience)
            moved = functools.partial(self._moved, name)
            await serve(stream, name, self._answer, self._partials, self._most, moved)
        except Cut:
            await _end(context, grpc.StatusCode.ABORTED, "cut")
        except ArchipelError:  # the fault is not the caller's: it asks again
            await _end(context, grpc.StatusCode.UNAVAILABLE, "no answer now")
        except Exception:  # nobody foresaw it; why is not the caller's business
            logging.getLogger("archipel").exception("a letter of %s could not be answered", name)
            await _end(context, grpc.StatusCode.INTERNAL, "no answer")
        finally:
            self._talking[name] -= 1
            if not self._talking[name]:
                del self._talking[name]

    async def stop(self, grace: float = 0.0) -> None:
        if self._server is not None:
            await self._server.stop(grace)
