"""torch-model-archiver: its flags, its messages, and what is in the archives."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

import model_archiver
from model_archiver import ModelArchiver, ModelArchiverConfig, model_packaging
from model_archiver.manifest_components.manifest import RuntimeType
from model_archiver.model_archiver_error import ModelArchiverError
from model_archiver.model_packaging_utils import ModelExportUtils
from relight.archive.store import ModelStore
from relight.cli.model_archiver import main

BASE = ["--model-name", "m", "--handler", "h", "-v", "1"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    # The command line sets up logging, which would outlive the test.
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    for name, text in {"h.py": "handler", "m.py": "model", "w.pt": "weights", "r.txt": "req", "c.yaml": "a: 1"}.items():
        Path(name).write_text(text)
    for name in ("ex/a", "ex/sub/b", "ex/.h", "ex/z.pyc", "ex/__pycache__/y", "ex/.hid/x", "ex/sub/__MACOSX/q"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    return tmp_path


def names(path: str = "m.mar") -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def manifest(path: str = "m.mar") -> dict[str, object]:
    with zipfile.ZipFile(path) as archive:
        document: dict[str, object] = json.loads(archive.read("MAR-INF/MANIFEST.json"))
    return document


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The command ends with 1 and one message, and writes nothing."""
    before = sorted(Path().rglob("*"))
    assert main([*BASE, *arguments]) == 1
    assert sorted(Path().rglob("*")) == before
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ERROR - ")
    assert "Traceback" not in err
    return err.removeprefix("ERROR - ").removesuffix("\n")


FULL = ["--model-file", "m.py", "--serialized-file", "w.pt", "-r", "r.txt", "-c", "c.yaml", "--extra-files", "ex"]
FULL_NAMES = ["m.py", "w.pt", "h.py", ".h", "a", "sub/b", "z.pyc", "r.txt", "c.yaml", "MAR-INF/MANIFEST.json"]


def test_a_full_archive(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, *FULL]) == 0
    assert capsys.readouterr() == ("", "")
    assert names() == FULL_NAMES
    found = manifest()
    created = found.pop("createdOn")
    assert time.strptime(str(created), "%d/%m/%Y %H:%M:%S")
    assert list(found) == ["runtime", "model", "archiverVersion"]
    assert found["model"] == {
        "modelName": "m",
        "serializedFile": "w.pt",
        "handler": "h",
        "modelFile": "m.py",
        "modelVersion": "1",
        "requirementsFile": "r.txt",
        "configFile": "c.yaml",
    }
    assert [path for path in Path().iterdir() if path.name.endswith(".part")] == []


@pytest.mark.parametrize(("kind", "method"), [("default", zipfile.ZIP_DEFLATED), ("zip-store", zipfile.ZIP_STORED)])
def test_zips(kind: str, method: int) -> None:
    main([*BASE, "--archive-format", kind])
    with zipfile.ZipFile("m.mar") as archive:
        assert {info.compress_type for info in archive.infolist()} == {method}


def test_a_tar_has_a_root_and_a_plain_manifest() -> None:
    main([*BASE, *FULL, "--archive-format", "tgz"])
    with tarfile.open("m.tar.gz") as archive:
        assert archive.getnames() == ["m/" + name for name in FULL_NAMES]
        last = archive.getmembers()[-1]
        assert (last.mtime, last.uid, last.gid, last.mode) == (0, 0, 0, 0o644)


def test_a_directory() -> None:
    main([*BASE, *FULL, "--archive-format", "no-archive"])
    assert sorted(str(path.relative_to("m")) for path in Path("m").rglob("*") if path.is_file()) == sorted(FULL_NAMES)


@pytest.mark.parametrize("kind", ["default", "zip-store", "tgz", "no-archive"])
def test_the_server_reads_what_was_written(kind: str, tmp_path: Path) -> None:
    main([*BASE, *FULL, "--archive-format", kind])
    name = {"tgz": "m.tar.gz", "no-archive": "m"}.get(kind, "m.mar")
    store = ModelStore(tmp_path, tmp_path / "work")
    archive = store.open(name)
    assert archive.manifest is not None
    assert archive.manifest.config_file == "c.yaml"
    assert (archive.model_dir / "sub/b").read_text() == "ex/sub/b"
    store.close()


@pytest.mark.parametrize("handler", ["h", "h.py", "h:fn", "h.py:fn", "./h", "./h.py:fn"])
def test_handlers_that_are_files(handler: str) -> None:
    assert main(["--model-name", "m", "--handler", handler, "-v", "1"]) == 0
    assert names() == ["h.py", "MAR-INF/MANIFEST.json"]
    assert manifest()["model"] == {"modelName": "m", "handler": handler.removeprefix("./"), "modelVersion": "1"}


