"""A handler that answers with the rows it gets; the request header `x-op` asks for something else."""

import json


def handle(data, context):
    if data is None:
        return None
    if context.get_request_header(0, "describe") == "True":
        return [{"rows": data}]
    op = context.get_request_header(0, "x-op") or "identity"
    return globals()[f"_{op}"](data, context)


def _identity(data, context):
    return data


def _data(data, context):
    return [row["data"] for row in data]


def _repr(data, context):
    return [repr(row) for row in data]


def _result(data, context):
    return json.loads(context.get_request_header(0, "x-result"))


def _requests(data, context):
    names = [context.get_request_header(index, "x-name") for index in range(len(context.request_ids))]
    return [repr([names, row]) for row in data]


def _raise(data, context):
    raise RuntimeError("boom")


def _numpy(data, context):
    import numpy as np

    values = json.loads(context.get_request_header(0, "x-result"))
    return [np.array(values, dtype=context.get_request_header(0, "x-dtype"))]


def _parked(data, context):
    return [repr([getattr(context, name, "absent") for name in ("input_request_id", "input_names")])]
