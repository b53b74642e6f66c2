"""The one error of the load tests."""


class BenchError(Exception):
    """A measurement, or the whole run, cannot go on; the message is for the person who started it."""
