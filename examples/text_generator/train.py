"""Trains the network to write tiny tales.

    python train.py --out FOLDER

writes FOLDER/storyteller.pt, the trained weights (a state dict).
"""

import argparse
import time
from pathlib import Path

import torch
from model import CHARACTERS, END, Storyteller
from tales import tales
from torch import nn

SEED = 1
TALES = 4000
STEPS = 700
BATCH = 8
LEARNING_RATE = 1e-2
SAY_EVERY = 100
# Not a character: what a shorter tale is filled up with, and no loss is counted for.
FILL = -100


def encode(text: str) -> list[int]:
    """The indices of a text's characters."""
    return [CHARACTERS.index(character) for character in text]


def lesson(rows: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """What the network sees, and what it should have said after each character; both of shape (tales, longest + 1)."""
    longest = max(map(len, rows))
    filled = [encode(END + row + END) + [FILL] * (longest - len(row)) for row in rows]
    text = torch.tensor(filled)
    return text[:, :-1].clamp(min=0), text[:, 1:]


def train(out: Path, steps: int = STEPS) -> float:
    """Train, and write the weights to `out`.

    Returns:
        The mean of the last losses, in nats for each character.
    """
    # One thread: the batches are too small for more, and one gives the same weights each time.
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    known = tales(TALES, SEED)
    model = Storyteller()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LEARNING_RATE, total_steps=steps)
    start = time.monotonic()
    losses: list[float] = []
    for step in range(1, steps + 1):
        rows = [known[index] for index in torch.randint(len(known), (BATCH,)).tolist()]
        text, expected = lesson(rows)
        loss = nn.functional.cross_entropy(model(text).flatten(0, 1), expected.flatten(), ignore_index=FILL)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step in {1, steps} or step % SAY_EVERY == 0:
            mean = sum(losses[-10:]) / len(losses[-10:])
            print(f"      step {step:3}/{steps}  loss {mean:.3f}  {time.monotonic() - start:.1f} s", flush=True)
    torch.save(model.state_dict(), out / "storyteller.pt")
    return sum(losses[-10:]) / len(losses[-10:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for storyteller.pt")
    parser.add_argument("--steps", type=int, default=STEPS, help="default %(default)s")
    options = parser.parse_args()
    train(options.out, options.steps)
