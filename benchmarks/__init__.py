"""Load tests that compare the ``torchserve`` commands of two virtual environments; see README.md."""