@pytest.mark.parametrize("handler", ["image_classifier", "vllm_handler", "image_classifier:fn", "densenet_handler"])
def test_built_in_handlers_add_no_file(handler: str) -> None:
    assert main(["--model-name", "m", "--handler", handler, "-v", "1"]) == 0
    assert names() == ["MAR-INF/MANIFEST.json"]


def test_a_file_named_like_a_lesser_known_handler_is_that_file() -> None:
    Path("densenet_handler.py").write_text("mine")
    assert main(["--model-name", "m", "--handler", "densenet_handler", "-v", "1"]) == 0
    assert names() == ["densenet_handler.py", "MAR-INF/MANIFEST.json"]


def test_native_handlers() -> None:
    Path("h.so").write_text("native")
    assert main([*BASE, "--runtime", "LSP"]) == 0
    assert names() == ["h.so", "MAR-INF/MANIFEST.json"]
    assert main(["--model-name", "m", "--handler", "TorchScriptHandler", "-v", "1", "--runtime", "LSP", "-f"]) == 0
    assert names() == ["MAR-INF/MANIFEST.json"]


def test_an_empty_version_is_left_out() -> None:
    main(["--model-name", "m", "--handler", "h", "-v", ""])
    assert manifest()["model"] == {"modelName": "m", "handler": "h"}


@pytest.mark.parametrize("given", ["ex/a, w.pt", "ex/a,w.pt,", " ex/a ,, w.pt"])
def test_extra_files_are_stripped(given: str) -> None:
    main([*BASE, "--extra-files", given])
    assert names() == ["h.py", "a", "w.pt", "MAR-INF/MANIFEST.json"]


def test_globs(caplog: pytest.LogCaptureFixture) -> None:
    main([*BASE, "--extra-files", "*.p[ty],nom*"])
    assert names() == ["h.py", "m.py", "w.pt", "MAR-INF/MANIFEST.json"]
    assert "Given wildcard pattern did not match any file: nom*" in caplog.text


