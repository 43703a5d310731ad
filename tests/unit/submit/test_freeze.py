"""What a run keeps of the program comes from the cache only if it would be made just so again."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from pathlib import Path

import pytest

import slurmtrain
from slurmtrain.errors import NotFoundError, SpecError
from slurmtrain.ops import freeze as module
from slurmtrain.ops.freeze import freeze, read_rules
from slurmtrain.plugins.rulepacks import load_rules
from slurmtrain.render import agent_zip
from slurmtrain.render.agent_zip import build_agent_zip

OWN = "[[rule]]\nid = 'mine'\ncause = 'cuda_oom'\npattern = 'flux {}'\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "SETTLED_S", 0.0)
    return tmp_path / "cache" / "slurmtrain"


@pytest.fixture
def program(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the program, which a test may change."""
    copy = tmp_path / "checkout" / "slurmtrain"
    shutil.copytree(Path(slurmtrain.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(slurmtrain, "__file__", str(copy / "__init__.py"))
    monkeypatch.setattr(agent_zip, "__file__", str(copy / "render" / "agent_zip.py"))
    return copy


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing may be made: only the cache can answer."""

    def fail(*_args: object, **_more: object) -> None:
        raise AssertionError("it was made again")

    monkeypatch.setattr(module, "build_agent_zip", fail)
    monkeypatch.setattr(module, "load_rules", fail)


def test_the_second_time_nothing_is_made(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = freeze([], [])
    assert zipfile.ZipFile(io.BytesIO(first[0])).testzip() is None
    assert first[1] == load_rules().to_json().encode()
    forbid(monkeypatch)
    assert freeze([], []) == first


def test_a_program_that_changed_a_moment_ago_is_not_kept(cache: Path, program: Path) -> None:
    module.SETTLED_S = 3600.0
    freeze([], [])
    assert not cache.exists()


def test_an_edit_that_keeps_size_and_times_is_noticed(program: Path) -> None:
    """As with ``git checkout`` within a second, ``rsync -t``, or a clock that was set back."""
    freeze([], [])
    path = program / "agent" / "say.py"
    info, text = path.stat(), path.read_text()
    path.write_text(text.replace("slurmtrain", "slurmtrian"))
    assert text != path.read_text()
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    archive = zipfile.ZipFile(io.BytesIO(freeze([], [])[0]))
    assert archive.read("slurmtrain/agent/say.py") == path.read_bytes()


def test_a_module_that_is_new_is_noticed(program: Path) -> None:
    """``from x import y`` means another file once there is a module ``y``."""
    text = (program / "agent" / "main.py").read_text()
    (program / "agent" / "main.py").write_text(
        text + "\nwith contextlib.suppress(ImportError):\n    from slurmtrain.core import later\n"
    )
    freeze([], [])
    (program / "core" / "later.py").write_text("x = 1\n")
    assert "slurmtrain/core/later.py" in zipfile.ZipFile(io.BytesIO(freeze([], [])[0])).namelist()


def test_an_edit_while_it_is_made_is_not_kept(cache: Path, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(**more: object) -> bytes:
        data = build_agent_zip(**more)  # type: ignore[arg-type]
        (program / "agent" / "say.py").write_text("# edited meanwhile\n")
        return data

    monkeypatch.setattr(module, "build_agent_zip", build)
    freeze([], [])
    assert [path.name.partition("-")[0] for path in cache.glob("*")] == []


def test_own_rules_count_with_their_content_and_order(cache: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text(OWN.format("one"))
    two.write_text(OWN.format("two"))
    for search in ([one, two], [two, one], [tmp_path]):
        for _ in range(2):
            assert freeze(search, [])[1] == load_rules(search).to_json().encode()
            assert read_rules(search) == load_rules(search)
    one.write_text(OWN.format("new"))
    assert b"flux new" in freeze([one], [])[1]


def test_wrong_rules_are_told_each_time(cache: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(OWN.format("("))
    for _ in range(2):
        with pytest.raises(SpecError, match="is not a valid regular expression"):
            freeze([wrong], [])
    with pytest.raises(NotFoundError, match="there is no rule pack at"):
        freeze([tmp_path / "nothing"], [])
    folder = tmp_path / "packs"
    (folder / "x.toml").mkdir(parents=True)
    with pytest.raises(SpecError, match="cannot read the rule pack"):
        freeze([folder], [])


def test_collectors_of_ones_own_count(cache: Path) -> None:
    names = [
        zipfile.ZipFile(io.BytesIO(freeze([], sources)[0])).namelist()
        for sources in ([], ["from slurmtrain.render import chart"], [])
    ]
    assert ["slurmtrain/render/chart.py" in listed for listed in names] == [False, True, False]
