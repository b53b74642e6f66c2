"""What both clients are made of: two transports, and the limits of their calls."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from relight.client.endpoint import parse
from relight.client.errors import Unsupported
from relight.client.keys import KeyFile

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from relight.client.endpoint import TLS, Endpoint
    from relight.client.keys import TokenSource

__all__ = ["DEFAULT_TIMEOUT_S", "Links", "given", "limit", "new_sequence_id"]

TransportT = TypeVar("TransportT")

DEFAULT_TIMEOUT_S = 60.0


class Links(Generic[TransportT]):
    """The transports to the inference and the management API.

    Args:
        connect: Makes a transport.
        url: Address of the inference API.
        management: Address of the management API.
        token: Token for the one.
        management_token: Token for the other.
        key_file: Where to read the tokens that are not given.
        tls: For secure addresses.

    Raises:
        ValueError: An address is wrong.
    """

    def __init__(
        self,
        connect: Callable[[Endpoint, TokenSource | None, TLS | None], TransportT],
        url: str,
        management: str | None,
        token: TokenSource | None,
        management_token: TokenSource | None,
        key_file: str | os.PathLike[str] | None,
        tls: TLS | None,
    ) -> None:
        self.keys = None if key_file is None else KeyFile(key_file)
        if self.keys is not None:
            token = self.keys.inference if token is None else token
            management_token = self.keys.management if management_token is None else management_token
        endpoint = parse(url)
        management_endpoint = None if management is None else parse(management)
        self.inference = connect(endpoint, token, tls)
        self._management = None if management_endpoint is None else connect(management_endpoint, management_token, tls)

    @property
    def management(self) -> TransportT:
        """The transport to the management API.

        Raises:
            Unsupported: The client was made without its address.
        """
        if self._management is None:
            raise Unsupported(
                "this needs the management API: give its address, as in management='http://127.0.0.1:8081'"
            )
        return self._management

    @property
    def all(self) -> tuple[TransportT, ...]:
        """Every transport."""
        return (self.inference,) if self._management is None else (self.inference, self._management)

    def api_key(self, key: str | None) -> str:
        """Return the key that renews tokens.

        Raises:
            ValueError: It is not given, and there is no key file.
        """
        if key is not None:
            return key
        if self.keys is None:
            raise ValueError("tokens are renewed with the API key: give it, or make the client with key_file=")
        return self.keys.keys().api


def limit(timeout: float | None, default: float) -> float | None:
    """Return the limit of a call: the default one if none is given; None, which is no limit, for infinity."""
    seconds = default if timeout is None else timeout
    return None if math.isinf(seconds) else seconds


def given(**options: Any) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def new_sequence_id() -> str:
    """Return a name for a sequence that nobody else uses."""
    return f"relight-{uuid.uuid4()}"
