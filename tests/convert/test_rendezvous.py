"""torch's rendezvous settings are a job spec's patience, wherever they stand; the others are listed by name."""

import json
from typing import Any

import pytest

from everstep.convert import ConvertError, convert
from everstep.runtime.job.spec_reader import spec_of
from tests.convert.stand_ins import HEAD, JOBS, POD

EACH = [
    ({"join_timeout": "900"}, {"joinTimeout": 900}),
    ({"timeout": "900"}, {"joinTimeout": 900}),
    ({"join_timeout": "100", "timeout": "900"}, {"joinTimeout": 100}),
    ({"last_call_timeout": "5"}, {"joinWindow": 5}),
    ({"keep_alive_interval": "10", "keep_alive_max_attempt": "6"}, {"silence": 60}),
    ({"keep_alive_interval": "10"}, {"silence": 30}),
    ({"keep_alive_max_attempt": "12"}, {"silence": 60}),
]
"""A dead node is one that was silent for the interval (5 s) times the attempts (3): torch's defaults."""
LISTED = {
    "close_timeout": "leave in a job spec's patience",
    "read_timeout": "not needed: a node that gets no answer asks again",
    "heartbeat_timeout": "silence in a job spec's patience",
    "is_host": "not needed: the step decides where the nodes meet",
    "store_type": "not needed: the step decides where the nodes meet",
    "protocol": "not needed: the step decides where the nodes meet",
    "own_setting": "a job spec's patience",
}


def elastic(settings: dict[str, str], command: str = "torch.distributed.run") -> str:
    """A PyTorchJob with them."""
    pairs = json.dumps([{"key": key, "value": value} for key, value in settings.items()])
    text = (JOBS / "pytorch_job.yaml").read_text().replace("torch.distributed.run", command)
    return text.replace("rdzvBackend: c10d,", f"rdzvBackend: c10d, rdzvConf: {pairs},")


def launched(settings: dict[str, str]) -> str:
    """An ElasticJob whose launcher has them."""
    conf = ",".join(f"{key}={value}" for key, value in settings.items())
    pod = POD.replace("[python, t.py]", json.dumps(["torchrun", f"--rdzv-conf={conf}", "t.py"]))
    return f"{HEAD}  replicaSpecs: {{worker: {{{pod}}}}}"


def patience(text: str) -> dict[str, Any]:
    """Of the job spec, which is read as a whole."""
    spec = convert(text, "f").arguments["job_spec"]
    spec_of({"job": "j", **spec})
    return spec["patience"]


@pytest.mark.parametrize(("settings", "expected"), EACH)
def test_a_setting_is_the_patience_of_the_same_meaning(settings: dict[str, str], expected: dict[str, float]) -> None:
    for text in (elastic(settings), launched(settings)):
        assert patience(text) == expected
        assert not [note for note in convert(text, "f").notes if "rdzv" in note.lower()]


@pytest.mark.parametrize(("key", "nearest"), LISTED.items())
def test_a_setting_without_counterpart_is_listed_by_name_with_why(key: str, nearest: str) -> None:
    notes = convert(elastic({"join_timeout": "60", key: "7"}), "f").notes
    (note,) = (note for note in notes if "rdzvConf" in note)
    assert note.startswith(f"f:5: spec.elasticPolicy.rdzvConf[1]: {key}=7: no counterpart; nearest: {nearest}")
    notes = convert(launched({key: "7", "join_timeout": "60"}), "f").notes
    (note,) = (note for note in notes if "rdzv_conf" in note)
    assert note.startswith(f"f: the launcher's --rdzv_conf {key}=7: no counterpart; nearest: {nearest}")


@pytest.mark.parametrize("value", ["nan", "inf", "0", "-5", "soon"])
def test_a_time_that_is_none_is_listed(value: str) -> None:
    conversion = convert(launched({"join_timeout": value}), "f")
    assert "job_spec" not in conversion.arguments
    assert f"f: the launcher's --rdzv_conf join_timeout={value}: no counterpart" in "\n".join(conversion.notes)


def test_a_launchers_own_setting_goes_before_the_policys() -> None:
    settings = {"join_timeout": "60", "last_call_timeout": "5"}
    text = elastic(settings, "torch.distributed.run, --rdzv-conf=join_timeout=90")
    assert patience(text) == {"joinTimeout": 90, "joinWindow": 5}


def test_settings_of_another_shape_are_refused_with_their_line() -> None:
    text = elastic({}).replace("rdzvConf: []", "rdzvConf: [{key: join_timeout}]")
    with pytest.raises(ConvertError, match=r"f:5: spec\.elasticPolicy\.rdzvConf\[0\]\.value: missing"):
        convert(text, "f")
