"""Writes a tale and sends it character by character, as the network comes up with them."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from model import CHARACTERS, END, LONGEST

from ts.handler_utils.utils import send_intermediate_predict_response
from ts.torch_handler.base_handler import BaseHandler
from ts.utils.util import PredictionException

MOST_TALES = 10_000


class Wish(NamedTuple):
    """What a client asks for; the README describes it."""

    prompt: str = ""
    tales: int = 1
    temperature: float = 0.5
    seed: int | None = None


class StorytellerHandler(BaseHandler):
    """Streams one answer at a time: a batch of them would keep the short ones waiting for the longest."""

    def initialize(self, context: Any) -> None:
        """Load the model.

        Raises:
            ValueError: The model was registered with batches.
        """
        if context.system_properties["batch_size"] != 1:
            raise ValueError("this handler answers one request at a time: leave batch_size at 1")
        # One step is too little work for more threads.
        torch.set_num_threads(1)
        super().initialize(context)

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[str]:
        """Send every character as a part of its own; the last line's end is what is returned.

        Raises:
            PredictionException: The request asks for what cannot be (400).
        """
        wish = read_wish(data[0])
        context.set_response_content_type(0, "text/plain; charset=utf-8")
        for character in self.write(wish):
            if context.is_cancelled():
                break
            send_intermediate_predict_response([character], context.request_ids, "", 200, context)
        return [END]

    def write(self, wish: Wish) -> Iterator[str]:
        """Yield the characters of the tales, with line ends between them."""
        chance = torch.Generator()
        chance.manual_seed(wish.seed) if wish.seed is not None else chance.seed()
        for number in range(wish.tales):
            if number:
                yield END
            yield from wish.prompt
            yield from self.continue_tale(wish, chance)

    @torch.inference_mode()
    def continue_tale(self, wish: Wish, chance: torch.Generator) -> Iterator[str]:
        """Yield what comes after the prompt."""
        memory: list[torch.Tensor] = []
        unread = [CHARACTERS.index(character) for character in END + wish.prompt]
        for _ in range(len(unread), LONGEST):
            scores = self.model(torch.tensor([unread], device=self.device), memory)[0, -1].cpu()
            if wish.temperature:
                chances = torch.softmax(scores / wish.temperature, dim=0)
                following = int(torch.multinomial(chances, 1, generator=chance))
            else:
                following = int(scores.argmax())
            if CHARACTERS[following] == END:
                return
            yield CHARACTERS[following]
            unread = [following]


def read_wish(row: dict[str, Any]) -> Wish:
    """Read a request: a prompt as text, a JSON object, or named inputs as forms and gRPC have them.

    Raises:
        PredictionException: It asks for what cannot be (400).
    """
    try:
        fields = fields_of(row)
        seed = fields.pop("seed", None)
        wish = Wish(
            prompt=fields.pop("prompt", Wish().prompt).strip(END),
            tales=int(fields.pop("tales", Wish().tales)),
            temperature=float(fields.pop("temperature", Wish().temperature)),
            seed=None if seed is None else int(seed),
        )
    except (ValueError, TypeError) as error:
        raise PredictionException(f"not a request: {error}", 400) from error
    if problem := complaint(wish, fields):
        raise PredictionException(problem, 400)
    return wish


def fields_of(row: dict[str, Any]) -> dict[str, str]:
    """The fields of a request, whatever it came as.

    Raises:
        ValueError: It is neither text nor JSON.
        TypeError: It is JSON of another kind.
    """
    body = row.get("data", row.get("body", row))
    if isinstance(body, (bytes, bytearray)):
        body = body.decode()
    if isinstance(body, str):
        body = json.loads(body) if body.startswith("{") else {"prompt": body}
    if not isinstance(body, dict):
        raise TypeError(f"a {type(body).__name__} is neither a text nor an object")
    return {name: text(value) for name, value in body.items()}


def text(value: Any) -> str:
    """A field's value, which is bytes in forms and over gRPC, and anything in JSON."""
    return value.decode() if isinstance(value, (bytes, bytearray)) else str(value)


def complaint(wish: Wish, unknown: dict[str, str]) -> str | None:
    """Why a wish cannot be fulfilled."""
    if unknown:
        return f"unknown fields: {', '.join(unknown)}; there are {', '.join(Wish._fields)}"
    if foreign := set(wish.prompt) - set(CHARACTERS.replace(END, "")):
        return f"the network has never seen {''.join(sorted(foreign))!r}; it knows letters, spaces and ,.:;!?'-"
    if len(wish.prompt) >= LONGEST:
        return f"the prompt must be shorter than {LONGEST} characters"
    if not 1 <= wish.tales <= MOST_TALES:
        return f"tales must be from 1 to {MOST_TALES}"
    if wish.seed is not None and not 0 <= wish.seed < 2**63:
        return "seed must be from 0 to 2^63 - 1"
    if not 0 <= wish.temperature <= 10:
        return "temperature must be from 0 (always the likeliest character) to 10"
    return None
