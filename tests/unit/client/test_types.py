"""What a type checker makes of a program that uses the client; nothing here runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from numpy.typing import NDArray
    from typing_extensions import assert_type

    from relight.client import AsyncClient, Client, Health, ModelDescription, ModelEntry, Prediction

    def waiting(client: Client) -> None:
        assert_type(client.ping(), Health)
        assert_type(client.predict("m", b""), Prediction)
        assert_type(client.predict("m", {"a": 1}, version="1", timeout=2).content, bytes)
        assert_type(client.stream("m", "x"), Generator[bytes, None, None])
        assert_type(client.infer("m", {"x": [1.0]}), dict[str, NDArray[Any]])
        assert_type(client.models(), list[ModelEntry])
        assert_type(client.describe("m"), ModelDescription)
        assert_type(client.register("m.mar"), str)
        with client.session("m") as session:
            assert_type(session.predict(b""), Prediction)
            for answer in session:
                assert_type(answer, Prediction)
        assert_type(client.stream_sequence("m", [b""]), Generator[Prediction, None, None])
        with client as same:
            assert_type(same, Client)
        client.predict("m")  # type: ignore[call-arg]
        client.renew_token("other")  # type: ignore[arg-type]

    async def asynchronous(client: AsyncClient) -> None:
        assert_type(await client.ping(), Health)
        assert_type(await client.predict("m", b""), Prediction)
        assert_type(client.stream("m", "x"), AsyncGenerator[bytes, None])
        assert_type(await client.infer("m", {"x": [1.0]}), dict[str, NDArray[Any]])
        assert_type(await client.models(), list[ModelEntry])
        assert_type(await client.wait_ready("m"), ModelDescription)
        async with client.session("m") as session:
            assert_type(await session.predict(b""), Prediction)
            async for answer in session:
                assert_type(answer, Prediction)
