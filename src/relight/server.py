"""The composition root: settings in, running listeners out. The one place that knows every part."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from relight.api.grpc.services import inference_listener, management_listener
from relight.api.http.inference import InferenceApi
from relight.api.http.listener import HttpListener
from relight.api.http.management import ManagementApi
from relight.api.http.metrics import MetricsApi
from relight.api.http.open_inference import OpenInferenceApi
from relight.api.sockets import bind, bind_grpc, release
from relight.archive.fetch import FetchLimits
from relight.archive.store import ModelStore
from relight.archive.unpack import UnpackLimits
from relight.archive.urls import AllowedUrls
from relight.security.tls import server_context
from relight.security.tokens import KEY_FILE_NAME, TokenAuthority
from relight.serving.registry import Registry
from relight.settings import ConfigurationError
from relight.telemetry.access_log import AccessLog
from relight.telemetry.logs import Logs

if TYPE_CHECKING:
    import ssl

    from relight.api.grpc.listener import GrpcListener
    from relight.readiness import Readiness
    from relight.serving.launchers.forkserver import ForkServerLauncher
    from relight.settings import Address, Settings

logger = logging.getLogger("relight.server")

_BACKLOG = 1024
_MOST_FILES = 1024 * 1024
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StartError(Exception):
    """The server cannot start; the message says why, for the operator."""


def run(settings: Settings, launcher: ForkServerLauncher, report: Readiness) -> int:
    """Run a server until a signal ends it.

    Args:
        settings: Its settings.
        launcher: Starts its workers.
        report: Told when it is up, or why it is not.

    Returns:
        The exit status.
    """
    try:
        logs = Logs(settings.log_location, settings.metrics_location)
    except OSError as error:
        message = f"Cannot write the logs: {error}"
        print(message, flush=True)  # noqa: T201 - there is no log to say it in
        report.failed(message)
        return 1
    _allow_many_files()
    server = Server(settings, launcher, logs)
    try:
        return uvloop.run(server.serve(report))
    except (StartError, ConfigurationError) as error:
        logs.close()
        print(error, flush=True)  # noqa: T201 - part of the command's interface
        report.failed(str(error))
        return 1
    finally:
        logs.close()


class Server:
    """All parts of one server.

    Args:
        settings: Its settings.
        launcher: Starts its workers.
        logs: Where it logs.
    """

    def __init__(self, settings: Settings, launcher: ForkServerLauncher, logs: Logs) -> None:
        self._settings = settings
        self._launcher = launcher
        self._access_log = AccessLog(logs.access, [logs.everything, logs.console])
        self._console = logs.console
        store = ModelStore(
            settings.model_store,
            settings.temp_dir,
            AllowedUrls(",".join(settings.allowed_urls)),
            unpack_limits=UnpackLimits(max_bytes=settings.max_archive_size),
            fetch_limits=FetchLimits(max_archive_size=settings.max_archive_size),
        )
        self._store = store
        self.registry = Registry(settings, store, launcher)
        self._tokens: TokenAuthority | None = None
        self._listeners: list[HttpListener | GrpcListener] = []
        self._servers: list[asyncio.Server] = []
        self._sockets: list[tuple[str, Address, socket.socket]] = []
        self._grpc_sockets: dict[str, socket.socket] = {}
        self._tls: ssl.SSLContext | None = None

    async def serve(self, report: Readiness) -> int:
        """Start, serve until a signal comes, and end in order.

        Raises:
            StartError: an address cannot be bound.
            ConfigurationError: the key file cannot be written.
        """
        stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._handle_signals(stopped)
        try:
            # First of all, as another server here is told by a busy port; its key file must not be touched.
            self._bind()
            if not self._settings.disable_token_authorization:
                self._tokens = TokenAuthority(Path.cwd() / KEY_FILE_NAME, self._settings.token_expiration_min)
                logger.info("%s", self._tokens.notice)
            self._announce()
            await asyncio.to_thread(self._store.clean_stale)
            loading = asyncio.ensure_future(self.registry.load_initial())
            waited: list[asyncio.Future[Any]] = [loading, stopped]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
                await self._accept()
                self._console.write("Model server started.\n")
                report.ready()
                await asyncio.wait([stopped])
            else:
                report.failed("stopped by a signal while it was starting")
                loading.cancel()
            logger.info("Stopping: signal %s", signal.Signals(stopped.result()).name)
            return 128 + stopped.result()
        finally:
            await self._close()

    def _handle_signals(self, stopped: asyncio.Future[int]) -> None:
        loop = asyncio.get_running_loop()

        def stop(number: int) -> None:
            if stopped.done():
                logger.warning("Signal %s: stopping already", signal.Signals(number).name)
            else:
                stopped.set_result(number)

        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, stop, number)

    def _announce(self) -> None:
        settings = self._settings
        for warning in settings.warnings:
            logger.warning("%s", warning)
        if settings.ignored:
            logger.info("Settings without effect here: %s", ", ".join(settings.ignored))
        if settings.unsupported:
            logger.warning("Settings that relight does not support yet: %s", ", ".join(settings.unsupported))
        if settings.unknown:
            logger.info("Unknown settings: %s", ", ".join(settings.unknown))
        if "allowed_urls" not in settings.properties:
            logger.warning(
                "Your torchserve instance can access any URL to load models. "
                "When deploying to production, make sure to limit the set of allowed_urls in config.properties"
            )
        logger.info(
            "relight serves models from %s; inference %s, management %s, metrics %s; Python %s; GPUs %d",
            settings.model_store,
            settings.inference_address,
            settings.management_address,
            settings.metrics_address,
            sys.executable,
            self.registry.gpus,
        )

    # -- listeners -----------------------------------------------------------------------------------------------

    def _bind(self) -> None:
        """Bind all addresses, before models are loaded: a busy port is told at once."""
        settings = self._settings
        addresses = {"Inference": settings.inference_address}
        if not settings.merged:
            addresses["Management"] = settings.management_address
        if settings.enable_metrics_api and not settings.metrics_merged:
            addresses["Metrics"] = settings.metrics_address
        for role, address in addresses.items():
            if address.scheme == "https":
                raise StartError(f"Invalid configuration: {address}: TLS is not supported yet; use http")
            try:
                self._sockets.append((role, address, bind(address)))
            except OSError as error:
                raise _cannot_bind(role, str(address), error) from error
        self._bind_grpc("inference", settings.grpc_inference_address, settings.grpc_inference_port)
        self._bind_grpc("management", settings.grpc_management_address, settings.grpc_management_port)
        if settings.enable_grpc_ssl:
            self._tls = server_context(settings.certificate_file, settings.private_key_file, ["h2"])

    def _bind_grpc(self, role: str, host: str, port: int) -> None:
        try:
            self._grpc_sockets[role] = bind_grpc(host, port)
        except OSError as error:
            raise _cannot_bind(f"gRPC {role}", f"{host}:{port}", error) from error

    async def _accept(self) -> None:
        """Serve what each address is for.

        Raises:
            StartError: another server has begun to listen on an address meanwhile.
        """
        settings = self._settings
        inference = InferenceApi(self.registry)
        open_inference = None
        if settings.ts_open_inference_protocol:
            open_inference = OpenInferenceApi(self.registry, settings.max_request_size)
        management = ManagementApi(self.registry, enable_model_api=settings.enable_model_api)
        metrics = MetricsApi() if settings.enable_metrics_api else None
        for role, address, bound in self._sockets:
            listener = HttpListener(
                settings,
                self._access_log,
                self._tokens,
                inference=inference if address == settings.inference_address else None,
                open_inference=open_inference if address == settings.inference_address else None,
                management=management if address == settings.management_address else None,
                metrics=metrics if address == settings.metrics_address or settings.merged else None,
            )
            await self._listen(role, str(address), bound, listener)
        common = settings, self.registry, self._access_log, self._tokens
        listeners = {"inference": inference_listener(*common), "management": management_listener(*common)}
        for role, bound in self._grpc_sockets.items():
            host, port = bound.getsockname()[:2]
            await self._listen(f"gRPC {role}", f"{host}:{port}", bound, listeners[role], self._tls)

    async def _listen(
        self,
        role: str,
        place: str,
        bound: socket.socket,
        listener: HttpListener | GrpcListener,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        unix = bound.family == socket.AF_UNIX
        try:
            # Not left to uvloop, which does not say so when another socket listens there.
            bound.listen(_BACKLOG)
            server = await (
                loop.create_unix_server(listener.connection, sock=bound, backlog=_BACKLOG)
                if unix
                else loop.create_server(listener.connection, sock=bound, backlog=_BACKLOG, ssl=tls)
            )
        except OSError as error:
            raise _cannot_bind(role, place, error) from error
        self._listeners.append(listener)
        self._servers.append(server)
        logger.info("%s API bind to: %s%s", role, place, " (TLS)" if tls else "")

    # -- the end -------------------------------------------------------------------------------------------------

    async def _close(self) -> None:
        """Accept nothing more, answer what was accepted, end the workers."""
        timeout = self._settings.shutdown_timeout
        # Connections that the kernel has accepted already are the server's to answer.
        await asyncio.sleep(0.01)
        for server in self._servers:
            server.close()
        await asyncio.gather(*(listener.drain(timeout) for listener in self._listeners))
        await self.registry.close(timeout=0)
        await self._launcher.close()
        for _, address, bound in self._sockets:
            release(bound, address)
        for bound in self._grpc_sockets.values():
            bound.close()
        if self._tokens is not None:
            self._tokens.delete()
        self._access_log.flush()
        logger.info("Stopped")


def _allow_many_files() -> None:
    """Raise the limit of open files as far as the system allows: each connection is one, and 1,024 are few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft not in (limit, resource.RLIM_INFINITY) and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _cannot_bind(role: str, address: str, error: OSError) -> StartError:
    return StartError(f"Failed to bind to address: {address} ({role} API): {error.strerror or error}")
