"""The environment check: what is set, who reads it, and what must not be set."""

import ast
from pathlib import Path

import pytest

from checks.test_environment import reads
from pipeline.check_data import input_parts
from pipeline.manifest import DEFAULT_LINE, load_line
from tests.fast.fake_image import FakeImage


@pytest.fixture
def image(tmp_path: Path) -> FakeImage:
    return FakeImage(tmp_path)


def fails(image: FakeImage, *reason: str) -> None:
    """Run; the environment check alone fails, and its reason holds these words."""
    report = image.run()
    assert report.statuses == {"environment": "failed"}, report.stderr
    for words in reason:
        assert words in report.reason("environment")


def test_default_is_not_set(image: FakeImage) -> None:
    del image.variables["USED"]
    fails(image, "USED: expected '1' of the manifest, found no such variable")


def test_default_has_another_value(image: FakeImage) -> None:
    image.variables["USED"] = "2"
    fails(image, "USED: expected '1' of the manifest, found '2'")


def test_variable_of_the_base_is_lost(image: FakeImage) -> None:
    del image.variables["LANG"]
    fails(image, "LANG: expected 'C.UTF-8' of the base, found no such variable")


def test_default_overrides_the_base(image: FakeImage) -> None:
    image.given["environment"]["base"]["USED"] = "0"
    assert image.run().statuses == {}


def test_unknown_variable(image: FakeImage) -> None:
    image.variables["LEFT_BEHIND"] = "1"
    fails(image, "LEFT_BEHIND: found '1', neither the base nor the manifest sets it")


def test_engine_and_shell_may_add_theirs(image: FakeImage) -> None:
    image.variables |= {"HOSTNAME": "a", "PWD": "/", "SHLVL": "1", "TERM": "xterm", "container": "podman", "_": "x"}
    assert image.run().statuses == {}


@pytest.mark.parametrize("name", ["DECLARED_ONLY", "IN_A_TEXT", "NOWHERE"])
def test_default_that_nothing_reads(image: FakeImage, name: str) -> None:
    image.given["environment"]["defaults"][name] = {"value": "1", "why": "test"}
    image.variables[name] = "1"
    fails(image, f"{name}: expected code of the tree that reads it, or read_by:")


def test_what_a_test_reads_does_not_count(image: FakeImage) -> None:
    image.put_in_tree("sglang/test/test_a.py", "import os\nos.getenv('ONLY_IN_TEST')\n")
    image.given["environment"]["defaults"]["ONLY_IN_TEST"] = {"value": "1", "why": "test"}
    image.variables["ONLY_IN_TEST"] = "1"
    fails(image, "ONLY_IN_TEST")


def test_known_bad_default(image: FakeImage) -> None:
    image.given["environment"]["defaults"]["SLOW"] = {"value": "1", "why": "test", "read_by": "test"}
    image.variables["SLOW"] = "1"
    fails(image, "SLOW=1: measured as slow")


def test_known_bad_variable_of_the_base(image: FakeImage) -> None:
    image.given["environment"]["base"]["SLOW"] = "1"
    image.variables["SLOW"] = "1"
    fails(image, "SLOW=1: measured as slow")


def test_harmless_value_of_a_known_bad_name(image: FakeImage) -> None:
    image.given["environment"]["base"]["SLOW"] = "0"
    image.variables["SLOW"] = "0"
    assert image.run().statuses == {}


@pytest.mark.parametrize(
    "code",
    [
        "os.getenv('NAME')",
        "os.environ.get('NAME', '0')",
        "os.environ['NAME']",
        "env['NAME']",
        "'NAME' in os.environ",
        "'NAME' not in os.environ",
        "get_bool_env_var('NAME', 'false')",
        "_env_int('NAME', 3)",
        "envs.NAME.get()",
        "f(envs.NAME)",
        "envs.NAME",
    ],
)
def test_reads(code: str) -> None:
    assert "NAME" in set(reads(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "class Envs:\n    NAME = EnvBool(False)",
        "NAME: bool = False",
        "EnvBoolWithAlias('NAME')",
        "os.environ['NAME'] = '1'",
        "del os.environ['NAME']",
        "os.environ.setdefault('NAME', '1')",
        "os.environ.pop('NAME')",
        "os.putenv('NAME', '1')",
        "monkeypatch.setenv('NAME', '1')",
        "envs.NAME.set(True)",
        "envs.NAME.clear()",
        "with envs.NAME.override(True): pass",
        "envs.NAME = 1",
        "'''NAME is read by os.getenv('NAME')'''",
        "# os.getenv('NAME')",
        "logger.warning('NAME')",
        "table['NAME']",
        "'NAME' in table",
    ],
)
def test_not_reads(code: str) -> None:
    assert "NAME" not in set(reads(ast.parse(code)))


def test_known_bad_list_names_the_measured_one() -> None:
    rows = {row["name"]: row for row in input_parts(load_line(DEFAULT_LINE))["known_bad_environment"]}
    assert "decode" in rows["SGLANG_ENABLE_WAR_BARRIER"]["reason"]
