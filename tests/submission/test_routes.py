"""Both ways to an Argo: what is sent, what comes back, and the words for each no."""

import socket
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from urllib3.exceptions import InsecureRequestWarning

from everstep.runtime.submission import ApiError, ClusterOptions, Route, Target, TargetError, choose, for_argo, submit
from everstep.runtime.submission.argo_server import ArgoServer, server_url
from everstep.runtime.submission.follow import updates
from everstep.runtime.submission.route import Trouble
from tests.submission.clusters import Cluster
from tests.submission.conftest import Environment, kube_config

Manifest = Callable[..., dict[str, Any]]


def no_wait(_: float) -> None:
    """A test waits for nothing."""


def test_what_arrives_is_the_manifest_to_the_last_empty_string(
    route: Route, cluster: Cluster, manifest: Manifest
) -> None:
    submission = submit(route, manifest())
    assert cluster.submitted == [manifest()]
    assert submission.workflow["metadata"]["uid"] == "uid-0"
    assert not submission.existed


def test_the_newest_state_comes_until_the_stream_ends(route: Route, cluster: Cluster, manifest: Manifest) -> None:
    submit(route, manifest())
    cluster.states = [{"phase": "Running"}, {"phase": "Succeeded", "progress": "1/1"}]
    statuses = [workflow.get("status") for workflow in route.changes("drill-1")]
    assert statuses == [None, {"phase": "Running"}, {"phase": "Succeeded", "progress": "1/1"}]
    assert route.get("drill-1")["status"]["phase"] == "Succeeded"


def test_a_deleted_workflow_is_told(route: Route, cluster: Cluster, manifest: Manifest) -> None:
    submit(route, manifest())
    cluster.states = ["deleted"]
    with pytest.raises(ApiError, match="deleted while it was watched") as raised:
        list(route.changes("drill-1"))
    assert raised.value.trouble is Trouble.NOT_FOUND


def test_logs_come_whole_or_their_end(route: Route, cluster: Cluster) -> None:
    cluster.logs["pod-1"] = ["one", "two", "three"]
    assert list(route.log("drill-1", "pod-1")) == ["one", "two", "three"]
    assert list(route.log("drill-1", "pod-1", tail=1)) == ["three"]


@pytest.mark.parametrize(
    ("status", "message", "trouble", "part"),
    [
        (401, "token not valid", Trouble.UNAUTHORIZED, "401"),
        (403, 'workflows.argoproj.io is forbidden: User "u" cannot create', Trouble.FORBIDDEN, "--namespace"),
        (422, "spec.templates[0].name: Required value", Trouble.INVALID, "Required value"),
        (400, "templates.main: unknown variable", Trouble.INVALID, "unknown variable"),
        (405, "method not allowed", Trouble.OTHER, "method not allowed"),
    ],
)
def test_a_no_is_one_line_that_says_why(
    route: Route, cluster: Cluster, manifest: Manifest, status: int, message: str, trouble: Trouble, part: str
) -> None:
    cluster.refuse = [(status, message)]
    with pytest.raises(ApiError) as raised:
        submit(route, manifest(), wait=no_wait)
    assert raised.value.trouble is trouble
    assert part in str(raised.value)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert route.where in str(raised.value)
    assert len(cluster.submitted) == 1


def test_an_answer_that_was_lost_makes_nothing_twice(route: Route, cluster: Cluster, manifest: Manifest) -> None:
    cluster.refuse = [(0, "")]
    submission = submit(route, manifest(), wait=no_wait)
    assert len(cluster.submitted) == 2
    assert submission.existed
    assert list(cluster.workflows) == ["drill-1"]


@pytest.mark.parametrize("length_is_told", [True, False])
def test_an_answer_that_breaks_off_makes_nothing_twice(
    route: Route, cluster: Cluster, manifest: Manifest, length_is_told: bool
) -> None:
    cluster.torn = [length_is_told]
    submission = submit(route, manifest(), wait=no_wait)
    assert len(cluster.submitted) == 2
    assert submission.existed


