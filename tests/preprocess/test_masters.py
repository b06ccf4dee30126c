"""What Spark is told for each --spark-master: pure."""

import json
import pwd
import re
import socket
import subprocess
import zipfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.protocol import Py4JNetworkError

from everstep.runtime.exit_codes import ExitCode
from everstep.steps.entry import StepError
from everstep.steps.preprocess import Config, gateway, masters, session
from everstep.steps.preprocess.executor import command
from everstep.steps.preprocess.java import Java, version
from everstep.steps.preprocess.job import cores
from everstep.steps.preprocess.masters import Kind, kind_of
from everstep.steps.preprocess.session import SUBMITTED, own_pod, settings, spark
from tests.harness import ROOT

OWN: dict[str, Any] = {
    "serviceAccountName": "everstep",
    "securityContext": {"runAsNonRoot": True},
    "containers": [
        {
            "name": "agent",
            "image": "registry.example/everstep:1",
            "imagePullPolicy": "Always",
            "resources": {"limits": {"memory": "3Gi"}},
            "env": [{"name": "AWS_ACCESS_KEY_ID", "valueFrom": {"secretKeyRef": {"name": "store", "key": "id"}}}],
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        }
    ],
    "volumes": [{"name": "scratch", "emptyDir": {}}],
}
POD = masters.Pod("https://10.0.0.1:443", "ml", "/token", "/ca.crt", "llama-x7k2-preprocess-123", "10.1.0.9", OWN)


@pytest.mark.parametrize(
    ("master_url", "kind"),
    [
        ("local", Kind.LOCAL),
        ("local[3]", Kind.LOCAL),
        ("local[*]", Kind.LOCAL),
        ("spark://spark-master:7077", Kind.STANDALONE),
        ("spark://a:7077,b:7077", Kind.STANDALONE),
        ("k8s://", Kind.KUBERNETES),
        ("k8s://https://10.0.0.1:443", Kind.KUBERNETES),
    ],
)
def test_a_master_is_known_by_how_it_begins(master_url: str, kind: Kind) -> None:
    assert kind_of(master_url) is kind


@pytest.mark.parametrize("master_url", ["yarn", "local[0]", "spark://host", "spark://x y:1", "k8s", "mesos://h:1", ""])
def test_another_master_is_refused_in_one_line(master_url: str) -> None:
    with pytest.raises(StepError, match="give local"):
        Config(spark_master=master_url).check()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"spark_master": "local[3]"}, 3),
        ({"spark_master": "local[3]", "workers": 2}, 2),
        ({"spark_master": "local[3]", "workers": 64}, 3),
        ({"spark_master": "spark://h:1", "executors": 5, "executor_cores": 3}, 15),
        ({"spark_master": "k8s://", "executors": 5, "executor_cores": 3, "workers": 4}, 4),
    ],
)
def test_so_many_tasks_run_at_a_time(flags: dict, expected: int) -> None:
    assert cores(Config(**flags)) == expected


def test_executors_of_a_cluster_come_as_tasks_need_them_and_find_the_driver(tmp_path: Path) -> None:
    spark_settings = settings("spark://127.0.0.1:7077", 5, 2, tmp_path)
    assert spark_settings["spark.master"] == "spark://127.0.0.1:7077"
    assert (spark_settings["spark.driver.host"], spark_settings["spark.driver.bindAddress"]) == (
        "127.0.0.1",
        "127.0.0.1",
    )
    assert spark_settings["spark.dynamicAllocation.enabled"] == "true"
    assert spark_settings["spark.dynamicAllocation.maxExecutors"] == "3"
    assert spark_settings["spark.executor.cores"] == "2"
    assert "spark.authenticate" not in spark_settings  # that is the cluster's to say


@pytest.mark.parametrize(
    ("error", "expected_code", "expected_text"),
    [
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), ExitCode.TRY_AGAIN, "cannot be reached"),
        (socket.gaierror(socket.EAI_NONAME, "Name not known"), ExitCode.BAD_INPUT, "cannot be reached"),
        (OverflowError("port must be 0-65535"), ExitCode.BAD_INPUT, "a port is at most 65535"),
    ],
)
def test_a_master_whose_address_is_not_known_now_may_be_known_at_another_try(
    error: Exception, expected_code: ExitCode, expected_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket.socket, "connect", fail)
    with pytest.raises(StepError, match=f"--spark-master spark://h:70000: .*{expected_text}") as raised:
        settings("spark://h:70000", 1, 1, tmp_path)
    assert raised.value.code == expected_code


