"""The text to learn from: tiny tales, a line each, made from a grammar that was written for this example.

    python tales.py

prints some. Who loses what, and who helps, comes again later in the line, so there is something to remember.
"""

from __future__ import annotations

import random

NAMES = ("Mira", "Tobin", "Elsa", "Jorun", "Pavel", "Nuno", "Hedda", "Silas", "Oona", "Bram")
TRADES = ("baker", "miller", "weaver", "tailor", "ferryman", "gardener", "cooper", "potter", "shepherd", "piper")
ANIMALS = ("fox", "crow", "heron", "hedgehog", "badger", "magpie", "goat", "cat", "toad", "hare")
LOOKS = ("silver", "wooden", "little", "crooked", "blue", "heavy", "golden", "rusty")
THINGS = ("spoon", "key", "bell", "ring", "lantern", "whistle", "needle", "button", "kettle", "comb")
PLACES = ("by the well", "under the bridge", "in the long grass", "behind the mill", "on the hill", "near the old oak")
GIFTS = ("a warm loaf", "a bowl of milk", "two ripe plums", "a song", "a place by the fire", "half a cheese")
FEELINGS = ("laughed", "danced", "was glad", "said thank you", "wept for joy")

OPENINGS = (
    "{name} the {trade} lost a {look} {thing} {place}.",
    "Once a {trade} named {name} dropped a {look} {thing} {place}.",
    "One evening {name} the {trade} could not find the {look} {thing}.",
)
ENDINGS = (
    "A {animal} found the {thing}, and {name} gave it {gift}.",
    "A clever {animal} saw the {thing} shine, and {name} {feeling}.",
    "But a {animal} had hidden the {thing}, and {name} searched all night.",
    "A {animal} carried the {thing} home and got {gift} from {name}.",
)


def tale(choose: random.Random) -> str:
    """Make up one tale."""
    words = {
        "name": choose.choice(NAMES),
        "trade": choose.choice(TRADES),
        "animal": choose.choice(ANIMALS),
        "look": choose.choice(LOOKS),
        "thing": choose.choice(THINGS),
        "place": choose.choice(PLACES),
        "gift": choose.choice(GIFTS),
        "feeling": choose.choice(FEELINGS),
    }
    return f"{choose.choice(OPENINGS)} {choose.choice(ENDINGS)}".format(**words)


def tales(count: int, seed: int = 1) -> list[str]:
    """Make up tales; the same ones for the same seed."""
    choose = random.Random(seed)
    return [tale(choose) for _ in range(count)]


if __name__ == "__main__":
    print("\n".join(tales(10)))
