from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from relight.options import Address, ModelSource
from relight.settings import ALL_MODELS, OPTIONS, CommandLine, ConfigurationError, Settings, load_settings
from relight.sources import environment_names


def load(
    tmp_path: Path, text: str | None = None, argv: list[str] | None = None, env: dict[str, str] | None = None
) -> Settings:
    if text is not None:
        (tmp_path / "config.properties").write_text(text, encoding="iso-8859-1")
    return load_settings(CommandLine.parse(argv or []), env or {}, tmp_path)


def refused(
    tmp_path: Path, text: str | None = None, argv: list[str] | None = None, env: dict[str, str] | None = None
) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text, argv, env)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings == dataclasses.replace(
        Settings(), log_location=tmp_path / "logs", metrics_location=tmp_path / "logs", properties={}
    )
    assert (str(settings.inference_address), settings.job_queue_size) == ("http://127.0.0.1:8080", 100)
    assert (settings.max_request_size, settings.max_response_size) == (6553500, 6553500)
    assert (settings.shutdown_timeout, settings.max_archive_size) == (30.0, 64 * 1024**3)
    assert not settings.merged
    assert settings.temp_dir == Path("/tmp")


def test_every_key_is_documented_and_its_default_is_what_it_reads() -> None:
    assert len(OPTIONS) > 70
    for name, declared in OPTIONS.items():
        assert declared.doc.endswith("."), name
        assert "\n" not in declared.doc
    defaults = Settings()
    for name in (
        "inference_address",
        "grpc_inference_address",
        "grpc_inference_port",
        "metrics_mode",
        "job_queue_size",
    ):
        assert OPTIONS[name].read(str(getattr(defaults, name))) == getattr(defaults, name)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().debug = True  # type: ignore[misc]


def test_the_repr_holds_no_password(tmp_path: Path) -> None:
    settings = load(tmp_path, "keystore_pass=hunter2")
    assert settings.keystore_pass == "hunter2"
    assert "hunter2" not in repr(settings)


