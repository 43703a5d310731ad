"""The search order of templates, rules and plugins; what is refused; and that a bad plugin spoils only itself."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from slurmtrain.errors import NotFoundError, RefusedError
from slurmtrain.plugins import manager
from slurmtrain.plugins.manager import load_plugins
from slurmtrain.plugins.search import Place, find_folders, find_hits, find_places

ROOT = Path(__file__).parents[3]


def make(folder: Path, *names: str, text: str = "") -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
    return folder


class TestSearchOrder:
    def test_from_the_command_line_down_to_the_site(self, tmp_path: Path) -> None:
        folders = {name: make(tmp_path / name, "templates/x.j2") for name in ("given", "env", "user", "site")}
        project = tmp_path / "project"
        make(project / ".slurmtrain", "templates/x.j2")
        places = find_places(
            {"SLURMTRAIN_PATH": f"{folders['env']}:relative:/no/where:"},
            given=[folders["given"]], project=project, user=folders["user"], site=[folders["site"]],
        )  # fmt: skip
        assert [place.origin for place in places] == ["command line", "project", "SLURMTRAIN_PATH", "user", "site"]
        assert find_folders(places, "templates") == [place.folder / "templates" for place in places]
        assert find_folders(places, "rules") == []

    def test_one_that_was_named_must_be_there(self, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError, match="to take templates and rules from"):
            find_places({}, given=[tmp_path / "none"])

    def test_hits_say_what_they_shadow(self, tmp_path: Path) -> None:
        user = make(tmp_path / "user", "templates/train.sbatch.j2", "templates/mine.j2")
        hits = {(hit.name, hit.origin): hit.shadowed for hit in find_hits([Place("user", user)], "templates")}
        assert hits["train.sbatch.j2", "user"] is False
        assert hits["train.sbatch.j2", "bundled"] is True
        assert hits["mine.j2", "user"] is False
        assert hits["launch/srun.sh.j2", "bundled"] is False


class TestTrust:
    def test_a_file_that_everybody_may_change(self, tmp_path: Path) -> None:
        user = make(tmp_path / "user", "rules/mine.toml")
        (user / "rules" / "mine.toml").chmod(0o646)
        with pytest.raises(RefusedError, match=r"the user's file .*mine\.toml is not used: everybody may change"):
            find_folders([Place("user", user)], "rules")

    def test_a_link_is_judged_by_what_it_leads_to(self, tmp_path: Path) -> None:
        elsewhere = make(tmp_path / "elsewhere", "loose.toml")
        (elsewhere / "loose.toml").chmod(0o666)
        user = make(tmp_path / "user", "rules/ok.toml")
        (user / "rules" / "link.toml").symlink_to(elsewhere / "loose.toml")
        with pytest.raises(RefusedError, match="everybody may change"):
            find_folders([Place("user", user)], "rules")

    def test_a_link_that_leads_nowhere_is_refused_rather_than_ignored(self, tmp_path: Path) -> None:
        user = make(tmp_path / "user", "rules/ok.toml")
        (user / "rules" / "dead.toml").symlink_to(tmp_path / "none")
        with pytest.raises(RefusedError, match="cannot be examined"):
            find_folders([Place("user", user)], "rules")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
    def test_somebody_elses_file(self, tmp_path: Path) -> None:
        user = make(tmp_path / "user", "rules/theirs.toml")
        os.chown(user / "rules" / "theirs.toml", 65534, -1)
        with pytest.raises(RefusedError, match="belongs to nobody"):
            find_folders([Place("user", user)], "rules")
        assert find_folders([Place("user", user)], "rules", [user]) == [user / "rules"]


PLUGIN = """
import click
from slurmtrain.plugins.manager import hookimpl

@hookimpl
def slurmtrain_template_folders():
    return [{folder!r}]

@hookimpl
def slurmtrain_commands():
    @click.command("hello")
    def hello():
        "Say hello."
        click.echo("hello from a plugin")
    return {{"hello": hello}}
