"""Where to ship, in a job file."""

from __future__ import annotations

import pytest

from slurmtrain.config.nodes import Place
from slurmtrain.config.problems import Problems
from slurmtrain.config.schema import read_layer
from slurmtrain.config.specfile import dump_spec
from slurmtrain.config.yamlfile import parse_yaml
from slurmtrain.core.spec import Ship, Spec, parse_rate
from slurmtrain.errors import SpecError


def read(text: str) -> dict[str, object]:
    problems = Problems()
    layer = read_layer(parse_yaml(text, "job.yaml", fixed_place=Place("job.yaml")), problems)
    problems.raise_if_any("job.yaml")
    return {key: value.value for key, value in layer.items() if value is not None}


def test_a_url_alone_stands_for_the_whole() -> None:
    assert read("ship: s3://bucket/prefix/") == {"ship.url": "s3://bucket/prefix"}
    assert read("ship: {url: 'file:///a/b', what: logs, rate: 1.5MiB/s, every_s: 2m}") == {
        "ship.url": "file:///a/b", "ship.what": ("logs",), "ship.rate": "1.5MiB/s", "ship.every_s": 120,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ship: bucket", "a URL like s3://bucket/prefix"),
        ("ship: s3://key:secret@bucket/p", "credentials do not belong"),
        ("ship: 's3://bucket/p?AWSAccessKeyId=x'", "credentials do not belong"),
        ("ship: {url: s3://b/p, secret_key: x}", "unknown key"),
        ("ship: {url: s3://b/p, what: [log]}", "did you mean 'logs'"),
        ("ship: {url: s3://b/p, rate: fast}", "write it like 20MB/s"),
        ("ship: {url: s3://b/p, keep_days: 3}", "at least 7"),
        ("ship: {url: s3://b/p, endpoint: s3.example.org}", "https://s3.example.org"),
        ("ship: 's3://b/../../x'", ".. in it"),
    ],
)
def test_what_cannot_be_is_told(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words.replace("?", r"\?")) as caught:
        read(text)
    assert "secret@" not in str(caught.value)


def test_spec_yaml_reads_back() -> None:
    spec = Spec(command=("x",), ship=Ship(url="s3://b/p", what=("logs", "checkpoints"), keep_days=30))
    values = read(dump_spec(spec, {}, "r"))
    assert values["ship.what"] == ("logs", "checkpoints")
    assert (values["ship.url"], values["ship.keep_days"]) == ("s3://b/p", 30)


def test_rates() -> None:
    assert parse_rate("20MB/s") == 20_000_000
    assert parse_rate("1.5MiB/s") == 1_572_864
    assert parse_rate("500kb") == 500_000
    with pytest.raises(ValueError):
        parse_rate("1B/s")