BAD = [
    ("inference_address=localhost:8080", "Invalid binding address: localhost:8080 (inference_address, "),
    ("inference_address=", "Invalid binding address:  (inference_address, "),
    ("management_address=http://h:1/", "Invalid binding address: http://h:1/ (management_address, "),
    ("metrics_address=http://h:", "Invalid binding address: http://h: (metrics_address, "),
    ("metrics_address=ftp://h:1", "Invalid binding address: ftp://h:1 (metrics_address, "),
    ("inference_address=http://::1:80", "Invalid binding address: http://::1:80 ("),
    ("inference_address=unix:relative", "Invalid binding address: unix:relative ("),
    ("inference_address=unix:/" + "a" * 107, "Invalid binding address: unix:/aaa"),
    ("inference_address=http://h:65536", "Invalid port number: http://h:65536 (inference_address, "),
    ("inference_address=http://h:" + "9" * 30, "Invalid port number: http://h:99999"),
    ("job_queue_size=ten", "job_queue_size=ten is not valid ("),
    ("job_queue_size=1.5", "job_queue_size=1.5 is not valid ("),
    ("job_queue_size=1 0", "job_queue_size=1 0 is not valid ("),
    ("job_queue_size=0x10", "job_queue_size=0x10 is not valid ("),
    ("job_queue_size=", "job_queue_size= is not valid ("),
    ("job_queue_size=0", "job_queue_size=0 is not valid ("),
    ("job_queue_size=2147483648", "job_queue_size=2147483648 is not valid ("),
    ("job_queue_size=" + "9" * 5000, "job_queue_size=" + "9" * 120 + "... is not valid ("),
    ("default_workers_per_model=-1", "default_workers_per_model=-1 is not valid ("),
    ("default_response_timeout=0", "default_response_timeout=0 is not valid ("),
    ("default_startup_timeout=2m", "default_startup_timeout=2m is not valid ("),
    ("unregister_model_timeout=-3", "unregister_model_timeout=-3 is not valid ("),
    ("max_request_size=-1", "max_request_size=-1 is not valid ("),
    ("max_response_size=6MB", "max_response_size=6MB is not valid ("),
    ("number_of_gpu=all", "number_of_gpu=all is not valid ("),
    ("number_of_netty_threads=-1", "number_of_netty_threads=-1 is not valid ("),
    ("initial_worker_port=x", "initial_worker_port=x is not valid ("),
    ("grpc_inference_port=http://0.0.0.0:7070", "grpc_inference_port=http://0.0.0.0:7070 is not valid ("),
    ("grpc_management_port=70000", "grpc_management_port=70000 is not valid ("),
    ("grpc_inference_address=http://127.0.0.1", "grpc_inference_address=http://127.0.0.1 is not valid ("),
    ("grpc_inference_address=localhost:7070", "grpc_inference_address=localhost:7070 is not valid ("),
    ("grpc_management_address=", "grpc_management_address= is not valid ("),
    ("grpc_inference_max_connection_age_ms=soon", "grpc_inference_max_connection_age_ms=soon is not valid ("),
    ("metric_time_interval=0", "metric_time_interval=0 is not valid ("),
    ("blacklist_env_vars=(", "blacklist_env_vars=( is not valid ("),
    ("allowed_urls=https://ok/.*,*bad", "allowed_urls=https://ok/.*,*bad is not valid ("),
    ("models={", "models={ is not valid ("),
    ("models=[]", "models=[] is not valid ("),
    ('models={"m": 1}', 'models={"m": 1} is not valid ('),
    ('models={"m": {"1.0": 2}}', 'models={"m": {"1.0": 2}} is not valid ('),
    ('models={"m": {"1.0": {"batchSize": "x"}}}', 'models={"m": {"1.0": {"batchSize": "x"}}} is not valid ('),
    ('models={"m": {"1.0": {"batchSize": true}}}', 'models={"m": {"1.0": {"batchSize": true}}} is not valid ('),
    ("shutdown_timeout=-1", "shutdown_timeout=-1 is not valid ("),
    ("shutdown_timeout=nan", "shutdown_timeout=nan is not valid ("),
    ("max_archive_size=big", "max_archive_size=big is not valid ("),
    ("model_store=$$NOT_SET$$", "Invalid Environment Variable NOT_SET (model_store, "),
    ("unknown_key=$$NOT_SET$$", "Invalid Environment Variable NOT_SET (unknown_key, "),
    ("model_server_home=/does/not/exist", "Model server home not exist: /does/not/exist ("),
]


@pytest.mark.parametrize(("line", "start"), BAD, ids=[line[:50] for line, _ in BAD])
def test_a_bad_value_names_key_value_source_and_form(tmp_path: Path, line: str, start: str) -> None:
    message = refused(tmp_path, f"# first line\n{line}\n")
    assert message.startswith(start)
    assert "config.properties:2): " in message
    if "Environment Variable" not in message:
        assert "): expected " in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://127.0.0.1:8080", Address("http", "127.0.0.1", 8080, "")),
        ("HTTP://Host:1", Address("http", "Host", 1, "")),
        ("https://h", Address("https", "h", 443, "")),
        ("http://h", Address("http", "h", 80, "")),
        ("http://[::1]:9", Address("http", "::1", 9, "")),
        ("https://[fe80::1]", Address("https", "fe80::1", 443, "")),
        ("http://0.0.0.0:65535", Address("http", "0.0.0.0", 65535, "")),
        ("unix:/tmp/a b.sock", Address("unix", "", 0, "/tmp/a b.sock")),
        ("UNIX:/x", Address("unix", "", 0, "/x")),
    ],
)
def test_addresses(text: str, expected: Address) -> None:
    address = Address.parse(text)
    assert address == expected
    assert str(address) == text


