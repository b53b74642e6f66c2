"""What is asked about a call before its request is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from relight.errors import ModelApiDisabledError

if TYPE_CHECKING:
    from relight.api.grpc.call import Head
    from relight.security.tokens import KeyKind, TokenAuthority

_CONTROLLED = frozenset(
    f"org.pytorch.serve.grpc.management.ManagementAPIsService/{name}".encode()
    for name in ("RegisterModel", "UnregisterModel")
)
_NEEDS_NO_TOKEN = b"grpc.health.v1.Health/"


class Interceptor(Protocol):
    """Lets a call pass, or not."""

    def check(self, head: Head) -> None:
        """Look at a call.

        Raises:
            relight.errors.RelightError: it is refused.
        """


class TokenInterceptor:
    """Asks for a token (grpc_api.md §8); probes of the health service need none, as orchestrators cannot send one.

    Args:
        tokens: Who may call.
        kind: The key that the listener's services need.
    """

    def __init__(self, tokens: TokenAuthority, kind: KeyKind) -> None:
        self._tokens = tokens
        self._kind: KeyKind = kind

    def check(self, head: Head) -> None:
        """Let a call pass that carries the key."""
        if not head.path.startswith(_NEEDS_NO_TOKEN):
            self._tokens.check(self._kind, head.authorization)


class ModelControlInterceptor:
    """Refuses calls that register or unregister models, where the model API is off (grpc_api.md §6.5)."""

    def check(self, head: Head) -> None:
        """Let all other calls pass."""
        if head.path in _CONTROLLED:
            raise ModelApiDisabledError
