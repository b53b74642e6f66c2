"""Trains the network on scikit-learn's handwritten digits, 1,797 real scans of 8 x 8 pixels.

    python train.py --out FOLDER

writes FOLDER/digits.pt, the trained weights (a state dict).
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import torch
from model import DigitNet
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

SEED = 1
EPOCHS = 20
BATCH = 64
# The scans hold grey values from 0 to 16.
WHITEST = 16.0


class Scans(NamedTuple):
    """Images of shape (n, 1, 8, 8) with values from 0 to 1, and the digits that they show."""

    images: torch.Tensor
    labels: torch.Tensor


def load() -> tuple[Scans, Scans]:
    """The scans to train with, and the fifth of them that is held out; always the same split."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / WHITEST
    labels = torch.tensor(digits.target, dtype=torch.int64)
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=SEED, stratify=digits.target)
    return Scans(images[train], labels[train]), Scans(images[test], labels[test])


def accuracy(model: nn.Module, scans: Scans) -> float:
    """The share of scans that the model reads correctly."""
    model.eval()
    with torch.inference_mode():
        right = model(scans.images).argmax(dim=1) == scans.labels
    return float(right.float().mean())


def train(out: Path) -> float:
    """Train, and write the weights to `out`.

    Returns:
        The accuracy on the held-out scans.
    """
    # One thread: the batches are too small for more, and threads that wait for a busy machine cost seconds.
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    known, held_out = load()
    model = DigitNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-2, epochs=EPOCHS, steps_per_epoch=-(-len(known.labels) // BATCH)
    )
    start = time.monotonic()
    for epoch in range(1, EPOCHS + 1):
        model.train()
        total = 0.0
        for rows in torch.randperm(len(known.labels)).split(BATCH):
            loss = nn.functional.cross_entropy(model(known.images[rows]), known.labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        if epoch == 1 or epoch % 5 == 0:
            print(
                f"      epoch {epoch:2}/{EPOCHS}  loss {total / len(known.labels):.4f}  "
                f"held-out accuracy {accuracy(model, held_out):.1%}  {time.monotonic() - start:.1f} s",
                flush=True,
            )
    torch.save(model.state_dict(), out / "digits.pt")
    return accuracy(model, held_out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for digits.pt")
    train(parser.parse_args().out)