@pytest.mark.parametrize(
    ("key", "http", "https"),
    [("inference_address", 80, 443), ("management_address", 8081, 8444), ("metrics_address", 8082, 8445)],
)
def test_ports_when_an_address_names_none(tmp_path: Path, key: str, http: int, https: int) -> None:
    assert getattr(load(tmp_path, f"{key}=http://h"), key).port == http
    assert getattr(load(tmp_path, f"{key}=https://h"), key).port == https


@pytest.mark.parametrize(
    ("inference", "management", "merged"),
    [
        ("http://h:1", "http://h:1", True),
        ("http://h", "HTTP://h:80", True),
        ("unix:/a", "unix:/a", True),
        ("unix:/a", "unix:/b", False),
        ("http://h:1", "https://h:1", False),
        ("http://127.0.0.1:1", "http://localhost:1", False),
        ("http://h:1", "http://h:2", False),
    ],
)
def test_merged_listeners(tmp_path: Path, inference: str, management: str, merged: bool) -> None:
    settings = load(tmp_path, f"inference_address={inference}\nmanagement_address={management}\n")
    assert settings.merged is merged
    assert not settings.metrics_merged


def test_metrics_may_share_a_listener(tmp_path: Path) -> None:
    assert load(tmp_path, "metrics_address=http://127.0.0.1:8080").metrics_merged


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "tRuE"])
def test_only_true_is_true(tmp_path: Path, text: str) -> None:
    settings = load(tmp_path, f"enable_model_api={text} ")
    assert settings.enable_model_api
    assert not settings.warnings


@pytest.mark.parametrize("text", ["yes", "1", "on", "t", "tru", ""])
def test_everything_else_is_false_and_says_so(tmp_path: Path, text: str) -> None:
    settings = load(tmp_path, f"enable_metrics_api={text}")
    assert not settings.enable_metrics_api
    assert settings.warnings == (
        f'enable_metrics_api={text} (config.properties:1) means false: only "true" switches it on',
    )


@pytest.mark.parametrize(("text", "value"), [("+5", 5), ("005", 5), ("2147483647", 2147483647)])
def test_integers_in_javas_syntax(tmp_path: Path, text: str, value: int) -> None:
    assert load(tmp_path, f"job_queue_size={text}").job_queue_size == value


def test_lenient_keys_warn_and_keep_the_default(tmp_path: Path) -> None:
    settings = load(tmp_path, "metrics_mode=foo\ntoken_expiration_min=soon\n")
    assert (settings.metrics_mode, settings.token_expiration_min) == ("log", 60.0)
    assert list(settings.warnings) == [
        "metrics_mode=foo is not valid (config.properties:1): expected log, prometheus or legacy; the default is used",
        (
            "token_expiration_min=soon is not valid (config.properties:2): expected a number of minutes; "
            "the default is used"
        ),
    ]


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_a_lifetime_is_finite(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, f"token_expiration_min={text}").token_expiration_min == 60.0


def test_values_of_several_kinds(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        "metrics_mode=Pro metheus\ntoken_expiration_min=0.1\nnumber_of_gpu=-1\nmax_request_size=5000000000\n"
        "allowed_urls=https://a/.*, s3://b/.*\ncors_allowed_origin=*\nservice_envelope=\nkeystore=\n"
        "grpc_inference_address=[::1]\nshutdown_timeout=2.5\nblacklist_env_vars=.*SECRET.*\n",
    )
    assert settings.metrics_mode == "prometheus"
    assert settings.token_expiration_min == 0.1
    assert settings.number_of_gpu == 0
    assert settings.max_request_size == 5_000_000_000
    assert settings.allowed_urls == ("https://a/.*", "s3://b/.*")
    assert (settings.cors_allowed_origin, settings.service_envelope, settings.keystore) == ("*", None, None)
    assert settings.grpc_inference_address == "::1"
    assert settings.shutdown_timeout == 2.5
    assert settings.blacklist_env_vars == ".*SECRET.*"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", ALL_MODELS),
        ("ALL", ALL_MODELS),
        ("a.mar, b.mar ,,", (ModelSource(None, "a.mar"), ModelSource(None, "b.mar"))),
        ("n=a.mar", (ModelSource("n", "a.mar"),)),
        ("n = a.mar", (ModelSource("n", "a.mar"),)),
        ("n=http://h/a.mar?x=1", (ModelSource("n", "http://h/a.mar?x=1"),)),
        ("http://h/a.mar?x=1", (ModelSource(None, "http://h/a.mar?x=1"),)),
        ("all,x.mar", (ModelSource(None, "all"), ModelSource(None, "x.mar"))),
        ("", ()),
    ],
)
def test_models_to_load(tmp_path: Path, text: str, expected: object) -> None:
    assert load(tmp_path, f"load_models={text}").load_models == expected


