"""The server's settings: every key declared once, and the sources they come from.

Precedence, later wins: built-in default, properties file, `$$VARIABLE$$` substitution in it, command line, and, where
the file says `enable_envvars_config=true`, `TS_*` variables. Which file: `TS_CONFIG_FILE`, `--ts-config`,
`./config.properties`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relight import options as o
from relight.command_line import CommandLine
from relight.options import (
    ALL_MODELS,
    Address,
    LoadModels,
    ModelsConfig,
    ModelSource,
    Option,
    RejectedValueError,
    option,
)
from relight.properties import ConfigurationError
from relight.sources import Entry, collect

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ALL_MODELS",
    "OPTIONS",
    "Address",
    "CommandLine",
    "ConfigurationError",
    "ModelSource",
    "Option",
    "Settings",
    "load_settings",
]

_SHOWN_VALUE = 120
# Written into snapshots by TorchServe itself; a file may hold them, but they mean nothing to a start.
_SNAPSHOT_KEYS = frozenset({"version", "tsConfigFile", "python", "model_snapshot"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One server's settings, immutable. `Settings()` holds the defaults.

    Every attribute declared by `option` is a key of config.properties with the same name; paths are absolute. The
    attributes at the end are derived from the command line and the environment.
    """

    # Listeners
    inference_address: Address = option(
        o.address(80, 443), Address.parse("http://127.0.0.1:8080"), "Where the inference API listens."
    )
    management_address: Address = option(
        o.address(8081, 8444),
        Address.parse("http://127.0.0.1:8081"),
        "Where the management API listens; the inference address for one shared listener.",
    )
    metrics_address: Address = option(
        o.address(8082, 8445), Address.parse("http://127.0.0.1:8082"), "Where the metrics API listens."
    )
    grpc_inference_address: str = option(o.grpc_host, "127.0.0.1", "Host that the gRPC inference API listens on.")
    grpc_management_address: str = option(o.grpc_host, "127.0.0.1", "Host that the gRPC management API listens on.")
    grpc_inference_port: int = option(o.port, 7070, "Port of the gRPC inference API.")
    grpc_management_port: int = option(o.port, 7071, "Port of the gRPC management API.")
    grpc_inference_max_connection_age_ms: int | None = option(
        o.milliseconds, None, "Age in ms at which a gRPC inference connection is closed; unset for never."
    )
    grpc_management_max_connection_age_ms: int | None = option(
        o.milliseconds,
        None,
        "Age in ms at which a gRPC management connection is closed; unset for never.",
    )
    grpc_inference_max_connection_age_grace_ms: int | None = option(
        o.milliseconds,
        None,
        "Time in ms that calls have left on an aged gRPC inference connection; unset for no limit.",
    )
    grpc_management_max_connection_age_grace_ms: int | None = option(
        o.milliseconds,
        None,
        "Time in ms that calls have left on an aged gRPC management connection; unset for no limit.",
    )
    grpc_keepalive_time_ms: int = option(
        o.milliseconds, 7_200_000, "Silence in ms after which a gRPC client is asked whether it is there."
    )
    grpc_keepalive_timeout_ms: int = option(
        o.milliseconds, 20_000, "Time in ms that it may take to answer; then its connection is closed."
    )
    enable_grpc_ssl: bool = option(
        o.boolean, False, "TLS on both gRPC ports; needs certificate_file and private_key_file."
    )
    ts_open_inference_protocol: bool = option(
        o.boolean,
        False,
        "The Open Inference Protocol (/v2) on the inference ports; the variable has to say `oip`.",
    )
    use_native_io: bool = option(o.boolean, True, "A choice of the JVM.", env=False, no_effect=True)
    io_ratio: int = option(o.integer(), 50, "A choice of the JVM.", env=False, no_effect=True)
    number_of_netty_threads: int = option(o.integer(0), 0, "A choice of the JVM.", no_effect=True)
    netty_client_threads: int = option(o.integer(0), 0, "A choice of the JVM.", no_effect=True)
    prefer_direct_buffer: bool = option(o.boolean, False, "A choice of the JVM.", no_effect=True)
    max_request_size: int = option(o.byte_count, 6553500, "Largest request body accepted, in bytes.")
    max_response_size: int = option(o.byte_count, 6553500, "Largest single answer accepted from a worker, in bytes.")

    # TLS and CORS
    keystore: Path | None = option(
        o.optional_path, None, "Keystore with key and certificate; goes before the two files.", not_yet=True
    )
    keystore_pass: str = option(
        o.string, "changeit", "Password of the keystore and of its key.", secret=True, not_yet=True
    )
    keystore_type: str = option(o.string, "PKCS12", "Type of the keystore.", not_yet=True)
    private_key_file: Path | None = option(o.optional_path, None, "Private key for TLS, PEM (gRPC).")
    certificate_file: Path | None = option(o.optional_path, None, "Certificate chain for TLS, PEM (gRPC).")
    cors_allowed_origin: str | None = option(o.optional_string, None, "Value of access-control-allow-origin.")
    cors_allowed_methods: str | None = option(o.optional_string, None, "Value of access-control-allow-methods.")
    cors_allowed_headers: str | None = option(o.optional_string, None, "Value of access-control-allow-headers.")

    # Models and workers
    model_store: Path | None = option(o.optional_path, None, "Folder of the model archives.")
    workflow_store: Path | None = option(
        o.optional_path, None, "Folder of the workflow archives; the model store when unset.", not_yet=True
    )
    load_models: LoadModels = option(
        o.load_models, (), "Models loaded at start: comma-separated [name=]location, or `all`."
    )
    models: ModelsConfig = option(
        o.models_config, {}, "Settings of single models, JSON by name and version; loads none of them.", env=False
    )
    default_workers_per_model: int = option(
        o.integer(0), 0, "Workers of a start-up model, and of a registration that names none; 0 chooses."
    )
    job_queue_size: int = option(o.integer(1), 100, "Requests that may wait for one model; further ones get 503.")
    default_response_timeout: int = option(o.seconds, 120, "Seconds a worker may take to answer.")
    default_startup_timeout: int = option(o.seconds, 120, "Seconds a worker may take to load its model.")
    unregister_model_timeout: int = option(
        o.integer(0), 120, "Seconds to wait for a worker to end when scaling down.", not_yet=True
    )
    number_of_gpu: int | None = option(o.gpu_count, None, "At most so many of the GPUs found; unset for all.")
    initial_worker_port: int = option(o.integer(0), 9000, "Id of the first worker; each further one gets the next.")
    initial_distribution_port: int = option(
        o.integer(0), 29500, "Id of the first worker of a parallel model.", not_yet=True
    )
    decode_input_request: bool = option(
        o.boolean, True, "Whether handlers get JSON and text bodies decoded, not as bytes."
    )
    limit_max_image_pixels: bool = option(o.boolean, True, "Whether Pillow's limit against decompression bombs holds.")
    install_py_dep_per_model: bool = option(
        o.boolean, False, "Whether an archive's requirements file is installed.", not_yet=True
    )
    default_service_handler: str | None = option(o.optional_string, None, "Handler of archives that name none.")
    service_envelope: str | None = option(
        o.optional_string,
        None,
        "Request envelope of all models: json, body, kserve, kservev2 or module:Class.",
    )
    blacklist_env_vars: str | None = option(
        o.optional_regex, None, "Regular expression; variables whose whole name matches are hidden from workers."
    )
    cpu_launcher_enable: bool = option(
        o.boolean, False, "Whether workers start through torch.backends.xeon.run_cpu.", not_yet=True
    )
    cpu_launcher_args: str | None = option(
        o.optional_string, None, "Arguments of that launcher, separated by blanks.", not_yet=True
    )
    ipex_enable: bool = option(o.boolean, False, "Passed on to workers as TS_IPEX_ENABLE.")
    ipex_gpu_enable: bool = option(o.boolean, False, "Passed on to workers as TS_IPEX_GPU_ENABLE.")
    cpp_log_config: Path | None = option(o.optional_path, None, "A file of the C++ backend.", no_effect=True)
    debug: bool = option(o.boolean, False, "Connect to a worker started by hand, and wait without limit.", not_yet=True)
    model_server_home: Path | None = option(
        o.optional_path, None, "TorchServe's package folder.", env=False, no_effect=True
    )
    ts_header_key_sequence_id: str = option(o.string, "ts_request_sequence_id", "Request header that names a sequence.")
    ts_header_key_sequence_start: str = option(
        o.string, "ts_request_sequence_start", "Request header that begins a sequence."
    )
    ts_header_key_sequence_end: str = option(
        o.string, "ts_request_sequence_end", "Request header that ends a sequence."
    )
    max_archive_size: int = option(o.byte_count, 64 * 1024**3, "Largest archive, in bytes unpacked; relight's own key.")
    shutdown_timeout: float = option(
        o.duration, 30.0, "Seconds that work in flight has to end after SIGTERM; relight's own key."
    )

    # Metrics and logging
    enable_metrics_api: bool = option(o.boolean, True, "Whether /metrics is served.")
    metrics_mode: str = option(
        o.metrics_mode, "log", "Where metrics go: log, prometheus or legacy.", lenient=True, not_yet=True
    )
    metrics_config: Path | None = option(
        o.optional_path, None, "Definitions of metrics, YAML; unset for the built-in ones."
    )
    model_metrics_auto_detect: bool = option(
        o.boolean, False, "Whether metrics that handlers emit are registered by themselves.", not_yet=True
    )
    disable_system_metrics: bool = option(o.boolean, False, "Whether the host's metrics are left out.", not_yet=True)
    system_metrics_cmd: str = option(
        o.string, "", "Script and arguments that collect the host's metrics.", env=False, not_yet=True
    )
    metric_time_interval: int = option(
        o.integer(1), 60, "Seconds between two collections of the host's metrics.", env=False, not_yet=True
    )
    async_logging: bool = option(o.boolean, False, "Logging is always asynchronous.", no_effect=True)

    # Security
    disable_token_authorization: bool = option(o.boolean, False, "Whether requests are accepted without a token.")
    token_expiration_min: float = option(
        o.minutes, 60.0, "Minutes that an inference or management token is valid.", lenient=True
    )
    enable_model_api: bool = option(o.boolean, False, "Whether clients may register and unregister models.")
    allowed_urls: tuple[str, ...] = option(
        o.regex_list,
        ("file://.*|http(s)?://.*",),
        "Regular expressions, comma-separated: urls that archives may come from.",
    )
    use_env_allowed_urls: bool = option(o.boolean, False, "Whether TS_ALLOWED_URLS is honoured.", env=False)
    enable_envvars_config: bool = option(o.boolean, False, "Whether TS_* variables are honoured.", env=False)

    # Read by TorchServe's command, for its JVM
    vmargs: str = option(
        o.string, "", "Options of the JVM; -Dlog4j.configurationFile and -DLOG_LOCATION are honoured.", env=False
    )
    plugins_path: str | None = option(o.optional_string, None, "Java plugins.", env=False, no_effect=True)

    # Derived
    config_file: Path | None = None
    """The file that was read, as it was named."""
    log_config: Path | None = None
    """`--log-config`, else `-Dlog4j.configurationFile` of `vmargs`."""
    log_location: Path = field(default=Path("logs"))
    """Folder of the log files: `LOG_LOCATION`, else `-DLOG_LOCATION`, else `logs`."""
    metrics_location: Path = field(default=Path("logs"))
    """Folder of the metric log files: `METRICS_LOCATION`, else `-DMETRICS_LOCATION`, else `logs`."""
    temp_dir: Path = field(default=Path("/tmp"))  # noqa: S108 - TorchServe's documented default
    """Folder that archives are unpacked under: `TEMP`, else /tmp."""
    no_config_snapshots: bool = False
    """Whether snapshots are off."""
    python: str = sys.executable
    """The interpreter that workers run in."""
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The text of every key that was set, unknown ones too, after substitution, command line and environment."""
    unsupported: tuple[str, ...] = ()
    """Keys that ask for something that relight cannot do yet."""
    unknown: tuple[str, ...] = ()
    """Keys of the file that nobody knows."""
    ignored: tuple[str, ...] = ()
    """Keys that were set and have no effect."""
    warnings: tuple[str, ...] = ()
    """What the operator should read at start, one sentence each."""

    @property
    def merged(self) -> bool:
        """Whether inference and management share one listener."""
        return self.inference_address == self.management_address

    @property
    def metrics_merged(self) -> bool:
        """Whether the metrics API has the address of another listener, so that it needs none of its own."""
        return self.metrics_address in (self.inference_address, self.management_address)


OPTIONS: dict[str, Option] = {f.name: f.metadata["option"] for f in fields(Settings) if "option" in f.metadata}
"""Every key of config.properties with its declaration, in the order of the documentation."""


def load_settings(args: CommandLine, environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Settings:
    """Collect the settings from all sources.

    Args:
        args: The parsed command line.
        environ: The environment; the process's own by default.
        cwd: The folder that relative paths start from; the process's own by default.

    Raises:
        ConfigurationError: A value is not accepted, or the file cannot be read.
    """
    environ = os.environ if environ is None else environ
    cwd = cwd or Path.cwd()
    path, entries = collect(args, environ, cwd, OPTIONS)
    values, warnings = _read_values(entries, cwd)
    _check_home(values, entries)
    if values.get("workflow_store") is None:
        values["workflow_store"] = values.get("model_store")
    jvm = _jvm_properties(entries)
    if o.boolean(jvm.get("TS_DEBUG", "")):
        values["debug"] = True
    logging_file = args.log_config or jvm.get("log4j.configurationFile", "").removeprefix("file://")
    logs = environ.get("LOG_LOCATION") or jvm.get("LOG_LOCATION") or "logs"
    metric_logs = environ.get("METRICS_LOCATION") or jvm.get("METRICS_LOCATION") or "logs"
    return Settings(
        **values,
        config_file=path,
        log_config=cwd / logging_file if logging_file else None,
        log_location=cwd / logs,
        metrics_location=cwd / metric_logs,
        temp_dir=cwd / (environ.get("TEMP") or "/tmp"),  # noqa: S108 - TorchServe's documented default
        no_config_snapshots=args.no_config_snapshots,
        properties={key: entry.text for key, entry in entries.items()},
        unknown=tuple(key for key in entries if key not in OPTIONS and key not in _SNAPSHOT_KEYS),
        unsupported=_unsupported(entries, values),
        ignored=_ignored(entries),
        warnings=tuple(warnings),
    )


def _read_values(entries: Mapping[str, Entry], cwd: Path) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    warnings: list[str] = []
    for key, (text, source) in entries.items():
        declared = OPTIONS.get(key)
        if declared is None:
            continue
        try:
            value = declared.read(text)
        except RejectedValueError as error:
            message = _complaint(key, text, source, error)
            if not declared.lenient:
                raise ConfigurationError(message) from None
            warnings.append(f"{message}; the default is used")
            continue
        if declared.read is o.boolean and text.lower() not in ("true", "false"):
            warnings.append(f'{key}={_shown(text)} ({source}) means false: only "true" switches it on')
        values[key] = cwd / value if isinstance(value, Path) else value
    return values, warnings


def _complaint(key: str, text: str, source: str, error: RejectedValueError) -> str:
    if error.lead:
        return f"{error.lead} ({key}, {source}): expected {error.accepted}"
    return f"{key}={_shown(text)} is not valid ({source}): expected {error.accepted}"


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}..."


def _check_home(values: Mapping[str, Any], entries: Mapping[str, Entry]) -> None:
    home = values.get("model_server_home")
    if home is not None and not home.is_dir():
        source = entries["model_server_home"].source
        raise ConfigurationError(
            f"Model server home not exist: {home} (model_server_home, {source}): expected a folder"
        )


def _jvm_properties(entries: Mapping[str, Entry]) -> dict[str, str]:
    """The `-Dname=value` options of `vmargs`."""
    arguments = entries["vmargs"].text.split() if "vmargs" in entries else []
    pairs = (argument[2:].partition("=") for argument in arguments if argument.startswith("-D"))
    return {name: value for name, _, value in pairs}


def _unsupported(entries: Mapping[str, Entry], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys whose feature is still to come, where they are set to other than what happens anyway."""
    defaults = {f.name: f.default for f in fields(Settings)}
    keys = [key for key, value in values.items() if OPTIONS[key].not_yet and key in entries and value != defaults[key]]
    return (*keys, "model_snapshot") if "model_snapshot" in entries else tuple(keys)


def _ignored(entries: Mapping[str, Entry]) -> tuple[str, ...]:
    honoured = {"log4j.configurationFile", "LOG_LOCATION", "METRICS_LOCATION", "TS_DEBUG"}
    keys = [key for key in entries if key in OPTIONS and OPTIONS[key].no_effect]
    if "vmargs" in entries and len(honoured & _jvm_properties(entries).keys()) < len(entries["vmargs"].text.split()):
        keys.append("vmargs")
    return tuple(keys)