def test_later_files_win_and_directories_merge() -> None:
    for name in ("two/a", "two/sub/c"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("two")
    main([*BASE, "--extra-files", "ex,two"])
    assert names().count("a") == 1
    assert {"sub/b", "sub/c"} <= set(names())
    with zipfile.ZipFile("m.mar") as archive:
        assert archive.read("a") == b"two"


def test_links_are_stored_as_their_content_and_circles_end() -> None:
    Path("ex/link").symlink_to("a")
    Path("ex/sub/up").symlink_to("..")
    main([*BASE, "--extra-files", "ex"])
    with zipfile.ZipFile("m.mar") as archive:
        assert archive.read("link") == b"ex/a"
    assert len(names()) < 20


@pytest.mark.parametrize("name", ["n@", "-n", ".n", "a/b", "a b", "", "n\n"])
def test_bad_names(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model-name=" + name, "--handler", "h", "-v", "1"]) == 1
    assert capsys.readouterr().err == (
        "ERROR - Model name contains special characters.\n"
        "The allowed regular expression filter for model name is: ^[A-Za-z0-9][A-Za-z0-9_\\-.]*$\n"
    )


@pytest.mark.parametrize(("kind", "name"), [("default", "m.mar"), ("tgz", "m.tar.gz"), ("no-archive", "m")])
def test_nothing_is_overwritten_unasked(
    kind: str, name: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    main([*BASE, "--archive-format", kind])
    assert fails(capsys, "--archive-format", kind) == (
        f"{name} already exists.\nPlease specify --force/-f option to overwrite the model archive output file.\n"
        "See -h/--help for more details."
    ).replace(name, str(Path.cwd() / name), 1)
    assert main([*BASE, "--archive-format", kind, "-f", "--serialized-file", "w.pt"]) == 0
    assert f"Overwriting {Path.cwd() / name} ..." in caplog.text


def test_messages_of_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    missing = "[Errno 2] No such file or directory: 'no'"
    assert fails(capsys, "--model-file", "no") == missing
    assert fails(capsys, "--serialized-file", "no") == missing
    assert fails(capsys, "-r", "no") == missing
    assert fails(capsys, "-c", "no") == missing
    assert fails(capsys, "--handler", "no") == "[Errno 2] No such file or directory: 'no.py'"
    assert fails(capsys, "--handler", "no.py:fn") == "[Errno 2] No such file or directory: 'no.py'"
    assert fails(capsys, "--extra-files", "w.pt,no") == "File does not exist: no"
    assert fails(capsys, "--serialized-file", "ex") == "[Errno 21] Is a directory: 'ex'"
    assert fails(capsys, "--export-path", "no") == (
        "Given export-path no is not a directory. Point to a valid export-path directory."
    )
    assert "is not a directory" in fails(capsys, "--export-path", "h.py")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: --model-name, --handler, -v/--version"),
        ([*BASE, "--runtime", "pythonX"], "argument --runtime: invalid choice: 'pythonX'"),
        ([*BASE, "--archive-format", "war"], "argument --archive-format: invalid choice: 'war'"),
        ([*BASE, "--model-path", "x"], "unrecognized arguments: --model-path x"),
    ],
)
def test_usage_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_prefixes_of_flags_are_understood() -> None:
    assert main(["--model-n", "m", "--hand", "h", "--vers", "1", "--ser", "w.pt", "--exp", "ex", "--forc"]) == 0
    assert names("ex/m.mar") == ["w.pt", "h.py", "MAR-INF/MANIFEST.json"]


@pytest.mark.parametrize("kind", ["default", "zip-store", "tgz"])
def test_reproducible_archives_are_identical(kind: str) -> None:
    file = "m.tar.gz" if kind == "tgz" else "m.mar"
    main([*BASE, *FULL, "--archive-format", kind, "--reproducible"])
    first = Path(file).read_bytes()
    os.utime("w.pt", (1e9, 1e9))
    Path("h.py").chmod(0o755)
    with pytest.MonkeyPatch.context() as tokyo:
        tokyo.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        main([*BASE, *FULL, "--archive-format", kind, "--reproducible", "-f"])
    time.tzset()
    assert Path(file).read_bytes() == first


def test_reproducible_archives_carry_a_fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    main([*BASE, *FULL, "--reproducible"])
    assert manifest()["createdOn"] == "01/01/1980 00:00:00"
    assert names() == [*sorted(FULL_NAMES[:-1]), FULL_NAMES[-1]]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    main([*BASE, "-f"])
    assert manifest()["createdOn"] == "14/11/2023 22:13:20"
    with zipfile.ZipFile("m.mar") as archive:
        assert {info.date_time for info in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}


@pytest.mark.parametrize("value", ["yesterday", "", "9" * 30])
def test_a_bad_epoch_is_named(value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", value)
    assert fails(capsys) == f"SOURCE_DATE_EPOCH is not a number of seconds: {value}"


@pytest.mark.parametrize("epoch", ["0", "9999999999"])
def test_times_that_a_zip_cannot_hold(epoch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    assert main(BASE) == 0


def test_a_failed_archive_leaves_the_old_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(BASE)
    old = Path("m.mar").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    assert fails(capsys, "-f") == "[Errno 28] No space left on device"
    assert Path("m.mar").read_bytes() == old


def test_a_model_named_like_a_temporary_directory_destroys_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert main(["--model-name", "ex", "--handler", "h", "-v", "1"]) == 0
    assert Path("ex/sub/b").exists()


def test_the_programs_api() -> None:
    config = ModelArchiverConfig("m", "h", "2", runtime=RuntimeType.PYTHON.value)
    ModelArchiver.generate_model_archive(config)
    assert manifest()["runtime"] == "python"
    with pytest.raises(ModelArchiverError, match="already exists"):
        ModelArchiver.generate_model_archive(config)
    model_packaging.generate_model_archive(ModelArchiverConfig("m2", "h", "2", runtime=RuntimeType.PYTHON3))
    assert manifest("m2.mar")["runtime"] == "python3"
    assert model_archiver.__version__ == "0.12.0"


def test_the_programs_api_reads_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["torch-model-archiver", *BASE])
    model_packaging.generate_model_archive()
    assert names() == ["h.py", "MAR-INF/MANIFEST.json"]


def test_the_single_steps() -> None:
    assert ModelExportUtils.get_archive_export_path("/x", "m", "tgz") == "/x/m.tar.gz"
    assert ModelExportUtils.check_mar_already_exists("m", None, overwrite=False) == str(Path.cwd() / "m.mar")
    text = ModelExportUtils.generate_manifest_json(ModelArchiverConfig("m", "d/h.py", "1"))
    assert json.loads(text)["model"]["handler"] == "h.py"
    ModelExportUtils.validate_inputs("m", ".")
    with pytest.raises(ModelArchiverError, match="is not a directory"):
        ModelExportUtils.validate_inputs("m", "no")
    with pytest.raises(ModelArchiverError, match="special characters"):
        ModelExportUtils.check_model_name_regex_or_exit("n@")


def test_help_imports_nothing_it_does_not_need() -> None:
    code = (
        "import sys; from relight.cli.model_archiver import build_parser; build_parser().format_help();"
        "print([name for name in ('httpx', 'yaml', 'zipfile', 'asyncio', 'torch') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_the_command_itself() -> None:
    command = Path(sys.executable).with_name("torch-model-archiver")
    run = subprocess.run([command, *BASE, "--extra-files", "nom*"], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "")
    assert run.stderr == "WARNING - Given wildcard pattern did not match any file: nom*\n"
    assert Path("m.mar").exists()
