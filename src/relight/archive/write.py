"""torch-model-archiver: pack a handler and its files (archives_and_handlers.md §1.5).

Files go straight from where they are into the archive; nothing is staged, and the archive appears whole or not at all.
"""

from __future__ import annotations

import glob
import gzip
import io
import logging
import os
import re
import shutil
import tarfile
import time
import uuid
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from relight.archive.files import appearing
from relight.archive.manifest import MANIFEST_PATH, render_manifest

if TYPE_CHECKING:
    import argparse

ARCHIVE_FORMATS = {"tgz": ".tar.gz", "no-archive": "", "zip-store": ".mar", "default": ".mar"}
"""Archive formats, each with the suffix of what it makes."""

SHORT_HANDLERS = (
    "base_handler",
    "text_classifier",
    "image_classifier",
    "object_detector",
    "image_segmenter",
    "dali_image_classifier",
    "vllm_handler",
    "trt_llm_handler",
)
"""Handler names that never mean a file."""

_OTHER_HANDLERS = ("text_handler", "vision_handler", "densenet_handler")
_LSP_HANDLERS = ("BaseHandler", "TorchScriptHandler")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-.]*")
_SKIPPED = ("__MACOSX", "__pycache__")
_EPOCH_OF_ZIP = 315532800
_log = logging.getLogger("relight.archive")


class ModelArchiverError(Exception):
    """The archive cannot be written as asked: the message says what to change."""


@dataclass
class ModelArchiverConfig:
    """What to pack; the fields are the flags of torch-model-archiver.

    Attributes:
        model_name: Name of the model and of the archive: letters, digits, `_`, `-` and `.`, not starting with `-`.
        handler: A built-in handler, or the path of a Python file, with or without `.py`, with or without `:function`.
        version: Model version; an empty one is left out.
        serialized_file: Weights.
        model_file: Python file of the architecture.
        extra_files: Files, directories (their contents) and globs, separated by commas.
        runtime: `python`, `python3` or `LSP`.
        export_path: Existing directory to write to.
        archive_format: One of `ARCHIVE_FORMATS`.
        force: Overwrite.
        requirements_file: pip requirements.
        config_file: The model's YAML configuration.
        reproducible: The same input gives the same bytes: sorted entries, fixed times and modes. On as well where
            SOURCE_DATE_EPOCH is set, whose time is used then (https://reproducible-builds.org/specs/source-date-epoch).
    """

    model_name: str
    handler: str
    version: str
    serialized_file: str | None = None
    model_file: str | None = None
    extra_files: str | None = None
    runtime: str = "python"
    export_path: str = field(default_factory=os.getcwd)
    archive_format: str = "default"
    force: bool = False
    requirements_file: str | None = None
    config_file: str | None = None
    reproducible: bool = False

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> ModelArchiverConfig:
        """The configuration that a parsed command line asks for."""
        names = cls.__dataclass_fields__
        return cls(**{name: value for name, value in vars(args).items() if name in names})


def create_archive(config: ModelArchiverConfig) -> Path:
    """Write an archive.

    Returns:
        The archive, or the directory for the format `no-archive`.

    Raises:
        ModelArchiverError: Bad name, bad export path, or the archive exists already.
        OSError: A file is missing or cannot be read; the archive cannot be written.
    """
    check_model_name(config.model_name)
    target = export_target(config.model_name, config.export_path, config.archive_format, force=config.force)
    moment = _fixed_time(config)
    files = collect_files(config)
    if moment is not None:
        files = dict(sorted(files.items()))
    manifest = manifest_of(config, moment).encode()
    if config.archive_format == "no-archive":
        _write_directory(target, files, manifest)
        return target
    with appearing(target, overwrite=config.force) as part:
        if config.archive_format == "tgz":
            _write_tar(part, config.model_name, files, manifest, moment)
        else:
            stored = config.archive_format == "zip-store"
            _write_zip(part, files, manifest, moment, zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED)
    return target


