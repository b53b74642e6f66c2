"""The one description of the HTTP routes, from which the OpenAPI documents are made (rest_api.md §5).

Paths, methods, operation ids, parameters, defaults and their order are TorchServe's; routes that it serves but does not
list stand in tables of their own, `MORE_INFERENCE` and `MORE_MANAGEMENT`, and come last in the documents.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import quote

from relight.api.http.route_parts import (
    ACCEPTED,
    ANY,
    BINARY,
    DESCRIBED,
    DESCRIPTION,
    INTERNAL,
    JSON,
    METRICS_TEXT,
    MODEL_LIST,
    NO_MODEL,
    NOT_STARTED,
    READINESS,
    SAMPLES,
    SCALING,
    Body,
    Parameter,
    Response,
    Route,
    Schema,
    error,
    query,
    status,
)

_MODEL_NAME = Parameter("path", "model_name", "Name of the model.", Schema(type="string"), required=True)
_MODEL_VERSION = Parameter("path", "model_version", "Version of the model.", Schema(type="string"), required=True)
_DRAIN = query(
    "timeout",
    "integer",
    "-1",
    "Seconds that a worker may take to finish its pending requests before it is ended: 0 is at once, -1 without limit.",
)
_INPUT = Body("The input of the model, in any format that its handler understands.", ANY, BINARY)


def _of_version(route: Route) -> Route:
    """The same operation on one version of a model instead of its default version."""
    return replace(
        route,
        path=route.path.replace("{model_name}", "{model_name}/{model_version}"),
        operation_id=f"version_{route.operation_id}",
        parameters=(_MODEL_NAME, _MODEL_VERSION, *route.parameters[1:]),
    )


def _inference(
    path: str, operation_id: str, description: str, parameters: tuple[Parameter, ...] = (_MODEL_NAME,), *more: Response
) -> Route:
    return Route(
        path=path,
        method="post",
        operation_id=operation_id,
        description=description,
        parameters=parameters,
        body=_INPUT,
        responses=(
            Response(200, "What the handler returned, in the format that it chose.", ANY, BINARY),
            *more,
            NO_MODEL,
            error(500, "The worker died or did not answer in time."),
            error(503, "No worker is free to take the request, or the handler failed."),
        ),
    )


# -- the routes ----------------------------------------------------------------------------------------------------

ROOT = (
    Route(
        path="/",
        method="options",
        operation_id="apiDescription",
        description="Describe the API of this listener.",
        responses=DESCRIBED,
    ),
)
API_DESCRIPTION = (
    Route(
        path="/api-description",
        method="get",
        operation_id="api-description",
        description="Describe the API of this listener; `OPTIONS /` does the same.",
        responses=DESCRIBED,
        deprecated=True,
    ),
)
METRICS = (
    Route(
        path="/metrics",
        method="get",
        operation_id="metrics",
        description="Metrics in Prometheus format; served by the metrics listener.",
        parameters=(query("name[]", "string", None, "Names of the metrics to return; all if absent."),),
        responses=(Response(200, "The metrics.", METRICS_TEXT, SAMPLES), INTERNAL),
    ),
)

# TorchServe gives three operations the id `predictions`; clients generated from its document know them by it.
_PREDICT = _inference("/predictions/{model_name}", "predictions", "Predict with the model's default version.")
INFERENCE = (
    Route(
        path="/ping",
        method="get",
        operation_id="ping",
        description="Whether every model has the workers that it needs.",
        responses=(status(200, "The server is healthy."), INTERNAL),
    ),
    _inference("/v1/models/{model_name}:predict", "predictions", "Predict, by version 1 of the KServe protocol."),
    _inference("/v2/models/{model_name}/infer", "predictions", "Predict, by version 2 of the KServe protocol."),
    _PREDICT,
    replace(_of_version(_PREDICT), description="Predict with one version of the model."),
)

MODELS = (
    Route(
        path="/models",
        method="get",
        operation_id="listModels",
        description="List the registered models, page by page.",
        parameters=(
            query("limit", "integer", "100", "Most models on a page; more than 100 count as 100."),
            query("next_page_token", "string", None, "The `nextPageToken` of the page before."),
        ),
        responses=(Response(200, "A page of models.", JSON, MODEL_LIST), INTERNAL),
    ),
    Route(
        path="/models",
        method="post",
        operation_id="registerModel",
        description="Register a model. Refused unless the model API is enabled.",
        parameters=(
            query("url", "string", None, "Archive: a name in the model store or a URL.", required=True),
            query("model_name", "string", None, "Name of the model; by default the archive's."),
            query("handler", "string", None, "Entry point of the handler; by default the archive's."),
            query(
                "runtime",
                "string",
                None,
                "Runtime of the handler; by default the archive's.",
                enum=("python", "python3"),
            ),
            query("batch_size", "integer", "1", "Most requests that a worker gets at once."),
            query("max_batch_delay", "integer", "100", "Longest wait for a batch to fill, in milliseconds."),
            query("response_timeout", "integer", "120", "Seconds in which a worker must answer, or it is restarted."),
            query("startup_timeout", "integer", "120", "Seconds in which a worker must load the model."),
            query("initial_workers", "integer", "0", "How many workers to start."),
            query("synchronous", "boolean", "true", "Whether to answer only once the workers have started."),
            query("s3_sse_kms", "boolean", "false", "Whether the archive is encrypted by S3 with SSE-KMS."),
        ),
        responses=(
            status(200, "Registered, and its workers have started."),
            status(202, "Registered; its workers are being started."),
            SCALING,
            error(400, "A parameter or the archive is not valid."),
            error(404, "There is no such archive, or its URL is not allowed."),
            error(409, "This version of the model is registered already."),
            NOT_STARTED,
        ),
    ),
)

_OPERATIONS = (
    Route(
        path="/models/{model_name}",
        method="get",
        operation_id="describeModel",
        description="Describe a model and its workers.",
        parameters=(_MODEL_NAME,),
        responses=(Response(200, "The description.", JSON, DESCRIPTION), NO_MODEL, INTERNAL),
    ),
    Route(
        path="/models/{model_name}",
        method="put",
        operation_id="setAutoScale",
        description="Set how many workers a model has.",
        parameters=(
            _MODEL_NAME,
            query("min_worker", "integer", "1", "Least number of workers."),
            query("max_worker", "integer", "1", "Greatest number of workers; by default as many as the least."),
            query(
                "number_gpu",
                "integer",
                "0",
                "How many GPU workers to create; the others use the CPU. If absent, all use GPUs where there are any.",
            ),
            query("synchronous", "boolean", "false", "Whether to answer only once the workers are as asked for."),
            _DRAIN,
        ),
        responses=(
            status(200, "The workers are as asked for."),
            ACCEPTED,
            SCALING,
            error(400, "A parameter is not valid."),
            NO_MODEL,
            NOT_STARTED,
        ),
    ),
    Route(
        path="/models/{model_name}",
        method="delete",
        operation_id="unregisterModel",
        description="Unregister a model once its running work is done. Refused unless the model API is enabled.",
        parameters=(
            _MODEL_NAME,
            query("synchronous", "boolean", "false", "Accepted and ignored: the answer always comes at the end."),
            _DRAIN,
        ),
        responses=(
            status(200, "Unregistered."),
            ACCEPTED,
            NO_MODEL,
            error(408, "The workers did not end in time."),
            INTERNAL,
        ),
    ),
)
MODEL = (
    *_OPERATIONS,
    *map(_of_version, _OPERATIONS),
    Route(
        path="/models/{model_name}/{model_version}/set-default",
        method="put",
        operation_id="setDefault",
        description="Make a version the one that serves requests which name none.",
        parameters=(_MODEL_NAME, _MODEL_VERSION),
        responses=(status(200, "The version is the default now."), NO_MODEL, INTERNAL),
    ),
)

# -- what TorchServe serves without listing it ---------------------------------------------------------------------

_EXPLAIN = _inference("/explanations/{model_name}", "explanations", "Explain, with the model's default version.")
MORE_INFERENCE = (
    _EXPLAIN,
    replace(_of_version(_EXPLAIN), description="Explain, with one version of the model."),
    _inference(
        "/invocations",
        "invocations",
        "Predict, as SageMaker does: the query, a form field or the only model loaded at startup names the model.",
        (query("model_name", "string", None, "Name of the model."),),
        error(400, "Nothing names the model."),
    ),
    _inference("/models/{model_name}/invoke", "model_invocations", "Predict, as SageMaker does with several models."),
    _inference("/v1/models/{model_name}:explain", "v1_explanations", "Explain, by version 1 of the KServe protocol."),
    _inference("/v2/models/{model_name}/explain", "v2_explanations", "Explain, by version 2 of the KServe protocol."),
)
MORE_MANAGEMENT = (
    Route(
        path="/token",
        method="get",
        operation_id="token",
        description="Replace a key in the key file; the bearer token is the API key. Absent if tokens are off.",
        parameters=(
            query("type", "string", None, "Which key to replace.", enum=("management", "inference"), required=True),
        ),
        responses=(
            Response(200, "The key file has a new key; the old one is void."),
            error(400, "The key or the type is wrong."),
            error(404, "Token authorization is off."),
        ),
    ),
    Route(
        path="/v1/models/{model_name}",
        method="get",
        operation_id="v1_ready",
        description="Whether a model is ready, by version 1 of the KServe protocol.",
        parameters=(_MODEL_NAME,),
        responses=(Response(200, "Whether it is ready.", JSON, READINESS), NO_MODEL),
    ),
)


def predictions_of(name: str) -> tuple[Route, ...]:
    """The routes that predict with one model (rest_api.md §5.3).

    Args:
        name: Of the model; it is the operations' id, too.
    """
    # TorchServe leaves the parameter of the templates undeclared, which no strict reader of OpenAPI accepts.
    paths: tuple[tuple[str, tuple[Parameter, ...]], ...] = (
        (f"/predictions/{quote(name, safe='')}", ()),
        ("/v1/models/{model_name}:predict", (_MODEL_NAME,)),
        ("/v2/models/{model_name}/infer", (_MODEL_NAME,)),
    )
    return tuple(
        Route(
            path=path,
            method="post",
            operation_id=name,
            description=f"Predict with the model {name}.",
            parameters=parameters,
            responses=(Response(200, "OK"), INTERNAL),
        )
        for path, parameters in paths
    )
