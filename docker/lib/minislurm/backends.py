"""The two kinds of cluster behind one set of functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from minislurm import backend_docker, backend_native
from minislurm.settings import Settings


class Backend(Protocol):
    """What the verbs need of a kind of cluster; implemented by a module each."""

    def check_may(self, what: str) -> None:
        """Raise a sentence if this user cannot do that on this machine."""

    def up(self, settings: Settings) -> Settings:
        """Start everything or nothing; the settings with ports and cgroup mode filled in."""

    def down(self, settings: Settings) -> None:
        """Cancel jobs and stop everything."""

    def clean_up(self, settings: Settings) -> None:
        """Stop what runs and remove what a crash left."""

    def services(self, settings: Settings) -> list[str]:
        """Names of all daemons or containers."""

    def running(self, settings: Settings) -> list[str]:
        """Those that run."""

    def ready(self, settings: Settings) -> bool:
        """Whether every node answers."""

    def status_rows(self, settings: Settings) -> list[tuple[str, str, str]]:
        """(name, what it does, state of the node)."""

    def install(self, settings: Settings, extras: Iterable[str]) -> bool:
        """slurmtrain for the cluster's users; whether something was installed."""

    def facts(self, settings: Settings) -> dict[str, Any]:
        """The content of cluster.json."""

    def report_up(self, settings: Settings) -> None:
        """One line about the cluster that runs."""

    def shell(self, settings: Settings, argv: list[str]) -> int:
        """A shell or command as the researcher; its exit status."""

    def fault(self, settings: Settings, action: str, target: str) -> None:
        """Break or mend something."""


def of(settings: Settings) -> Backend:
    """The backend of a cluster."""
    return backend_docker if settings.backend == "docker" else backend_native