def test_the_models_flag_goes_before_the_file(tmp_path: Path) -> None:
    settings = load(tmp_path, "load_models=x.mar", ["--models", "a.mar", "n=b.mar"])
    assert settings.load_models == (ModelSource(None, "a.mar"), ModelSource("n", "b.mar"))


def test_settings_of_single_models(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        'models={\\\n "m": {\\\n "1.0": {"minWorkers": "2", "maxWorkers": 3.0, "batchSize": 0, "maxBatchDelay": -1,\\\n'
        ' "responseTimeout": [1], "startupTimeout": null, "runtimeType": "LSP", "marName": "m.mar"}}}\n',
    )
    assert settings.models == {
        "m": {"1.0": {"minWorkers": 2, "maxWorkers": 3, "runtimeType": "LSP", "marName": "m.mar"}}
    }


def test_paths_start_at_the_working_directory(tmp_path: Path) -> None:
    settings = load(tmp_path, "model_store=store\nmetrics_config=/abs/m.yaml\n", ["--log-config", "l.xml"])
    assert settings.model_store == tmp_path / "store"
    assert settings.metrics_config == Path("/abs/m.yaml")
    assert settings.log_config == tmp_path / "l.xml"
    assert settings.properties["model_store"] == "store"


@pytest.mark.parametrize(
    ("text", "env", "expected"),
    [
        ("model_store=a\n", {}, "a"),
        ("model_store=a\nworkflow_store=w\n", {}, "w"),
        ("model_store=a\nenable_envvars_config=true\n", {"TS_MODEL_STORE": "e"}, "e"),
    ],
)
def test_the_workflow_store_is_the_model_store_by_default(
    tmp_path: Path, text: str, env: dict[str, str], expected: str
) -> None:
    assert load(tmp_path, text, [], env).workflow_store == tmp_path / expected


# Which file


def test_which_file(tmp_path: Path) -> None:
    for name, size in (("env.properties", 1), ("flag.properties", 2), ("config.properties", 3)):
        (tmp_path / name).write_text(f"job_queue_size={size}")
    env = {"TS_CONFIG_FILE": "env.properties"}
    flag = ["--ts-config", "flag.properties"]
    assert load(tmp_path, argv=flag, env=env).job_queue_size == 1
    assert load(tmp_path, argv=flag, env={"TS_CONFIG_FILE": ""}).job_queue_size == 2
    assert load(tmp_path, argv=flag).config_file == Path("flag.properties")
    assert load(tmp_path).job_queue_size == 3
    (tmp_path / "config.properties").unlink()
    assert load(tmp_path).config_file is None


def test_a_named_file_has_to_exist(tmp_path: Path) -> None:
    expected = "--ts-config file not found: no.properties"
    assert refused(tmp_path, argv=["--ts-config", "no.properties"]) == expected
    assert refused(tmp_path, env={"TS_CONFIG_FILE": "no.properties"}) == expected


# Precedence


def test_file_flag_environment_in_this_order(tmp_path: Path) -> None:
    env = {"TS_MODEL_STORE": "env"}
    assert load(tmp_path, "model_store=file").model_store == tmp_path / "file"
    assert load(tmp_path, "model_store=file", ["--model-store", "flag"], env).model_store == tmp_path / "flag"
    text = "model_store=file\nenable_envvars_config=true"
    assert load(tmp_path, text, ["--model-store", "flag"], env).model_store == tmp_path / "env"