"""


class TestPlugins:
    def test_a_file_adds_folders_and_commands(self, tmp_path: Path) -> None:
        extra = make(tmp_path / "extra", "x.j2")
        user = make(tmp_path / "user", "plugins/mine.py", text=PLUGIN.format(folder=str(extra)))
        plugins = load_plugins([Place("user", user)])
        assert plugins.folders("template") == [extra]
        assert list(plugins.commands()) == ["hello"]
        assert plugins.notes == []

    def test_the_first_place_comes_first(self, tmp_path: Path) -> None:
        folders = []
        for name in ("a", "b"):
            extra = make(tmp_path / f"extra-{name}", "x.j2")
            make(tmp_path / name, f"plugins/{name}.py", text=PLUGIN.format(folder=str(extra)))
            folders.append(extra)
        plugins = load_plugins([Place("user", tmp_path / "a"), Place("site", tmp_path / "b")])
        assert plugins.folders("template") == folders

    def test_an_entry_point(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        extra = make(tmp_path / "extra", "x.j2")
        make(tmp_path / "lib", "some_package_plugin.py", text=PLUGIN.format(folder=str(extra)))
        monkeypatch.syspath_prepend(str(tmp_path / "lib"))
        points = [EntryPoint("some", "some_package_plugin", "slurmtrain")]
        monkeypatch.setattr(manager, "entry_points", lambda group: points)
        assert load_plugins([]).folders("template") == [extra]

    def test_one_that_breaks_is_a_note_and_the_others_work(self, tmp_path: Path) -> None:
        extra = make(tmp_path / "extra", "x.j2")
        make(tmp_path / "user", "plugins/a_broken.py", text="import no_such_module_at_all")
        make(tmp_path / "user", "plugins/b_fails.py", text=(
            "from slurmtrain.plugins.manager import hookimpl\n"
            "@hookimpl\ndef slurmtrain_template_folders(): raise OSError('gone')\n"
            "@hookimpl\ndef slurmtrain_commands(): return 5\n"
        ))  # fmt: skip
        make(tmp_path / "user", "plugins/c_good.py", text=PLUGIN.format(folder=str(extra)))
        plugins = load_plugins([Place("user", tmp_path / "user")])
        assert plugins.folders("template") == [extra]
        assert list(plugins.commands()) == ["hello"]
        said = "\n".join(plugins.notes)
        assert "a_broken.py cannot be loaded (ModuleNotFoundError" in said
        assert "b_fails.py failed (OSError: gone)" in said
        assert "b_fails.py returned no commands" in said

    def test_a_projects_code_runs_only_when_the_user_trusts_the_project(self, tmp_path: Path) -> None:
        """A cloned repository must not run code at `slurmtrain submit`."""
        ran = tmp_path / "ran"
        project = tmp_path / "project"
        make(project / ".slurmtrain", "plugins/x.py", text=f"open({str(ran)!r}, 'w').close()")
        place = Place("project", project / ".slurmtrain")
        plugins = load_plugins([place])
        assert not ran.exists()
        assert "holds code that is not run" in plugins.notes[0]
        load_plugins([place], [project])
        assert ran.exists()

    def test_code_that_others_may_change_is_refused(self, tmp_path: Path) -> None:
        user = make(tmp_path / "user", "plugins/x.py")
        (user / "plugins" / "x.py").chmod(0o666)
        with pytest.raises(RefusedError, match="the user's plugin"):
            load_plugins([Place("user", user)])

    def test_the_command_line_finds_a_plugins_command(self, tmp_path: Path) -> None:
        make(tmp_path / ".config" / "slurmtrain", "plugins/mine.py", text=PLUGIN.format(folder=str(tmp_path)))
        env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
        argv = [sys.executable, "-m", "slurmtrain", "hello"]
        result = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert result.stdout == "hello from a plugin\n", result.stderr
