"""`mini-slurm test`: everything that must hold, on a fresh machine, part by part."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from minislurm import engine, packages, pythons, venv
from minislurm.beside import Beside
from minislurm.errors import MiniSlurmError
from minislurm.report import Report, stream
from minislurm.say import say, warn
from minislurm.settings import REPO

PARTS = ("lint", "unit", "browser", "packaging", "native", "docker", "demo")
DEFAULT_PARTS = PARTS[:-1]  # the live tests run the demo, too
LANES, NODES = 6, 18  # as many as keep two cores busy
BOX_LANES, BOX_NODES = 2, 8  # of the container cluster
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome", "chrome")
SCRIPT = str(REPO / "docker" / "mini-slurm")


@dataclass(frozen=True)
class TestRun:
    """Where and with what the parts run."""

    report: Report
    work: Path
    slurm_releases: tuple[str, ...]
    pytest_args: tuple[str, ...]
    containers_beside: bool  # those in containers run beside the native ones that run alone and mostly wait
    beside: dict[str, Beside] = field(default_factory=dict)  # by release of Slurm

    @property
    def env(self) -> dict[str, str]:
        """The caller's environment without another Slurm, another virtual environment or byte code in the tree."""
        drop = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MINI_SLURM_JSON")
        kept = {k: v for k, v in os.environ.items() if k not in drop and not k.startswith(("SLURM_", "SBATCH_"))}
        return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "RUFF_CACHE_DIR": f"{self.work}/ruff"}

    # -- environments -----------------------------------------------------------------------------

    def environment(self, version: tuple[int, int], python: str) -> Path:
        """A virtual environment with the checkout (editable) and its development tools."""
        folder = self.work / f"venv-{version[0]}.{version[1]}"
        project = REPO / "pyproject.toml"
        if not project.exists():
            raise MiniSlurmError("the checkout has no pyproject.toml, so there is nothing to install and test.")
        wanted = hashlib.sha256(project.read_bytes() + str(REPO).encode() + python.encode()).hexdigest()
        stamp = folder / ".installed"
        if not stamp.exists() or stamp.read_text(encoding="ascii") != wanted:
            say(f"making {folder} ...")
            venv.create(folder, python)
            venv.pip_install(folder, ["--editable", f"{REPO}[dev]"])
            stamp.write_text(wanted, encoding="ascii")
        return folder / "bin"

    def debian(self) -> Path:
        """The environment of Debian's own Python: the one of the linters and of the live tests."""
        version = pythons.version_of("/usr/bin/python3")
        if version is None:
            packages.install(["python3-venv"])
            version = pythons.version_of("/usr/bin/python3")
        if version is None:
            raise MiniSlurmError("/usr/bin/python3 cannot make virtual environments; install python3-venv.")
        return self.environment(version, "/usr/bin/python3")

    def pytest(self, tools: Path, *args: str, extra_env: dict[str, str] | None = None, timeout_s: float = 3600) -> bool:
        argv = [str(tools / "python"), "-m", "pytest", *args, *self.pytest_args]
        env = {**self.env, **(extra_env or {})}
        return self.report.pytest(argv, cwd=REPO, env=env, timeout_s=timeout_s, cache=self.work / "pytest-cache")

    def command(self, *argv: str, extra_env: dict[str, str] | None = None, timeout_s: float = 1200) -> bool:
        return stream(list(argv), cwd=REPO, env={**self.env, **(extra_env or {})}, timeout_s=timeout_s)[0] == 0

    # -- parts ------------------------------------------------------------------------------------

    def lint(self) -> None:
        tools: list[Path] = []

        def prepare() -> bool:
            tools.append(self.debian())
            return True

        if not self.report.part("development tools", prepare):
            return
        ruff, mypy = str(tools[0] / "ruff"), [str(tools[0] / "mypy"), f"--cache-dir={self.work}/mypy"]
        lib = {"MYPYPATH": "docker/lib"}
        parts: list[tuple[str, Callable[[], bool]]] = [
            ("ruff check", lambda: self.command(ruff, "check", ".")),
            ("ruff format", lambda: self.command(ruff, "format", "--check", ".")),
            ("mypy --strict slurmtrain", lambda: self.command(*mypy, "--strict")),
            ("mypy --strict docker", lambda: self.command(*mypy, "--strict", "docker/lib/minislurm", extra_env=lib)),
            ("import-linter", lambda: self.command(str(tools[0] / "lint-imports"), "--no-cache")),
            ("shellcheck", lambda: self.shellcheck(tools[0])),
        ]
        for name, work in parts:
            self.report.part(name, work)

    def shellcheck(self, tools: Path) -> bool:
        """Every shell script of the checkout, found by its first line."""
        program = tools / "shellcheck"
        found = str(program) if program.exists() else packages.require_program("shellcheck", "shellcheck")
        scripts = [str(path) for path in tracked_files() if _is_shell(path)]
        print(" ".join(scripts))
        return bool(scripts) and self.command(found, "--severity=warning", *scripts)

    def unit(self) -> None:
        chosen = pythons.chosen()
        if pythons.OLDEST not in chosen:
            warn("NO PYTHON 3.10 ON THIS MACHINE: the oldest supported version is NOT tested here.")
        if not chosen:
            packages.install(["python3-venv"])
            chosen = pythons.chosen()
        for version, python in chosen.items():
            name = f"unit tests on Python {version[0]}.{version[1]}"
            select = [] if version == max(chosen) else ["-m", "not one_python"]
            self.report.part(name, partial(self._unit, version, python, select))

    def _unit(self, version: tuple[int, int], python: str, select: list[str]) -> bool:
        return self.pytest(self.environment(version, python), "tests/unit", "-q", "-n2", "--dist=worksteal", *select)

    def browser(self) -> None:
        """The page of a run in Debian's Chromium, which is installed where no browser is."""

        def work() -> bool:
            if not any(packages.program(name) for name in BROWSERS):
                packages.install([BROWSERS[0]])
            return self.pytest(self.debian(), "tests/browser", "-q")

        self.report.part("pages in a browser", work)

    def packaging(self) -> None:
        self.report.part("packaging tests", lambda: self.pytest(self.debian(), "tests/packaging", "-q"))

    def native(self) -> None:
        """Two clusters side by side: the quick one with lanes, and one with Slurm's own timers."""
        self.report.part("live tests, native cluster", self._native)

    def _native(self) -> bool:
        tools = self.debian()
        packages.ensure({"gdb": "gdb", "git": "git"})  # back traces of core files, and what a work directory is under
        quick, slow = ["--name", self.name("test")], ["--name", self.name("slow")]
        options = ["--native", "--fresh", "--extra", "demo"]
        try:
            up = self.command(SCRIPT, "up", *quick, *options, "--nodes", str(NODES), "--lanes", str(LANES))
            if not up:
                return False
            if not self.command(SCRIPT, "up", *slow, *options, "--timers", "default", "--no-venv"):
                return False
            shared = directory(self.name("slow")) / "venv"
            if not shared.exists():
                shared.symlink_to(directory(self.name("test")) / "venv")
            return self.command(SCRIPT, "env", *slow) and self._both(tools)
        finally:
            self.command(SCRIPT, "down", *quick)
            self.command(SCRIPT, "down", *slow)

    def _both(self, tools: Path) -> bool:
        """The tests for the slow cluster run meanwhile; their output is shown at the end, and they may run again."""
        slow_tests, slow_env = _live("default_timers"), self._live_env("slow")
        argv = [str(tools / "python"), "-m", "pytest", "-p", "no:cacheprovider", *slow_tests]
        with self._beside("live-default-timers", argv, slow_env, 3000) as slow:
            good = self._quick(tools)
            print("--- the same cluster with Slurm's own timers, run meanwhile ---", flush=True)
            code, lines = slow.finish()
        if code == 0:
            return self.report.count_run(code, lines) and good
        return self.pytest(tools, *slow_tests, extra_env=slow_env) and good

    def _quick(self, tools: Path) -> bool:
        env = self._live_env("test")
        lanes = [f"-n{LANES}", "--maxschedchunk=1", "--durations=15"]
        good = self.pytest(tools, *_live("not default_timers and not whole_cluster"), *lanes, extra_env=env)
        if self.containers_beside:
            self._start_containers()
        print("--- those that stop daemons, or want the machine for themselves, one after the other ---", flush=True)
        alone = [*_live("not default_timers and whole_cluster"), "--durations=15"]
        return self.pytest(tools, *alone, extra_env=env) and good

    def _beside(self, name: str, argv: list[str], env: dict[str, str], timeout_s: float) -> Beside:
        return Beside(argv, self.work / f"{name}.log", cwd=REPO, env=env, timeout_s=timeout_s)

    def name(self, kind: str) -> str:
        """A cluster name that no other test run on this machine uses, as each has a work directory of its own."""
        number = zlib.crc32(str(self.work).encode())
        return f"{kind}-" + "".join(chr(ord("a") + number // 26**i % 26) for i in range(4))

    def _live_env(self, kind: str) -> dict[str, str]:
        return {**self.env, "MINI_SLURM_JSON": str(directory(self.name(kind)) / "cluster.json")}

    def demo(self) -> None:
        name = ["--name", self.name("demo")]

        def work() -> bool:
            try:
                return self.command(SCRIPT, "demo", *name, "--native", "--fresh", timeout_s=1800)
            finally:
                self.command(SCRIPT, "down", *name)

        self.report.part("demo, native cluster", work)

    def _start_containers(self) -> None:
        for release in self.slurm_releases:
            argv = [SCRIPT, "test", "--docker", "--slurm", release, "--", *self.pytest_args]
            env = {**self.env, "MINI_SLURM_TEST_DIR": str(self.work / f"containers-{release}")}
            self.beside[release] = self._beside(f"live-containers-{release}", argv, env, 3600)

    def _finish_beside(self, release: str) -> bool:
        code, lines = self.beside[release].finish()
        return self.report.count_run(code, lines)

    def docker(self) -> None:
        """The subset that needs no native cluster, with Compose; an engine is started if none answers."""
        for release in self.beside:
            name = f"live tests, containers with Slurm {release}, begun beside the native ones"
            self.report.part(name, partial(self._finish_beside, release))
        if self.beside:
            return
        try:
            with engine.running():
                for release in self.slurm_releases:
                    self.report.part(f"live tests, containers with Slurm {release}", partial(self._docker, release))
        except MiniSlurmError as exc:
            print(f"mini-slurm: {exc}", file=sys.stderr)
            self.report.rows.append(("live tests, containers: no engine", False, 0.0))

    def _docker(self, release: str) -> bool:
        name = ["--name", self.name("box")]
        options = ["--docker", "--slurm", release, "--fresh", "--extra", "demo"]
        size = ["--nodes", str(BOX_NODES), "--lanes", str(BOX_LANES)]
        chosen = "not native_only and not default_timers" if "SLURMTRAIN_LONG_TESTS" in os.environ else "docker_too"
        lanes = [f"-n{BOX_LANES}", "--maxschedchunk=1", "--durations=15"]
        tools, env = self.debian(), self._live_env("box")
        try:
            if not self.command(SCRIPT, "up", *name, *options, *size, timeout_s=2400):
                return False
            good = self.pytest(tools, *_live(f"{chosen} and not whole_cluster"), *lanes, extra_env=env)
            return self.pytest(tools, *_live(f"{chosen} and whole_cluster"), extra_env=env) and good
        finally:
            self.command(SCRIPT, "down", *name)


def _live(selection: str) -> list[str]:
    return ["tests/live", "-m", selection, "-v"]


def directory(name: str) -> Path:
    """Where the cluster of that name lies."""
    base = Path(os.environ.get("MINI_SLURM_DIR") or "/opt/mini-slurm").resolve()
    return base.with_name(f"{base.name}-{name}")


def tracked_files() -> list[Path]:
    """Files of the checkout: what git tracks or would, without git everything."""
    git = shutil.which("git")
    if git and (REPO / ".git").exists():
        argv = [git, "-c", f"safe.directory={REPO}", "-C", str(REPO), "ls-files", "-z", "-co", "--exclude-standard"]
        names = subprocess.run(argv, capture_output=True, text=True, timeout=60).stdout.split("\0")
        return [REPO / name for name in names if name and (REPO / name).is_file()]
    return [path for path in REPO.rglob("*") if path.is_file()]


def _is_shell(path: Path) -> bool:
    if path.suffix == ".sh":
        return True
    with path.open("rb") as handle:
        first = handle.readline(80)
    return (
        first.startswith(b"#!")
        and first.split(b"/")[-1].split()[-1] in (b"sh", b"bash")
        and b"j2" not in path.suffix.encode()
    )


def work_directory() -> Path:
    """A directory of ours for virtual environments and caches, kept between runs."""
    path = Path(os.environ.get("MINI_SLURM_TEST_DIR") or f"/var/tmp/mini-slurm-test-{os.geteuid()}")
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.geteuid():
        raise MiniSlurmError(f"{path} belongs to somebody else; name another directory in MINI_SLURM_TEST_DIR.")
    return path


@contextmanager
def alone(work: Path) -> Iterator[None]:
    """One test run per work directory: its clusters and environments are named after it."""
    with (work / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another test run in {work} (MINI_SLURM_TEST_DIR names another directory) ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def run(args: argparse.Namespace) -> int:
    """Run the selected parts (all by default) and print the summary."""
    selected = [part for part in PARTS if getattr(args, part)] or list(DEFAULT_PARTS)
    needs_root = [part for part in selected if part in ("native", "demo", "docker")]
    if needs_root and os.geteuid() != 0:
        raise MiniSlurmError(
            f"the parts {', '.join(needs_root)} need root; --lint, --unit, --browser and --packaging do not."
        )
    releases = (args.slurm,) if args.slurm else ("24.11",)
    beside = {"native", "docker"} <= set(selected)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    test_run = TestRun(Report(), work_directory(), releases, tuple(args.pytest_args), beside)
    try:
        with alone(test_run.work):
            for part in selected:
                getattr(test_run, part)()
    except KeyboardInterrupt:
        print("mini-slurm: interrupted", file=sys.stderr)
        test_run.report.rows.append(("interrupted", False, 0.0))
    finally:
        for other in test_run.beside.values():
            other.stop()
    return test_run.report.close()
