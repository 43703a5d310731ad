"""Settings files: found, merged, locked, and refused where others could have written them."""

# ruff: noqa: E501 - tables of cases
from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmtrain.config import settings as settings_module
from slurmtrain.config.nodes import Place, Scalar
from slurmtrain.config.resolve import Request, Resolved, resolve
from slurmtrain.config.settings import Settings, load_settings
from slurmtrain.errors import RefusedError, SpecError, UsageError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory, a project in it, and a site's settings, all ours."""
    home = tmp_path / "home"
    (home / ".config" / "slurmtrain").mkdir(parents=True)
    (home / "project" / "deep").mkdir(parents=True)
    (tmp_path / "etc").mkdir()

    def find(environ: dict[str, str], cwd: Path) -> list[tuple[Path, bool]]:
        found = original(environ, cwd)
        site = tmp_path / "etc" / "config.toml"
        return ([(site, True)] if site.is_file() else []) + found

    original = settings_module.find_settings_files
    monkeypatch.setattr(settings_module, "find_settings_files", find)
    return home


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o644)
    return path


def load(home: Path, *, store: str | None = None, **env: str) -> Settings:
    return load_settings({"HOME": str(home), **env}, home / "project" / "deep", store=store)


def submit(home: Path, command: tuple[str, ...] = ("x",), **options: str) -> Resolved:
    nodes = {f"resources.{name}": Scalar(value, Place(f"option --{name}")) for name, value in options.items()}
    return resolve(Request(None, (), nodes, command), load(home), {"PATH": "/bin"}, home)


class TestStore:
    def test_the_default_is_in_the_home_directory(self, home: Path) -> None:
        assert (load(home).store, load(home).store_source) == (home / "slurmtrain", "default")

    def test_the_nearest_source_wins(self, home: Path) -> None:
        write(home.parent / "etc" / "config.toml", 'store = "/scratch/site"')
        assert load(home).store == Path("/scratch/site")
        write(home / ".config" / "slurmtrain" / "config.toml", 'store = "~/runs"')
        assert load(home).store == home / "runs"
        write(home / "project" / "slurmtrain.toml", 'store = "runs"')
        assert load(home).store == home / "project" / "runs"
        assert load(home).store_source == str(home / "project" / "slurmtrain.toml")
        assert load(home, SLURMTRAIN_STORE="/env").store == Path("/env")
        assert load(home, SLURMTRAIN_STORE="/env", store="../x").store == home / "project" / "x"

    def test_an_empty_option_is_a_mistake(self, home: Path) -> None:
        with pytest.raises(UsageError, match="--store needs a directory"):
            load(home, store="")


class TestDefaults:
    def test_the_order_of_layers(self, home: Path) -> None:
        write(
            home.parent / "etc" / "config.toml", '[defaults.resources]\naccount = "site"\nqos = "site"\nmemory = "1G"\n'
        )
        write(home / ".config" / "slurmtrain" / "config.toml", '[defaults.resources]\nqos = "user"\npartition = "gpu"\n'
              '[partitions.gpu.resources]\nmemory = "2G"\ncpus_per_task = 7\n[partitions.other]\nname = "no"\n')  # fmt: skip
        made = submit(home, account="option")
        asked = made.spec.resources
        assert (asked.account, asked.qos, asked.memory, asked.cpus_per_task) == ("option", "user", "2G", 7)
        assert made.spec.name == "train"
        assert made.sources["resources.qos"].endswith(".config/slurmtrain/config.toml")

    def test_a_partitions_defaults_follow_the_partition_that_was_chosen(self, home: Path) -> None:
        write(home / "project" / "slurmtrain.toml", '[partitions.gpu.resources]\ngres = "gpu:8"\n')
        settings = load(home)
        options = {"resources.partition": Scalar("gpu", Place("option"))}
        assert resolve(Request(None, (), options, ("x",)), settings, {}, home).spec.resources.gres == "gpu:8"
        assert resolve(Request(None, (), {}, ("x",)), settings, {}, home).spec.resources.gres is None

    def test_dotted_keys(self, home: Path) -> None:
        write(
            home / ".config" / "slurmtrain" / "config.toml", '[defaults]\n"environment.variables.NCCL_DEBUG" = "WARN"\n'
        )
        assert submit(home).spec.environment.variables == {"NCCL_DEBUG": "WARN"}


