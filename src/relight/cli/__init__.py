"""The commands that operators and model authors type."""