def test_a_page_in_place_of_the_argo_server_is_one_line(
    by_server: Environment, cluster: Cluster, manifest: Manifest
) -> None:
    route = choose("argo", by_server).route
    assert route
    cluster.page = "<!doctype html><title>Sign in</title>"
    with pytest.raises(TargetError, match="no Argo Server's API there"):
        choose("argo", by_server)
    asks: list[Callable[[], object]] = [
        lambda: submit(route, manifest(), wait=no_wait),
        lambda: route.get("drill-1"),
        route.workflows,
        lambda: list(updates(route, "drill-1", no_wait)),
    ]
    for ask in asks:
        before = len(cluster.asked)
        with pytest.raises(ApiError, match=f"{route.where}: no Argo Server's API there.*see ARGO_SERVER"):
            ask()
        assert len(cluster.asked) == before + 1


def test_a_token_that_no_header_can_have_is_not_shown(by_server: Environment) -> None:
    with pytest.raises(TargetError, match="ARGO_TOKEN cannot be sent") as raised:
        choose("argo", {**by_server, "ARGO_TOKEN": "Bearer secret\nline"})
    assert "secret" not in str(raised.value)


def test_a_busy_server_is_asked_again(route: Route, cluster: Cluster, manifest: Manifest) -> None:
    cluster.refuse = [(503, "apiserver is starting"), (429, "too many requests")]
    waited: list[float] = []
    submission = submit(route, manifest(), wait=waited.append)
    assert submission.workflow["metadata"]["name"] == "drill-1"
    assert waited == [1.0, 3.0]


def test_a_busy_server_is_not_asked_for_ever(route: Route, cluster: Cluster, manifest: Manifest) -> None:
    cluster.refuse = [(500, "etcdserver: no leader")] * 9
    with pytest.raises(ApiError, match="no leader"):
        submit(route, manifest(), wait=no_wait)
    assert len(cluster.submitted) == 4


def test_the_same_submission_twice_is_the_same_run(route: Route, cluster: Cluster, manifest: Manifest) -> None:
    submit(route, manifest())
    assert submit(route, manifest()).existed
    assert len(cluster.workflows) == 1


def test_a_name_that_another_workflow_has_is_refused(route: Route, manifest: Manifest) -> None:
    submit(route, manifest())
    with pytest.raises(ApiError, match="another workflow of that name"):
        submit(route, manifest(echoed="something else"))


@pytest.mark.parametrize(("phase", "part"), [("Succeeded", "choose another --name"), ("Failed", "argo -n ml retry")])
def test_a_name_whose_run_has_ended_is_refused(
    route: Route, cluster: Cluster, manifest: Manifest, phase: str, part: str
) -> None:
    submit(route, manifest())
    cluster.workflows["drill-1"]["status"] = {"phase": phase}
    with pytest.raises(ApiError, match=f"ended {phase}.*{part}"):
        submit(route, manifest())


def test_a_made_up_name_that_is_taken_is_made_up_again(route: Route, cluster: Cluster, manifest: Manifest) -> None:
    submit(route, manifest())
    submission = submit(route, manifest(), lambda: "drill-2")
    assert not submission.existed
    assert sorted(cluster.workflows) == ["drill-1", "drill-2"]


def test_a_made_up_name_whose_answer_was_lost_is_kept(route: Route, cluster: Cluster, manifest: Manifest) -> None:
    cluster.refuse = [(0, "")]
    assert submit(route, manifest(), lambda: "drill-2", no_wait).existed
    assert list(cluster.workflows) == ["drill-1"]


def test_a_namespace_that_is_not_there_is_told(environment: Environment, manifest: Manifest) -> None:
    route = choose("argo", environment, "elsewhere").route
    assert route
    with pytest.raises(ApiError, match=r"elsewhere.*choose another --namespace"):
        submit(route, manifest())


def test_auto_takes_what_answers(environment: Environment) -> None:
    target = choose("auto", environment)
    assert target.name == "argo"
    assert target.reason in ("ARGO_SERVER", "kube context drill serves argoproj.io")


def test_the_namespace_is_the_flag_then_the_variable_then_the_servers_own(environment: Environment) -> None:
    def namespace(more: Environment, flag: str = "") -> str:
        route = choose("argo", {**environment, **more}, flag).route
        assert route
        return route.namespace

    assert namespace({}) == "ml"
    assert namespace({"ARGO_NAMESPACE": "two"}) == "two"
    assert namespace({"ARGO_NAMESPACE": "two"}, "three") == "three"


def test_auto_stays_here_where_there_is_no_way_to_an_argo(tmp_path: Path) -> None:
    assert choose("auto", {"HOME": str(tmp_path)}) == Target(None, "no ARGO_SERVER, no kube config")