def test_the_environment_counts_only_where_the_file_says_so(tmp_path: Path) -> None:
    env = {"TS_JOB_QUEUE_SIZE": "7", "TS_ENABLE_ENVVARS_CONFIG": "true"}
    assert load(tmp_path, "", env=env).job_queue_size == 100
    assert load(tmp_path, "enable_envvars_config=TRUE", env=env).job_queue_size == 7
    assert load(tmp_path, "enable_envvars_config=$$YES$$", env=env | {"YES": "true"}).job_queue_size == 7


def test_flags_only_switch_on(tmp_path: Path) -> None:
    text = "disable_token_authorization=true\nenable_model_api=true"
    assert load(tmp_path, text).disable_token_authorization
    assert load(tmp_path, text).enable_model_api
    flags = ["--disable-token-auth", "--enable-model-api"]
    assert load(tmp_path, "disable_token_authorization=false", flags).disable_token_authorization
    assert load(tmp_path, "enable_model_api=false", flags).enable_model_api


def test_the_environment_beats_flags(tmp_path: Path) -> None:
    env = {"TS_DISABLE_TOKEN_AUTHORIZATION": "false", "TS_LOAD_MODELS": "e.mar"}
    settings = load(tmp_path, "enable_envvars_config=true", ["--dt", "--models", "f.mar"], env)
    assert not settings.disable_token_authorization
    assert settings.load_models == (ModelSource(None, "e.mar"),)


def test_names_of_variables() -> None:
    assert environment_names("job_queue_size", OPTIONS["job_queue_size"]) == ("TS_JOB_QUEUE_SIZE",)
    key = "ts_header_key_sequence_id"
    assert environment_names(key, OPTIONS[key]) == ("TS_HEADER_KEY_SEQUENCE_ID",)
    for key in (
        "models",
        "use_native_io",
        "vmargs",
        "system_metrics_cmd",
        "metric_time_interval",
        "enable_envvars_config",
    ):
        assert environment_names(key, OPTIONS[key]) == ()


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"TS_TOKEN_EXPIRATION_TIME_MIN": "5"}, 5.0),
        ({"TS_TOKEN_EXPIRATION_MIN": "6"}, 6.0),
        ({"TS_TOKEN_EXPIRATION_TIME_MIN": "5", "TS_TOKEN_EXPIRATION_MIN": "6"}, 5.0),
    ],
)
def test_both_names_of_the_token_lifetime(tmp_path: Path, env: dict[str, str], expected: float) -> None:
    assert load(tmp_path, "enable_envvars_config=true", env=env).token_expiration_min == expected


def test_an_empty_variable_is_set(tmp_path: Path) -> None:
    message = refused(tmp_path, "enable_envvars_config=true", env={"TS_JOB_QUEUE_SIZE": ""})
    assert message == "job_queue_size= is not valid (TS_JOB_QUEUE_SIZE): expected a whole number, at least 1"
    settings = load(tmp_path, "enable_envvars_config=true\nservice_envelope=json", env={"TS_SERVICE_ENVELOPE": ""})
    assert settings.service_envelope is None


def test_variables_that_may_not_be_set(tmp_path: Path) -> None:
    settings = load(tmp_path, "enable_envvars_config=true", env={"TS_METRIC_TIME_INTERVAL": "1", "TS_WHATEVER": "x"})
    assert settings.metric_time_interval == 60
    assert settings.unknown == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("use_env_allowed_urls=true", "file://.*|http(s)?://.*"),
        ("enable_envvars_config=true", "file://.*|http(s)?://.*"),
        ("enable_envvars_config=true\nuse_env_allowed_urls=True", "https://mine/.*"),
    ],
)
def test_allowed_urls_from_the_environment_need_two_switches(tmp_path: Path, text: str, expected: str) -> None:
    assert load(tmp_path, text, env={"TS_ALLOWED_URLS": "https://mine/.*"}).allowed_urls == (expected,)


