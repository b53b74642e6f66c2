"""A handler with numpy for the Open Inference Protocol; it is the same over REST and gRPC.

For each input it gives an output `<name>_out` of the same datatype: twice the numbers, the opposite of the bools, texts
with an exclamation mark; and `rows`, the number of requests in the batch. The request parameter `op`, or an id such as
`op:show`, asks for something special.
"""

import base64
import json

import numpy as np

from ts.handler_utils.utils import send_intermediate_predict_response

TYPES = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "BF16": np.float32,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}


def handle(data, context):
    if data is None:
        return None
    if len(data) == 1 and op_of(data[0]["body"]) == "pieces":
        text = json.dumps(whole(data[0]["body"]))
        send_intermediate_predict_response([text[:20]], context.request_ids, "", 200, context)
        return [text[20:]]
    return [answer(row["body"], len(data), context.manifest["model"]) for row in data]


def op_of(body):
    return (body.get("parameters") or {}).get("op") or body.get("id", "").removeprefix("op:")


def answer(body, rows, model):
    special = SPECIAL.get(op_of(body))
    if special is not None:
        return special(body)
    outputs = [output(tensor) for tensor in body["inputs"]]
    outputs.append({"name": "rows", "datatype": "INT32", "shape": [1], "data": [rows]})
    return {
        "id": body.get("id", ""),
        "model_name": body.get("model_name", model["modelName"]),
        "model_version": model["modelVersion"],
        "outputs": outputs,
    }


def output(tensor):
    values = np.array(tensor["data"], dtype=TYPES[tensor["datatype"]]).reshape(tensor["shape"])
    return {
        "name": f"{tensor['name']}_out",
        "datatype": tensor["datatype"],
        "shape": list(values.shape),
        "data": [change(value) for value in values.ravel().tolist()],
    }


def change(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"{value}!"
    if isinstance(value, dict):
        return {"b64": base64.b64encode(base64.b64decode(value["b64"]) + b"!").decode()}
    return value * 2


def whole(body, **changes):
    """An answer with one output that holds the request as JSON text."""
    data = [json.dumps(body)]
    made = {
        "id": body.get("id", ""),
        "model_name": "m",
        "model_version": "1.0",
        "outputs": [{"name": "seen", "datatype": "BYTES", "shape": [1], "data": data}],
        **changes,
    }
    return {key: value for key, value in made.items() if value is not None}


def echo(body):
    outputs = [{key: tensor[key] for key in ("name", "datatype", "shape", "data")} for tensor in body["inputs"]]
    return whole(body, outputs=outputs)


def fail(body):
    raise ValueError(body)


def one(**tensor):
    return [{"name": "o", "datatype": "FP32", "shape": [1], "data": [1.5], **tensor}]


SPECIAL = {
    "show": whole,
    "echo": echo,
    "raise": fail,
    "text": lambda _: "ok",
    "list": lambda _: [1, 2],
    "no-id": lambda body: whole(body, id=None),
    "number-id": lambda body: whole(body, id=7),
    "null-outputs": lambda body: whole(body, outputs=None),
    "nested": lambda body: whole(body, outputs=one(shape=[2, 1], data=[[1.5], [2.5]])),
    "text-data": lambda body: whole(body, outputs=one(data=["abc"])),
    "short": lambda body: whole(body, outputs=one(shape=[2])),
    "cut": lambda body: whole(body, outputs=one(datatype="INT32", shape=[2], data=[1.9, -1.9])),
    "numeric-text": lambda body: whole(body, outputs=one(shape=[2], data=["1.5", "2"])),
    "half": lambda body: whole(body, outputs=one(datatype="FP16")),
    "mixed-bytes": lambda body: whole(
        body, outputs=one(datatype="BYTES", shape=[4], data=["abc", 5, None, {"b64": "/w=="}])
    ),
    "unsigned": lambda body: whole(body, outputs=one(datatype="UINT64", data=[2**64 - 1])),
    "parameters": lambda body: whole(
        body,
        parameters={"a": True, "b": 7, "c": "x", "d": 1.5, "e": 2**63},
        outputs=one(parameters={"scale": 2}),
    ),
}
