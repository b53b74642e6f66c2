"""The network: a transformer over characters, 108,000 weights.

The archive holds this file. It defines one class, as eager models need.
"""

import string

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

END = "\n"
"""Comes before and after every tale."""
CHARACTERS = END + " " + string.ascii_letters + ",.:;!?'-"
LONGEST = 256
"""Characters of a tale, the first END among them: beyond what it has learned from, it would lose the thread."""
WIDTH = 64
HEADS = 4
SLOPES = (2.0, 0.5, 0.1, 0.0)
"""How much less each head looks at a character for each place that it is further away (ALiBi, arXiv:2108.12409)."""
LAYERS = 2


class Storyteller(nn.Module):
    """Scores the next character.

    Each layer's keys and values can be kept from call to call, so that the next character costs one step, however long
    the text is already.
    """

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(CHARACTERS), WIDTH)
        self.attention_norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        self.attention_inputs = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.attention_outputs = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        self.inner = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(LAYERS))
        self.outer = nn.ModuleList(nn.Linear(4 * WIDTH, WIDTH) for _ in range(LAYERS))
        self.last_norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, len(CHARACTERS), bias=False)
        nn.init.normal_(self.characters.weight, std=0.1)

    def forward(self, text: torch.Tensor, memory: list[torch.Tensor] | None = None) -> torch.Tensor:
        """Return the scores of the character after each one, shape (n, length, characters).

        Args:
            text: Indices of characters, shape (n, length); with memory, those that it does not hold yet.
            memory: Keys and values of what came before, one tensor for each layer; empty at first, and extended here.
        """
        known = memory[0].shape[-2] if memory else 0
        places = torch.arange(known + text.shape[1], device=text.device)
        distance = places[known:, None] - places
        slopes = torch.tensor(SLOPES, device=text.device)[:, None, None]
        nearness = (-distance * slopes).masked_fill(distance < 0, -torch.inf)
        x = self.characters(text)
        for layer in range(LAYERS):
            x = x + self._attend(layer, self.attention_norms[layer](x), nearness, memory)
            x = x + self.outer[layer](gelu(self.inner[layer](self.norms[layer](x))))
        scores: torch.Tensor = self.scores(self.last_norm(x))
        return scores

    def _attend(
        self, layer: int, x: torch.Tensor, nearness: torch.Tensor, memory: list[torch.Tensor] | None
    ) -> torch.Tensor:
        rows, length, _ = x.shape
        # query, key, value: each rows x heads x length x width of a head
        parts = self.attention_inputs[layer](x).view(rows, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, new = parts[0], parts[1:]
        if memory is not None and len(memory) == layer:
            memory.append(new)
        elif memory is not None:
            memory[layer] = new = torch.cat([memory[layer], new], dim=-2)
        seen = scaled_dot_product_attention(query, new[0], new[1], attn_mask=nearness)
        out: torch.Tensor = self.attention_outputs[layer](seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return out
