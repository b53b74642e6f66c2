"""Continuous batching: `n` tokens for each request, one with each call."""

# ruff: noqa: ARG002 - the signatures are those of a handler


class Stepper:
    """A handler that makes one token at a time."""

    def initialize(self, context):
        self.context = context
        self.wanted = {}
        self.made = {}

    def handle(self, data, context):
        if not data:
            return None
        tokens, criteria = [], []
        for idx, row in enumerate(data):
            request = self.context.get_request_id(idx)
            if row:  # the inputs come with the first call
                self.wanted[request], self.made[request] = int(bytes(row["n"]).decode()), 0
            tokens.append(f"token{self.made[request]} ")
            self.made[request] += 1
            criteria.append(self._stopping(request))
        self.context.stopping_criteria = criteria
        return tokens

    def _stopping(self, request):
        done = self.made[request] >= self.wanted[request]

        def stop(result):
            return done

        return stop
