"""The request envelopes: what turns a protocol's request into a handler's rows, and its results into the answer.

One envelope serves a whole server (`service_envelope`); it stands between the worker and the handler's `handle`.
"""
