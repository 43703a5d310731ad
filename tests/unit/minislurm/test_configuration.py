"""Settings, ports and the rendered files of mini-slurm."""

from __future__ import annotations

import argparse
import dataclasses
import json
import socket
from pathlib import Path

import pytest
from minislurm import confgen, options, ports, settings, subnets
from minislurm.errors import MiniSlurmError
from minislurm.settings import Settings


def place(nodes: list[str]) -> confgen.Place:
    fields = {field.name: f"<{field.name}>" for field in dataclasses.fields(confgen.Place) if field.type == "str"}
    numbers = {"slurmctld_port": 1, "slurmdbd_port": 2, "mariadb_port": 3}
    addresses = {node: ("localhost", "127.0.0.1", 10 + i) for i, node in enumerate(nodes)}
    return confgen.Place(**fields, **numbers, node_addresses=addresses)  # type: ignore[arg-type]


def render(chosen: Settings, cgroup: str = "none", version: tuple[int, int] = (22, 5)) -> dict[str, str]:
    return confgen.render_all(chosen, place(chosen.node_names), cgroup=cgroup, storage_pass="pw", version=version)


def values(text: str) -> dict[str, str]:
    """The Key=Value lines of a configuration, the last of a key."""
    lines = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {line.partition("=")[0]: line.partition("=")[2] for line in lines}


def test_the_two_timer_profiles() -> None:
    quick = values(render(Settings())["slurm.conf"])
    slow = values(render(Settings(timers="default"))["slurm.conf"])
    keys = ("KillWait", "SlurmdTimeout", "MinJobAge")
    assert [quick[key] for key in keys] == ["5", "10", "30"]
    assert [slow[key] for key in keys] == ["30", "300", "300"]
    assert "cred_expire=5" in quick["AuthInfo"]
    assert "cred_expire=120" in slow["AuthInfo"]


@pytest.mark.parametrize(
    ("cgroup", "version", "expected"),
    [
        ("none", (22, 5), {}),  # an old slurmd exits at CgroupPlugin=disabled
        ("none", (24, 11), {"CgroupPlugin": "disabled"}),
        ("v1", (22, 5), {"CgroupPlugin": "cgroup/v1", "ConstrainRAMSpace": "yes", "ConstrainCores": "no"}),
        ("v2", (24, 11), {"CgroupPlugin": "cgroup/v2", "IgnoreSystemd": "yes", "ConstrainRAMSpace": "yes"}),
    ],
)
def test_cgroup_conf_by_mode_and_release(cgroup: str, version: tuple[int, int], expected: dict[str, str]) -> None:
    rendered = render(Settings(), cgroup, version)
    found = values(rendered["cgroup.conf"])
    assert expected.items() <= found.items()
    assert bool(found) == bool(expected)
    assert values(rendered["slurm.conf"])["ProctrackType"] == (
        "proctrack/linuxproc" if cgroup == "none" else "proctrack/cgroup"
    )


def test_without_accounting_there_is_no_password_and_no_database() -> None:
    rendered = render(Settings(accounting=False))
    assert sorted(rendered) == ["cgroup.conf", "gres.conf", "slurm.conf"]
    assert "pw" not in "".join(rendered.values()).split("=")


def test_set_replaces_the_templates_line_whatever_its_case() -> None:
    text = render(Settings(extra=["killwait=17", "RequeueExit=42"]))["slurm.conf"]
    assert [line for line in text.splitlines() if line.lower().startswith("killwait")] == ["killwait=17"]
    assert "RequeueExit=42" in text.splitlines()


def test_lanes_share_no_node_and_leave_none_out() -> None:
    text = render(Settings(nodes=5, lanes=2))["slurm.conf"]
    rows = [line.split() for line in text.splitlines() if line.startswith("PartitionName=lane")]
    nodes = {row[0].partition("=")[2]: set(row[1].partition("=")[2].split(",")) for row in rows}
    assert nodes["lane0-batch"] | nodes["lane1-batch"] == {"n1", "n2", "n3", "n4", "n5"}
    assert not nodes["lane0-batch"] & nodes["lane1-urgent"]
    assert nodes["lane1-graced"] == nodes["lane1-batch"]


def test_two_clusters_have_no_node_name_in_common() -> None:
    assert not set(Settings().node_names) & set(Settings(name="trial").node_names)


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MiniSlurmError, match=f"port {port} is taken"):
            ports.choose_base(port, 1, set())


def test_bases_of_other_clusters_are_left_alone() -> None:
    first = ports.choose_base(0, 8, set())
    assert ports.choose_base(0, 8, {first}) != first


def test_settings_survive_saving_and_unknown_keys(tmp_path: Path) -> None:
    chosen = Settings(name="trial", directory=str(tmp_path), nodes=7, extra=["KillWait=9"])
    settings.save_settings(chosen)
    assert settings.load_settings(tmp_path) == chosen
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "from_the_future": 1}), encoding="utf-8")
    assert settings.load_settings(tmp_path) == chosen


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_damaged_settings_are_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "settings.json").write_text(text, encoding="utf-8")
    with pytest.raises(MiniSlurmError, match=r"settings\.json"):
        settings.load_settings(tmp_path)


def parse(*argv: str) -> argparse.Namespace:
    return options.build_parser().parse_args(["up", "--native", *argv])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--nodes", "0"], "--nodes 0: expected 1 to 50"),
        (["--nodes", "x"], "invalid int value"),
        (["--memory-mib", "1"], "--memory-mib 1"),
        (["--port-base", "80"], "--port-base 80"),
        (["--set", "x"], "KEY=VALUE"),
        (["--set", "A=1\nB=2"], "KEY=VALUE"),
        (["--name", "n1"], "cluster name"),
        (["--name", "../x"], "cluster name"),
        (["--lanes", "5"], "--lanes 5: expected 1 to 4"),
        (["--slurm", "26.05"], "containers"),
        (["--docker"], "not allowed with"),
        (["--frobnicate"], "unrecognized"),
    ],
)
def test_wrong_usage_is_one_sentence(argv: list[str], said: str) -> None:
    with pytest.raises(MiniSlurmError) as caught:
        options.wanted_settings(parse(*argv), None)
    assert caught.value.code == 2
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_running_cluster_tells_what_differs(tmp_path: Path) -> None:
    before = Settings(directory=str(tmp_path), nodes=4, timers="quick")
    for argv, said in ((["--timers", "default"], "--timers quick"), (["--nodes", "4"], None), ([], None)):
        args = parse("--dir", str(tmp_path), *argv)
        assert options.changed(args, before, options.wanted_settings(args, before)) == said


def test_addresses_of_containers_are_distinct_and_inside() -> None:
    found = subnets.addresses("10.137.4.0/24", [f"n{i}" for i in range(60)])
    assert len(set(found.values())) == 60
    assert all(address.startswith("10.137.4.") for address in found.values())