def check_model_name(name: str) -> None:
    """Refuse names that no model may have.

    Raises:
        ModelArchiverError: The name holds special characters.
    """
    if not _NAME.fullmatch(name):
        raise ModelArchiverError(
            "Model name contains special characters.\n"
            f"The allowed regular expression filter for model name is: ^{_NAME.pattern}$"
        )


def check_export_path(export_path: str) -> None:
    """Refuse a directory that is not there.

    Raises:
        ModelArchiverError: `export_path` is no directory.
    """
    if not Path(export_path).is_dir():
        raise ModelArchiverError(
            f"Given export-path {export_path} is not a directory. Point to a valid export-path directory."
        )


def export_target(model_name: str, export_path: str, archive_format: str = "default", *, force: bool = False) -> Path:
    """The path of the archive to write.

    Raises:
        ModelArchiverError: `export_path` is no directory, or the archive exists and `force` is off.
    """
    check_export_path(export_path)
    # Joined as text for the messages: a path object would drop the `./` that was given.
    target = os.path.join(export_path, model_name + ARCHIVE_FORMATS[archive_format])  # noqa: PTH118
    if os.path.lexists(target):
        if not force:
            raise ModelArchiverError(
                f"{target} already exists.\n"
                "Please specify --force/-f option to overwrite the model archive output file.\n"
                "See -h/--help for more details."
            )
        _log.warning("Overwriting %s ...", target)
    return Path(target)


def manifest_of(config: ModelArchiverConfig, moment: int | None = None) -> str:
    """The manifest of the archive; `createdOn` is the local time, or that of `moment` (seconds since 1970) in UTC."""

    def base(path: str | None) -> str | None:
        return os.path.basename(path) if path else None  # noqa: PTH119 "a/" has no name here, unlike for Path

    when = time.localtime() if moment is None else time.gmtime(moment)
    return render_manifest(
        model_name=config.model_name,
        model_version=config.version,
        handler=base(config.handler) or "",
        runtime=config.runtime,
        serialized_file=base(config.serialized_file),
        model_file=base(config.model_file),
        requirements_file=base(config.requirements_file),
        config_file=base(config.config_file),
        created_on=time.strftime("%d/%m/%Y %H:%M:%S", when),
    )


def collect_files(config: ModelArchiverConfig) -> dict[str, Path]:
    """The files to pack: name in the archive to file on disk. Later ones replace earlier ones of the same name.

    Raises:
        OSError: One of them is missing, or is a directory where a file is due.
    """
    files: dict[str, Path] = {}
    for name in (config.model_file, config.serialized_file, handler_file(config.handler, config.runtime)):
        if name:
            files[Path(name).name] = _checked(name)
    for item in filter(None, map(str.strip, (config.extra_files or "").split(","))):
        for path in _expanded(item):
            if path.is_dir():
                _add_directory(files, path, "", ())
            else:
                files[path.name] = _checked(str(path))
    for name in (config.requirements_file, config.config_file):
        if name:
            files[Path(name).name] = _checked(name)
    files.pop(MANIFEST_PATH, None)
    return files


def handler_file(handler: str, runtime: str = "python") -> str | None:
    """The file that a `--handler` names, None for a built-in handler. The file need not exist."""
    if handler in (_LSP_HANDLERS if runtime == "LSP" else SHORT_HANDLERS):
        return None
    entry = handler.partition(":")[0]
    if runtime == "LSP":
        return entry + ".so"
    if ".py" not in handler:
        path = entry + ".py"
    else:
        # `h.py:fn` means h.py, unless a file is really called so.
        path = handler if ":" not in handler or Path(handler).exists() else handler.rpartition(":")[0]
    if not Path(path).exists() and entry in SHORT_HANDLERS + _OTHER_HANDLERS:
        return None
    return path


def _expanded(item: str) -> list[Path]:
    if os.path.lexists(item):
        return [Path(item)]
    if not glob.has_magic(item):
        raise FileNotFoundError(f"File does not exist: {item}")
    found = sorted(glob.glob(item))  # noqa: PTH207 the pattern may be absolute or relative
    if not found:
        _log.warning("Given wildcard pattern did not match any file: %s", item)
    return [Path(name) for name in found]