def test_auto_stays_here_when_the_cluster_has_no_argo(by_kube: Environment, cluster: Cluster) -> None:
    cluster.serves_argo = False
    assert choose("auto", by_kube) == Target(None, "no ARGO_SERVER, kube context drill has no Argo")


def test_argo_is_refused_where_the_cluster_has_none(by_kube: Environment, cluster: Cluster) -> None:
    cluster.serves_argo = False
    with pytest.raises(TargetError, match=r"does not know Workflows.*install Argo Workflows"):
        choose("argo", by_kube)


@pytest.fixture
def refusing() -> Iterator[str]:
    """The URL of a port that nobody listens at, and nobody else can take."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{unheard.getsockname()[1]}"


@pytest.fixture
def unreachable(refusing: str, tmp_path: Path) -> Environment:
    """The environment of a cluster that is gone."""
    return {"HOME": str(tmp_path), "KUBECONFIG": str(kube_config(tmp_path, refusing, "t"))}


def test_auto_stays_here_when_the_cluster_is_gone(unreachable: Environment) -> None:
    target = choose("auto", unreachable)
    assert target == Target(None, "no ARGO_SERVER, the kube config cannot be used: unreachable")


def test_a_cluster_that_is_gone_is_one_line(unreachable: Environment) -> None:
    with pytest.raises(TargetError, match=r"kube context drill cannot be reached at http.*refused.*cluster-info"):
        choose("argo", unreachable)


@pytest.mark.parametrize("expected", ["auto", "argo"])
def test_a_server_that_is_gone_is_one_line_also_for_auto(refusing: str, tmp_path: Path, expected: Any) -> None:
    environment = {"HOME": str(tmp_path), "ARGO_SERVER": refusing}
    with pytest.raises(TargetError, match=r"http.*cannot be reached \(.*refused.*ARGO_SERVER"):
        choose(expected, environment)


def test_no_kube_config_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"set ARGO_SERVER.*or KUBECONFIG"):
        choose("argo", {"HOME": str(tmp_path)})


def test_a_kube_config_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    torn.write_text("apiVersion: v1\nkind: Config\n")
    with pytest.raises(TargetError, match="torn"):
        choose("argo", {"HOME": str(tmp_path), "KUBECONFIG": str(torn)})


def test_a_wrong_token_is_one_line(environment: Environment, cluster: Cluster) -> None:
    cluster.token = "another"
    with pytest.raises(TargetError, match="401"):
        choose("argo", environment)


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({"ARGO_SERVER": "argo.example:2746"}, "https://argo.example:2746/"),
        ({"ARGO_SERVER": "localhost:2746", "ARGO_SECURE": "false"}, "http://localhost:2746/"),
        ({"ARGO_SERVER": "http://argo.example/"}, "http://argo.example/"),
        ({"ARGO_SERVER": "argo.example:443", "ARGO_BASE_HREF": "/argo"}, "https://argo.example:443/argo/"),
    ],
)
def test_the_server_is_found_by_the_argo_commands_variables(environment: Environment, url: str) -> None:
    assert server_url(environment) == url


def test_a_certificate_that_is_not_checked_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    variables = {"ARGO_SERVER": "argo.example:2746", "ARGO_INSECURE_SKIP_VERIFY": "true"}
    with warnings.catch_warnings(record=True) as warned:
        ArgoServer(variables, "ml")
        for _ in range(2):
            warnings.warn("unverified HTTPS request", InsecureRequestWarning, stacklevel=1)
    assert warned == []
    assert capsys.readouterr().err.count("its certificate is not checked") == 1


def test_the_link_is_the_pages_of_the_ui(by_server: Environment) -> None:
    route = choose("argo", by_server).route
    assert route
    assert route.link("drill-1") == f"{by_server['ARGO_SERVER']}/workflows/ml/drill-1"


def test_the_title_that_argos_list_shows_instead_of_the_name_has_the_name() -> None:
    key = "workflows.argoproj.io/title"
    source = {"metadata": {"annotations": {key: "Drill"}}, "spec": {"entrypoint": "a", "templates": []}}
    assert for_argo(source, "drill-x7k2b", "ml", ClusterOptions(), "")["metadata"]["annotations"][key] == (
        "Drill · drill-x7k2b"
    )


def test_only_everstep_steps_get_the_image_and_the_stores_secret_and_no_secret_is_in_it() -> None:
    ours = {"name": "a", "container": {"image": "everstep:0", "command": ["python"]}}
    theirs = {"name": "b", "container": {"image": "busybox:1", "command": ["true"]}}
    source = {"metadata": {"generateName": "x-"}, "spec": {"entrypoint": "a", "templates": [ours, theirs]}}
    options = ClusterOptions("registry/everstep:1", "runner", ("pull",), "store-secret", "two", "Never")
    manifest_made = for_argo(source, "x-1", "ml", options, "everstep:0")
    container = manifest_made["spec"]["templates"][0]["container"]
    variables = {entry["name"]: entry for entry in container["env"]}
    assert (container["image"], container["imagePullPolicy"]) == ("registry/everstep:1", "Never")
    assert variables["AWS_SECRET_ACCESS_KEY"] == {
        "name": "AWS_SECRET_ACCESS_KEY",
        "valueFrom": {"secretKeyRef": {"name": "store-secret", "key": "AWS_SECRET_ACCESS_KEY"}},
    }
    assert manifest_made["spec"]["templates"][1] == theirs
    assert manifest_made["spec"]["serviceAccountName"] == "runner"
    assert manifest_made["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert manifest_made["metadata"]["labels"] == {"workflows.argoproj.io/controller-instanceid": "two"}
    assert "generateName" not in manifest_made["metadata"]
    assert "workflows.argoproj.io/title" not in manifest_made["metadata"]["annotations"]
    assert "env" not in source["spec"]["templates"][0]["container"]


def test_a_workflow_of_own_steps_is_not_root_and_others_are_as_they_were() -> None:
    ours = {"name": "a", "container": {"image": "everstep:0", "command": ["python"]}}
    theirs = {"name": "b", "container": {"image": "busybox:1", "command": ["true"]}}

    def spec(*templates: dict[str, Any]) -> dict[str, Any]:
        source = {"metadata": {}, "spec": {"templates": list(templates)}}
        return for_argo(source, "x", "ml", ClusterOptions("registry/everstep:1"), "everstep:0")["spec"]

    assert spec(ours)["securityContext"]["runAsNonRoot"] is True
    assert "securityContext" not in spec(ours, theirs)


def test_empty_parameters_are_left_out_and_what_refers_to_them_is_empty() -> None:
    parameters = [{"name": name, "value": value} for name, value in (("model", "tiny"), ("script", ""), ("seen", ""))]
    words = ["--script={{workflow.parameters.script}}", "--model={{ workflow.parameters.model }}"]
    template = {"name": "main", "container": {"image": "alpine", "args": words}}
    other_template = {
        "name": "other",
        "container": {"image": "alpine", "args": ["{{=workflow.parameters.seen == '' ? 1 : 2}}"]},
    }
    spec = {"arguments": {"parameters": parameters}, "entrypoint": "main", "templates": [template, other_template]}
    workflow = for_argo({"metadata": {}, "spec": spec}, "x", "ml", ClusterOptions(), "everstep:0")["spec"]
    assert [parameter["name"] for parameter in workflow["arguments"]["parameters"]] == ["model", "seen"]
    assert workflow["templates"][0]["container"]["args"] == ["--script=", words[1]]
    assert [parameter["name"] for parameter in spec["arguments"]["parameters"]] == ["model", "script", "seen"], (
        "the user's stays"
    )


def test_a_parameter_stays_when_all_of_them_are_asked_for() -> None:
    template = {"name": "main", "container": {"image": "alpine", "args": ["{{workflow.parameters}}"]}}
    spec = {"arguments": {"parameters": [{"name": "script", "value": ""}]}, "templates": [template]}
    workflow = for_argo({"metadata": {}, "spec": spec}, "x", "ml", ClusterOptions(), "everstep:0")["spec"]
    assert workflow["arguments"] == spec["arguments"]


def test_a_run_that_has_ended_is_kept_for_a_while_unless_the_manifest_says_otherwise() -> None:
    def time_to_live(spec: dict[str, Any]) -> dict[str, int]:
        source = {"metadata": {}, "spec": {"templates": [], **spec}}
        return for_argo(source, "x", "ml", ClusterOptions(), "everstep:0")["spec"]["ttlStrategy"]

    assert time_to_live({}) == {"secondsAfterSuccess": 604800, "secondsAfterFailure": 2592000}
    assert time_to_live({"ttlStrategy": {"secondsAfterCompletion": 5}}) == {"secondsAfterCompletion": 5}