@pytest.mark.parametrize("error", [Py4JNetworkError("no answer\nfrom Java"), ConnectionRefusedError("no answer")])
@pytest.mark.parametrize("is_submitted", [True, False])
def test_a_spark_that_does_not_answer_is_one_line_and_may_do_so_at_another_try(
    error: Exception, is_submitted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    for name in (SUBMITTED, "PYSPARK_GATEWAY_SECRET"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr("pyspark.SparkConf" if is_submitted else "pyspark.SparkContext", fail)
    monkeypatch.setattr(gateway, "wait_for_connection", lambda *_: (0, ""))
    java = cast("subprocess.Popen[bytes]", None)
    start = session._submitted_context if is_submitted else partial(session._start, {}, java, tmp_path)
    with pytest.raises(StepError, match=r"^Spark did not start: no answer$") as raised:
        start()
    assert raised.value.code == ExitCode.TRY_AGAIN


@pytest.mark.parametrize(
    ("defaults", "secret"),
    [
        ("spark.authenticate true\nspark.authenticate.secret x\n", True),
        ("spark.ui.enabled=false\n  spark.authenticate = TRUE", True),
        ("spark.authenticate: true", True),
        ("", False),
        ("# spark.authenticate true", False),
        ("spark.authenticate false\nspark.authenticate.secret true", False),
    ],
)
def test_a_cluster_without_a_secret_is_known(defaults: str, secret: bool) -> None:
    assert masters.has_secret(defaults) is secret


def test_a_local_master_talks_to_itself_and_tries_again(tmp_path: Path) -> None:
    spark_settings = settings("local[*]", 4, 2, tmp_path)
    assert spark_settings["spark.master"] == "local[4,3]"
    assert spark_settings["spark.authenticate"] == "true"
    assert spark_settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert not [name for name in spark_settings if "executor" in name]


def test_executors_on_kubernetes_are_pods_like_the_driver_and_end_with_it(tmp_path: Path) -> None:
    spark_settings = masters.kubernetes_settings("k8s://", POD, 2, tmp_path / "pod.json")
    assert spark_settings["spark.master"] == "k8s://https://10.0.0.1:443"
    assert spark_settings["spark.kubernetes.driver.pod.name"] == POD.name
    assert spark_settings["spark.kubernetes.namespace"] == "ml"
    assert (spark_settings["spark.authenticate"], spark_settings["spark.network.crypto.enabled"]) == ("true", "true")
    assert spark_settings["spark.kubernetes.container.image"] == "registry.example/everstep:1"
    assert spark_settings["spark.kubernetes.container.image.pullPolicy"] == "Always"
    assert spark_settings["spark.kubernetes.authenticate.oauthTokenFile"] == "/token"
    assert spark_settings["spark.executor.memoryOverhead"] == "1600m"
    assert len(spark_settings["spark.kubernetes.executor.podNamePrefix"]) <= 47
    assert (
        masters.kubernetes_settings("k8s://https://api:6443", POD, 2, tmp_path)["spark.master"]
        == "k8s://https://api:6443"
    )
    pod_template = json.loads(masters.pod_template(POD))
    (container,) = pod_template["spec"]["containers"]
    assert container["command"] == ["python", "-m", "everstep.steps.preprocess.executor"]
    assert container["env"] == OWN["containers"][0]["env"]  # by reference: no secret stands in it
    assert container["volumeMounts"] == OWN["containers"][0]["volumeMounts"]
    assert "resources" not in container
    assert pod_template["spec"]["securityContext"] == OWN["securityContext"]
    assert OWN["containers"][0]["resources"], "what was given is as it was"


def test_an_executors_pod_becomes_sparks_executor() -> None:
    names = ["DRIVER_URL", "EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "EXECUTOR_POD_IP", "RESOURCE_PROFILE_ID"]
    variables = {f"SPARK_{name}": name.lower() for name in [*names, "EXECUTOR_POD_NAME"]}
    variables |= {f"SPARK_JAVA_OPT_{number}": f"-Dn={number}" for number in range(11)}
    variables |= {"SPARK_EXECUTOR_MEMORY": "512m", "SPARK_JAVA_OPT_11": "--add-modules=jdk.incubator.vector"}
    words = command(variables, Java(Path("/java"), 17), Path("/jars"))
    assert words[0] == "/java"
    assert words[1:12] == [f"-Dn={number}" for number in range(11)]
    assert words[12:16] == ["-Xms512m", "-Xmx512m", "-cp", "/jars/*"]
    assert words[16].endswith("KubernetesExecutorBackend")
    flags_by_name = dict(zip(words[17::2], words[18::2], strict=True))
    assert flags_by_name["--driver-url"] == "driver_url"
    assert flags_by_name["--hostname"] == "executor_pod_ip"
    assert flags_by_name["--podName"] == "executor_pod_name"


def test_pods_are_refused_where_there_are_none_and_where_nothing_is_shared(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="EVERSTEP_POD is not set"):
        own_pod({})
    (tmp_path / "a.jsonl").write_text("")
    here = Config(input=str(tmp_path / "a.jsonl"), output_prefix=str(tmp_path / "out"), spark_master="k8s://")
    with pytest.raises(StepError, match=r"--input .*a\.jsonl: .*without a shared folder; give s3://"):
        here.check()
    for name in ("executors", "executor_cores"):
        with pytest.raises(StepError, match=f"--{name.replace('_', '-')} 0: must be at least 1"):
            Config(**{name: 0}).check()  # type: ignore[arg-type]


def test_a_user_without_a_name_is_told_before_java_fails_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(StepError, match=r"user \d+ has no name here.*/etc/passwd"), spark("local[1]", 1, 1):
        pass


def test_the_user_of_the_images_has_a_name() -> None:
    lines = (ROOT / "templates/Containerfile").read_text().splitlines()
    users = {line.split()[1] for line in lines if line.startswith("USER")} - {"0"}
    assert users == {"1000:1000"}
    (user_line,) = [line for line in lines if "useradd" in line]
    assert "--uid 1000" in user_line


def test_the_drivers_java_is_told_what_suits_it() -> None:
    variables = {"spark.master": "local[1,3]", "spark.ui.enabled": "false"}
    words = gateway.command(Java(Path("/java"), 25), Path("/jars"), Path("/work"), variables)
    assert words[0] == "/java"
    assert words[words.index("-cp") + 1] == "/work:/jars/*"
    expected_words = ["--conf", "spark.master=local[1,3]", "--conf", "spark.ui.enabled=false", "pyspark-shell"]
    assert words[words.index(gateway.SUBMIT) + 1 :] == expected_words
    java_flag = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    assert not {java_flag, "--add-modules=jdk.incubator.vector"} & set(words)
    assert java_flag in gateway.command(Java(Path("/java"), 17), Path("/jars"), Path("/work"), variables)


def test_the_modules_that_are_opened_are_those_of_sparks_launcher() -> None:
    """The strings in its class JavaModuleOptions, each after a tag and its length (JVM specification, 4.4.7)."""
    spec = find_spec("pyspark")
    assert spec
    assert spec.origin
    (jar,) = Path(spec.origin).parent.glob("jars/spark-launcher_*.jar")
    data = zipfile.ZipFile(jar).read("org/apache/spark/launcher/JavaModuleOptions.class")
    strings = re.findall(rb"\x01\x00(.)(-[ -~]+)", data, re.DOTALL)
    assert sorted(text[: size[0]].decode() for size, text in strings) == sorted(gateway.MODULES)


@pytest.mark.parametrize(("release_text", "expected_version"), [("21.0.4", 21), ("1.8.0_392", 8), ("25", 25)])
def test_a_javas_version_is_read_beside_it_without_starting_it(
    tmp_path: Path, release_text: str, expected_version: int
) -> None:
    program = tmp_path / "bin/java"
    program.parent.mkdir()
    program.write_text("")
    (tmp_path / "release").write_text(
        f'IMPLEMENTOR="x"\nJAVA_VERSION_DATE="2024-01-01"\nJAVA_VERSION="{release_text}"\n'
    )
    assert version(str(program)) == 0  # it cannot be run
    program.chmod(0o755)
    assert version(str(program)) == expected_version