def _checked(name: str) -> Path:
    """The path of a readable file; the errors of a missing one name it as it was given."""
    with open(name, "rb"):  # noqa: PTH123 Path would rewrite the name in the message
        return Path(name)


def _add_directory(files: dict[str, Path], directory: Path, prefix: str, above: tuple[str, ...]) -> None:
    """Add what is in `directory`, following links, except those that lead back up."""
    real = os.path.realpath(directory)
    if real in above:
        return
    for path in sorted(directory.iterdir()):
        if not path.is_dir():
            files[prefix + path.name] = _checked(str(path))
        elif path.name not in _SKIPPED and not path.name.startswith("."):
            _add_directory(files, path, f"{prefix}{path.name}/", (*above, real))


def _fixed_time(config: ModelArchiverConfig) -> int | None:
    """Seconds since 1970 that a reproducible archive carries; None if it need not be reproducible."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        return _EPOCH_OF_ZIP if config.reproducible else None
    try:
        time.gmtime(moment := int(given))
    except (ValueError, OverflowError, OSError) as error:
        raise ModelArchiverError(f"SOURCE_DATE_EPOCH is not a number of seconds: {given}") from error
    return moment


def _write_zip(part: Path, files: dict[str, Path], manifest: bytes, moment: int | None, method: int) -> None:
    def entry(name: str, when: tuple[int, ...], mode: int) -> zipfile.ZipInfo:
        # The zip format knows the years 1980 to 2107.
        if when[0] < 1980:
            when = (1980, 1, 1, 0, 0, 0)
        elif when[0] > 2107:
            when = (2107, 12, 31, 23, 59, 59)
        info = zipfile.ZipInfo(name, (when[0], when[1], when[2], when[3], when[4], when[5]))
        info.compress_type = method
        info.external_attr = (mode & 0xFFFF) << 16
        return info

    fixed = None if moment is None else time.gmtime(moment)[:6]
    with zipfile.ZipFile(part, "w", method) as archive:
        for name, path in files.items():
            with path.open("rb") as source:
                status = os.fstat(source.fileno())
                info = entry(name, fixed or time.localtime(status.st_mtime)[:6], 0o100644 if fixed else status.st_mode)
                info.file_size = status.st_size
                with archive.open(info, "w") as destination:
                    shutil.copyfileobj(source, destination, 1024 * 1024)
        archive.writestr(entry(MANIFEST_PATH, fixed or time.localtime()[:6], 0o100644), manifest)


def _write_tar(part: Path, model_name: str, files: dict[str, Path], manifest: bytes, moment: int | None) -> None:
    def fixed(info: tarfile.TarInfo) -> tarfile.TarInfo:
        if moment is not None:
            info.mtime, info.mode = moment, 0o644
            info.uid = info.gid = 0
            info.uname = info.gname = ""
        return info

    # gzip writes the name and the time of the file into its header, unless told otherwise.
    with (
        part.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=moment) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, path in files.items():
            with path.open("rb") as source:
                info = fixed(archive.gettarinfo(arcname=f"{model_name}/{name}", fileobj=source))
                # Hard links between inputs are files like any other.
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", os.fstat(source.fileno()).st_size
                archive.addfile(info, source)
        last = tarfile.TarInfo(f"{model_name}/{MANIFEST_PATH}")
        last.size = len(manifest)
        archive.addfile(last, io.BytesIO(manifest))


def _write_directory(target: Path, files: dict[str, Path], manifest: bytes) -> None:
    """Make the directory at once, or, where it exists, write over what is there."""
    new = not target.exists()
    place = target.with_name(f".{uuid.uuid4().hex}.part") if new else target
    try:
        for name, path in files.items():
            destination = place / name
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, destination)
        (place / MANIFEST_PATH).parent.mkdir(parents=True, exist_ok=True)
        (place / MANIFEST_PATH).write_bytes(manifest)
        if new:
            place.rename(target)
    except BaseException:
        if new:
            shutil.rmtree(place, ignore_errors=True)
        raise