class TestLocks:
    def site(self, home: Path, text: str) -> None:
        write(home.parent / "etc" / "config.toml", text)

    def test_a_locked_value_cannot_be_changed(self, home: Path) -> None:
        self.site(home, 'lock = ["resources.qos"]\n[defaults.resources]\nqos = "normal"\n')
        assert submit(home).spec.resources.qos == "normal"
        assert submit(home, qos="normal").spec.resources.qos == "normal"
        with pytest.raises(
            SpecError, match=r"option --qos: resources\.qos: locked by the site to 'normal' \(in .*etc/config\.toml\)"
        ):
            submit(home, qos="high")

    def test_nor_by_the_users_own_settings(self, home: Path) -> None:
        self.site(home, 'lock = ["retry.attempts"]\n[defaults.retry]\nattempts = 3\n')
        write(home / ".config" / "slurmtrain" / "config.toml", "[defaults.retry]\nattempts = 1000\n")
        with pytest.raises(SpecError, match=r"retry\.attempts: locked by the site to 3"):
            submit(home)

    def test_a_key_locked_without_a_value_stays_at_its_default(self, home: Path) -> None:
        self.site(home, 'lock = ["companion"]\n')
        write(home / ".config" / "slurmtrain" / "config.toml", "[defaults]\ncompanion = false\n")
        with pytest.raises(SpecError, match="companion: locked by the site to True"):
            submit(home)

    def test_a_null_does_not_undo_a_lock(self, home: Path) -> None:
        self.site(home, 'lock = ["resources.qos"]\n[defaults.resources]\nqos = "normal"\n')
        with pytest.raises(SpecError, match=r"resources\.qos: locked by the site to 'normal'"):
            resolve(Request(None, ["resources.qos=null"], {}, ("x",)), load(home), {}, home)

    def test_only_the_site_may_lock(self, home: Path) -> None:
        write(home / ".config" / "slurmtrain" / "config.toml", 'lock = ["resources.qos"]')
        with pytest.raises(SpecError, match="only the site's settings"):
            load(home)

    def test_a_lock_names_a_key_that_exists(self, home: Path) -> None:
        self.site(home, 'lock = ["resources.qoss"]')
        with pytest.raises(SpecError, match=r"'resources\.qoss' is no job key; did you mean 'resources\.qos'"):
            load(home)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("store = 5", "store: expected a path in quotes, got '5'"),
        ("store = ", "not valid TOML"),
        ('stroe = "/x"', "stroe: unknown key; did you mean 'store'?"),
        ("nodes = 2", "nodes: unknown key; expected one of store"),
        ("resources = {}", "values for jobs go under [defaults], like defaults.resources"),
        ("[defaults.resources]\nnodes = 0", "defaults.resources.nodes: must be at least 1, got 0"),
        ("[defaults]\nndoes = 1", "defaults.ndoes: unknown key; did you mean 'resources.nodes'?"),
        ("[defaults]\nname = 2026-01-01", "defaults.name: date has no place in a settings file"),
        ("defaults = 3", "defaults: expected a table of job keys"),
        ("partitions = 3", "partitions: expected a table for each partition"),
        ("[partitions.gpu]\nx = 1", "partitions.gpu.x: unknown key"),
        ('trust = "x"', "trust: expected a list of texts"),
    ],
)
def test_mistakes_in_settings_are_sentences_with_the_file(home: Path, text: str, said: str) -> None:
    path = write(home / ".config" / "slurmtrain" / "config.toml", text)
    with pytest.raises(SpecError) as caught:
        load(home)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


class TestTrust:
    def test_a_file_that_everybody_may_change_is_refused(self, home: Path) -> None:
        path = write(home / "project" / "slurmtrain.toml", "")
        path.chmod(0o666)
        with pytest.raises(RefusedError, match=r"everybody may change .*slurmtrain\.toml; run: chmod o-w"):
            load(home)

    def test_a_folder_that_everybody_may_change_counts_too(self, home: Path) -> None:
        write(home / "project" / "slurmtrain.toml", "")
        (home / "project").chmod(0o777)
        with pytest.raises(RefusedError, match="everybody may change"):
            load(home)
        (home / "project").chmod(0o1777)  # sticky, like /tmp: nobody else can replace the file
        load(home)

    def test_a_group_of_several_people_counts_too(self, home: Path) -> None:
        path = write(home / "project" / "slurmtrain.toml", "")
        path.chmod(0o664)
        os.chown(path, -1, 100)
        with pytest.raises(RefusedError, match="the group users may change"):
            load(home)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_somebody_elses_settings_are_refused_unless_the_folder_is_trusted(self, home: Path) -> None:
        path = write(home / "project" / "slurmtrain.toml", '[defaults]\nname = "theirs"\n')
        os.chown(path, 65534, -1)
        with pytest.raises(RefusedError, match="it belongs to nobody, who could run commands as you"):
            load(home)
        write(home / ".config" / "slurmtrain" / "config.toml", f'trust = ["{home / "project"}"]')
        assert submit(home).spec.name == "theirs"

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_a_project_cannot_trust_itself(self, home: Path) -> None:
        path = write(home / "project" / "slurmtrain.toml", f'trust = ["{home}"]')
        os.chown(path, 65534, -1)
        with pytest.raises(RefusedError, match="belongs to nobody"):
            load(home)
