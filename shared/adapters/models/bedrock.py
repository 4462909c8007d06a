"""Bedrock: the one SDK that blocks threads, and takes its settings when its client is built."""

from __future__ import annotations

import socket
from contextlib import aclosing, suppress
from contextvars import ContextVar
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import NoRegionError
from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.providers.bedrock import BedrockProvider

from shared.adapters.models.pydantic_ai import PydanticAIModel
from shared.core.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from shared.core.model import ModelPart, ModelRequest

_CONNECT = 5
_CONNECTIONS = 50


class _Wait:
    """A call whose answer has not begun: the socket on which a thread waits, and how to end it."""

    def __init__(self) -> None:
        self._socket: Any = None
        self._over = False

    def begin(self, sock: Any) -> None:
        self._socket = sock
        if self._over:  # the call was given up while its request was being sent
            self.end()

    def begun(self) -> None:
        self._socket = None

    def end(self) -> None:
        self._over, sock = True, self._socket
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


_wait: ContextVar[_Wait | None] = ContextVar("_wait", default=None)


class BedrockModel(PydanticAIModel):
    """Calls one model on Bedrock."""

    def __init__(self, model: str, name: str, *, silence: float) -> None:
        """Make the client; `silence` in seconds cuts a call.

        Raises:
            Misconfigured: AWS is told no region.
        """
        config = Config(
            retries={"total_max_attempts": 1},
            read_timeout=silence,
            connect_timeout=_CONNECT,
            max_pool_connections=_CONNECTIONS,
        )
        try:
            client = boto3.client("bedrock-runtime", config=config)
        except NoRegionError as error:
            text = f'model "{name}" needs a region: set AWS_DEFAULT_REGION'
            raise Misconfigured(text) from error
        _note_sockets(client)
        super().__init__(
            BedrockConverseModel(model, provider=BedrockProvider(bedrock_client=client)), name, {}
        )

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelPart, None]:
        """Stream one answer; closing or cancelling it closes the connection.

        A thread waits for the first byte, and nobody else would end it: it would go on for as long
        as the provider is silent, also when the process is to exit.

        Raises:
            ModelFailed: the call failed, or its stream broke or ended early.
        """
        wait = _Wait()
        _wait.set(wait)
        try:
            async with aclosing(super().stream(request)) as parts:
                async for part in parts:
                    wait.begun()  # closing the stream closes the connection from here on
                    yield part
        finally:
            wait.end()


def _note_sockets(client: Any) -> None:
    """Have the client's connections note their sockets; botocore has no public way to them."""
    with suppress(AttributeError):
        pools = client._endpoint.http_session._pool_classes_by_scheme
        pools.update({scheme: _noting(pool) for scheme, pool in pools.items()})


def _noting(pool: Any) -> Any:
    class Connection(pool.ConnectionCls):  # type: ignore[misc]  # as the pool has it
        def getresponse(self) -> Any:
            wait = _wait.get()
            if wait is None:
                return super().getresponse()
            wait.begin(self.sock)
            response = super().getresponse()
            if response.status != HTTPStatus.OK:
                wait.begun()  # a failure is read whole, and the connection is used again
            return response

    return type(pool.__name__, (pool,), {"ConnectionCls": Connection})