@pytest.mark.parametrize(("text", "expected"), [("oip", True), ("", False), ("true", False), ("OIP", False)])
@pytest.mark.parametrize("switch", ["", "enable_envvars_config=true\n"])
def test_the_open_inference_variable_needs_no_switch(tmp_path: Path, switch: str, text: str, expected: bool) -> None:
    settings = load(tmp_path, f"{switch}ts_open_inference_protocol=true", env={"TS_OPEN_INFERENCE_PROTOCOL": text})
    assert settings.ts_open_inference_protocol is expected


def test_the_open_inference_key(tmp_path: Path) -> None:
    assert load(tmp_path, "ts_open_inference_protocol=true").ts_open_inference_protocol


def test_bad_flags_and_variables_are_named(tmp_path: Path) -> None:
    message = refused(tmp_path, "enable_envvars_config=true", env={"TS_METRICS_ADDRESS": "x"})
    assert message.startswith("Invalid binding address: x (metrics_address, TS_METRICS_ADDRESS): expected http://host")
    message = refused(tmp_path, "", env={"TS_MODEL_SERVER_HOME": "/no/such"})
    assert message.startswith("Model server home not exist: /no/such (model_server_home, TS_MODEL_SERVER_HOME)")


# Derived values


def test_places_from_the_environment(tmp_path: Path) -> None:
    env = {"LOG_LOCATION": "/var/l", "METRICS_LOCATION": "m", "TEMP": "t"}
    settings = load(tmp_path, "vmargs=-DLOG_LOCATION=/other -DMETRICS_LOCATION=/other", env=env)
    assert settings.log_location == Path("/var/l")
    assert settings.metrics_location == tmp_path / "m"
    assert settings.temp_dir == tmp_path / "t"


def test_properties_of_the_jvm_that_still_count(tmp_path: Path) -> None:
    text = (
        "vmargs=-Xmx4g -DLOG_LOCATION=/l -DMETRICS_LOCATION=/m -Dlog4j.configurationFile=file:///l.xml -DTS_DEBUG=true"
    )
    settings = load(tmp_path, text)
    assert (settings.log_location, settings.metrics_location) == (Path("/l"), Path("/m"))
    assert settings.log_config == Path("/l.xml")
    assert settings.debug
    assert settings.ignored == ("vmargs",)
    assert load(tmp_path, text, ["--log-config", "/f.xml"]).log_config == Path("/f.xml")
    assert load(tmp_path, "vmargs=-DLOG_LOCATION=/l").ignored == ()


def test_keys_without_effect_are_listed(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        "prefer_direct_buffer=true\nNUM_WORKERS=1\nmodel_snapshot={}\nversion=0.12.0\nnumber_of_netty_threads=32\n",
        ["--ppath", "p"],
    )
    assert settings.ignored == ("prefer_direct_buffer", "number_of_netty_threads", "plugins_path")
    assert settings.unknown == ("NUM_WORKERS",)
    assert settings.properties["NUM_WORKERS"] == "1"
    assert settings.properties["model_snapshot"] == "{}"


def test_snapshots_can_be_off(tmp_path: Path) -> None:
    assert load(tmp_path, argv=["--ncs"]).no_config_snapshots


def test_the_modules_import_only_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import relight.settings; import relight.cli.torchserve;"
        "print({name.partition('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'relight'}\n"


def test_what_is_still_to_come_is_named(tmp_path: Path) -> None:
    lines = [
        "metrics_mode=prometheus",
        "install_py_dep_per_model=false",
        "initial_distribution_port=30000",
        "job_queue_size=5",
    ]

    assert load(tmp_path, "\n".join(lines)).unsupported == ("metrics_mode", "initial_distribution_port")
    assert load(tmp_path, "model_snapshot={}").unsupported == ("model_snapshot",)
    assert load(tmp_path, "metrics_mode=log").unsupported == ()
