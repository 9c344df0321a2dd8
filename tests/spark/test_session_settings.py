"""What a session is given: defaults for one machine, nothing but what holds everywhere for a cluster."""

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from pyspark_weir.errors import OptionError
from pyspark_weir.session import SessionOptions, open_session, prepare, settings

HOMES = [str(Path(__file__).parents[2] / folder) for folder in ("spark", "sdk/python")]


def test_a_laptop_gets_two_cores_and_keeps_to_itself() -> None:
    """And a task that fails is tried again, which `local[2]` alone would not do."""
    found = settings(SessionOptions())
    assert found["spark.master"] == "local[2,4]"
    assert found["spark.driver.bindAddress"] == "127.0.0.1"
    assert found["spark.ui.enabled"] == "false"
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert found["spark.sql.shuffle.partitions"] == "2"


@pytest.mark.parametrize(
    ("master", "parts"), [("local[8,4]", "8"), ("local", "2"), ("local[*]", str(max(2, os.cpu_count() or 1)))]
)
def test_shuffles_have_as_many_parts_as_there_are_cores(master: str, parts: str) -> None:
    """Each part costs a tenth of a second."""
    assert settings(SessionOptions(master=master))["spark.sql.shuffle.partitions"] == parts


@pytest.mark.parametrize("master", ["yarn", "spark://head:7077", "k8s://https://api:6443"])
def test_a_cluster_keeps_its_own_settings(master: str) -> None:
    """A driver bound to loopback would hear from no executor."""
    found = settings(SessionOptions(master=master))
    assert found["spark.master"] == master
    assert not any(name.startswith("spark.driver.") for name in found)
    assert "spark.sql.shuffle.partitions" not in found


def test_spark_submit_chooses_where_it_runs() -> None:
    """A default of ours would drag the job from the cluster to one machine."""
    assert "spark.master" not in settings(SessionOptions(), submitted=True)
    assert settings(SessionOptions(master="local[1]"), submitted=True)["spark.master"] == "local[1]"


def test_a_setting_of_the_user_wins() -> None:
    """Over each default; the option --master over the setting of that name."""
    conf = {"spark.driver.memory": "3g", "spark.master": "local[3]", "spark.sql.session.timeZone": "CET"}
    found = settings(SessionOptions(conf=conf))
    assert conf.items() <= found.items()
    assert found["spark.sql.shuffle.partitions"] == "3"
    assert settings(SessionOptions(master="local", conf=conf))["spark.master"] == "local"


def test_a_misspelt_setting_is_refused() -> None:
    """Spark ignores what it does not know."""
    with pytest.raises(OptionError, match="named spark"):
        SessionOptions(conf={"driver.memory": "3g"})


def test_workers_are_this_python_and_find_the_pipeline() -> None:
    """From the same place as the driver, before what else they would find."""
    environment = {"PYTHONPATH": os.pathsep.join(["/elsewhere", ""])}
    prepare(environment, settings(SessionOptions()))
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert environment["PYTHONPATH"] == os.pathsep.join([*HOMES, "/elsewhere"])
    prepare(environment, settings(SessionOptions()))
    assert environment["PYTHONPATH"] == os.pathsep.join([*HOMES, "/elsewhere"]), "once is enough"
    assert sysconfig.get_path("purelib") not in environment["PYTHONPATH"]


def test_executors_may_have_another_python() -> None:
    """On a cluster no other machine has this one's path."""
    environment = {"PYSPARK_PYTHON": "/opt/python"}
    prepare(environment, {})
    assert environment["PYSPARK_PYTHON"] == "/opt/python"
    prepare(environment, {"spark.pyspark.python": "./env/bin/python"})
    assert environment["PYSPARK_PYTHON"] == "./env/bin/python"
    assert environment["PYSPARK_DRIVER_PYTHON"] == sys.executable


@pytest.mark.parametrize(
    ("options", "remote", "name"),
    [
        (SessionOptions(master="sc://head:15002"), None, "--master"),
        (SessionOptions(conf={"spark.master": "sc://head"}), None, "--conf spark.master"),
        (SessionOptions(conf={"spark.remote": "local"}), None, "--conf spark.remote"),
        (SessionOptions(), "local[2]", "SPARK_REMOTE"),
    ],
)
def test_spark_connect_is_refused_in_a_sentence(
    options: SessionOptions, remote: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is started; without it a job would fail with an attribute that a class lacks."""
    if remote is not None:
        monkeypatch.setenv("SPARK_REMOTE", remote)
    with pytest.raises(OptionError, match=f"^WEIR_OPTION: {name} asks for Spark Connect"):
        open_session(options)


def test_spark_waits_for_its_python_on_a_busy_machine() -> None:
    """Spark's own 15 s end a query where workers start slowly."""
    assert settings(SessionOptions())["spark.python.authenticate.socketTimeout"] == "180s"
