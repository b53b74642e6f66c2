"""The network: two convolutions and two linear layers, 38,000 weights.

The archive holds this file. It defines one class, as eager models need.
"""

import torch
from torch import nn


class DigitNet(nn.Module):
    """Scores ten digits for scans of 8 x 8 pixels, shape (n, 1, 8, 8), values from 0 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 64),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(64, 10),
        )

    def forward(self, scans: torch.Tensor) -> torch.Tensor:
        """Return the scores, shape (n, 10)."""
        scores: torch.Tensor = self.layers(scans)
        return scores
