"""Reading a collector: constants without running it, and sentences for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.core.causes import CAUSES
from slurmtrain.errors import SpecError
from slurmtrain.evidence.choose import choose_collectors
from slurmtrain.evidence.collector import Collector, collector_from_dict, parse_collector, read_collector
from slurmtrain.evidence.frozen import COLLECTORS, freeze_collectors, read_frozen_collectors
from slurmtrain.evidence.take import DRIVER_GONE
from slurmtrain.plugins.search import Place

PYTHON = """
TIME_LIMIT_S = 3
SIZE_LIMIT = 4 << 10
WHERE = ("batch_host", "watcher")
DRIVER = True
ENDINGS = ("failed",)
raise SystemExit("it was run")

def collect(scene):
    pass
"""


def test_constants_are_read_without_running_the_file() -> None:
    found = parse_collector("20-x.py", PYTHON, "user")
    assert (found.name, found.python, found.origin) == ("20-x", True, "user")
    assert (found.time_limit_s, found.size_limit, found.driver) == (3, 4096, True)
    assert (found.where, found.endings) == (("batch_host", "watcher"), ("failed",))
    assert collector_from_dict(found.to_dict()) == found


def test_other_languages_have_them_in_comments() -> None:
    found = parse_collector("30-y.sh", '#!/bin/sh\n# TIME_LIMIT_S = 2.5\n# WHERE = "batch_host"\nexit 0\n', "site")
    assert (found.name, found.python, found.time_limit_s, found.where) == ("30-y", False, 2.5, ("batch_host",))


@pytest.mark.parametrize(
    ("name", "source", "part"),
    [
        ("a.py", "def collect(:", "Python cannot read it"),
        ("a.py", "x = 1", "function collect(scene)"),
        (
            "a.py",
            "import os\nTIME_LIMIT_S = os.getpid()\ndef collect(scene): pass",
            "TIME_LIMIT_S must be a plain value",
        ),
        ("a.py", "TIME_LIMIT_S = -1\ndef collect(scene): pass", "TIME_LIMIT_S must be a number"),
        ("a.py", "SIZE_LIMIT = 1 << 99\ndef collect(scene): pass", "SIZE_LIMIT must be a plain value"),
        ("a.py", "WHERE = 'moon'\ndef collect(scene): pass", "WHERE must be one or several of node"),
        ("a.py", "DRIVER = 1\ndef collect(scene): pass", "DRIVER must be True or False"),
        ("a.sh", "exit 0", "does not begin with #!"),
        ("a.py", "(" * 20000, "Python cannot read it"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, name: str, source: str, part: str) -> None:
    (tmp_path / name).write_text(source)
    with pytest.raises(SpecError) as caught:
        read_collector(tmp_path / name, "user")
    assert part in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_bundled_collectors_can_be_read_and_frozen(tmp_path: Path) -> None:
    chosen = choose_collectors([])
    assert chosen.notes == ()
    assert chosen.collectors
    (tmp_path / COLLECTORS).write_bytes(freeze_collectors(chosen.collectors))
    assert tuple(read_frozen_collectors(tmp_path)) == chosen.collectors


def test_the_first_of_a_name_wins_and_refused_ones_are_named(tmp_path: Path) -> None:
    user, project = tmp_path / "user", tmp_path / "project"
    for place in (user, project):
        (place / "collectors").mkdir(parents=True, mode=0o700)
    mine = "def collect(scene): print('mine')"
    (user / "collectors" / "05-processes.py").write_text(mine)
    (user / "collectors" / "06-open.py").write_text(mine)
    (user / "collectors" / "06-open.py").chmod(0o666)
    (user / "collectors" / "07-broken.sh").write_text("no shebang")
    (project / "collectors" / "08-p.py").write_text(mine)
    chosen = choose_collectors([Place("project", project), Place("user", user)])
    by_name = {c.name: c for c in chosen.collectors}
    assert by_name["05-processes"].source == mine
    assert not {"06-open", "07-broken", "08-p"} & set(by_name)
    text = "\n".join(chosen.notes)
    assert "06-open.py is not used: everybody may change" in text
    assert "07-broken.sh: it is no Python file" in text
    assert f"{project / 'collectors'} holds code that is not run" in text
    trusting = choose_collectors([Place("project", project)], trusted=[tmp_path])
    assert {"05-processes", "08-p"} <= {c.name for c in trusting.collectors}


def test_causes_after_which_the_driver_is_not_asked_exist() -> None:
    assert set(CAUSES) >= DRIVER_GONE


def test_defaults() -> None:
    assert parse_collector("a.py", "def collect(scene): pass", "user") == Collector(
        "a", "def collect(scene): pass", True, origin="user"
    )
