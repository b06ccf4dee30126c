"""What only S3 can do wrong: settings, refusals, and what a network does to requests."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest

from everstep.cli.main import main
from everstep.runtime.store import Store, StoreError, absolute_uri, open_store, s3_requests
from everstep.runtime.store import s3 as s3_module
from everstep.runtime.store.s3 import PART_BYTES, S3Store, _xml_text
from tests.harness import wait_until
from tests.minio import BUCKET, MinIO, running

GIVEN = {"MINIO_ENDPOINT": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "a-name", "AWS_SECRET_ACCESS_KEY": "a-secret"}


def open_changed(uri: str, **changed: str | None) -> Store:
    """The store, with those variables changed."""
    environment = {name: value for name, value in {**GIVEN, **changed}.items() if value is not None}
    return open_store(uri, environment=environment)


@pytest.mark.parametrize(
    ("uri", "changed", "expected_text"),
    [
        ("s3://bucket/p", {"MINIO_ENDPOINT": None}, "MINIO_ENDPOINT or AWS_ENDPOINT_URL is not set"),
        ("s3://bucket/p", {"MINIO_ENDPOINT": "minio:9000"}, "MINIO_ENDPOINT must be http://HOST:PORT"),
        ("s3://bucket/p", {"MINIO_ENDPOINT": "http://minio:9000/path"}, "nothing more"),
        ("s3://bucket/p", {"AWS_ACCESS_KEY_ID": None}, "AWS_ACCESS_KEY_ID not set"),
        ("s3://bucket/p", {"AWS_SECRET_ACCESS_KEY": ""}, "AWS_SECRET_ACCESS_KEY not set"),
        ("s3://bucket/p", {"AWS_CA_BUNDLE": "/no/file", "MINIO_ENDPOINT": "https://127.0.0.1:1"}, "/no/file"),
        ("s3://bucket/p", {"MINIO_ENDPOINT": "http://minio:90x0"}, "http://minio:90x0, region us-east-1: invalid port"),
        ("s3://bucket/p", {"MINIO_ENDPOINT": "http://[::1"}, "MINIO_ENDPOINT http://[::1: "),
        ("s3://bucket/p", {"AWS_REGION": "eu west"}, "invalid region eu west"),
        ("s3://bucket/p", {"AWS_SESSION_TOKEN": "a-secret\n"}, "AWS_SESSION_TOKEN has a space, a line break"),
        ("s3://bucket/p", {"AWS_SECRET_ACCESS_KEY": "a-secret "}, "AWS_SECRET_ACCESS_KEY has a space"),
        (
            "s3://bucket/p",
            {"AWS_ACCESS_KEY_ID": "na\N{LATIN SMALL LETTER E WITH ACUTE}"},
            "AWS_ACCESS_KEY_ID has a space",
        ),
        ("s3://a..b/p", {}, "bucket name a..b contains invalid successive characters"),
        ("s3:///p", {}, "not a bucket's name"),
        ("s3://Bucket/p", {}, "not a bucket's name"),
        ("s3://bucket/../other", {}, "not a key"),
        ("s3://bucket//p", {}, "not a key"),
        ("s3://bucket/a b", {}, "not a key"),
    ],
)
def test_what_is_missing_or_no_address_is_told_in_one_line(
    uri: str, changed: dict[str, Any], expected_text: str
) -> None:
    with pytest.raises(StoreError) as raised:
        open_changed(uri, **changed)
    assert expected_text in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "a-secret" not in str(raised.value)


def test_an_endpoint_that_nobody_serves_is_told() -> None:
    with pytest.raises(StoreError, match=r"s3://bucket/p: http://127.0.0.1:1 cannot be reached .*refused.*ENDPOINT"):
        open_changed("s3://bucket/p")


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_told(minio: MinIO, name: str) -> None:
    with pytest.raises(StoreError, match=r"refuses to PUT with these credentials .*check AWS_ACCESS_KEY_ID"):
        open_changed(minio.new_prefix(), **{**minio.environment, name: "wrong-but-long-enough"})


@pytest.mark.parametrize("ahead", [-20, 20])
def test_a_clock_that_is_wrong_is_told(minio: MinIO, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Wrong":
            return super().now(tz) + timedelta(minutes=ahead)

    monkeypatch.setattr(s3_requests, "datetime", Wrong)
    with pytest.raises(StoreError, match=r"the clocks of this machine and of .* differ; correct this machine's"):
        open_store(f"s3://{BUCKET}/clock", environment=minio.environment)


def test_a_bucket_that_is_not_there_is_told_by_every_call(minio: MinIO) -> None:
    with pytest.raises(StoreError, match=r"s3://no-such-bucket: no such bucket at http.*create it"):
        open_changed("s3://no-such-bucket", **minio.environment)
    store = open_store("s3://no-such-bucket", read_only=True, environment=minio.environment)
    for call in (
        lambda: store.get("a"),
        lambda: store.read_into("a", 0, memoryview(bytearray(1))),
        lambda: list(store.list("")),
    ):
        with pytest.raises(StoreError, match="no such bucket"):
            call()


def test_the_usual_names_of_the_variables_are_known(minio: MinIO) -> None:
    environment = {**minio.environment, "AWS_ENDPOINT_URL": minio.endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    del environment["MINIO_ENDPOINT"]
    store = open_store(minio.new_prefix(), environment=environment)
    assert store.create("a", b"1")


def test_a_bucket_in_another_region_is_told_and_reached_when_it_is_named(tmp_path: Path) -> None:
    def refusal() -> str:
        try:
            open_changed(server.new_prefix(), **server.environment)
        except StoreError as error:
            return str(error)
        return ""  # Just started, MinIO has not read yet which region it is.

    with running(tmp_path, region="eu-west-9") as server:
        assert "set AWS_REGION" in wait_until(refusal, "MinIO knows its region", 60)
        assert open_changed(server.new_prefix(), **server.environment, AWS_REGION="eu-west-9").create("a", b"1")


def test_a_whole_bucket_is_a_store_and_a_prefix_sees_only_its_own(s3: MinIO) -> None:
    uri = s3.new_prefix()
    below, beside = open_store(f"{uri}/a"), open_store(f"{uri}/ab")
    below.put("key", b"1")
    beside.put("key", b"2")
    assert [entry.key for entry in below.list("")] == ["key"]
    whole = open_store(f"s3://{BUCKET}/")
    assert whole.uri == f"s3://{BUCKET}"
    assert whole.get(f"{uri.rpartition('/')[2]}/ab/key") == b"2"


def test_a_store_is_the_same_wherever_a_process_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_uri("s3://bucket/prefix/") == "s3://bucket/prefix"
    assert absolute_uri("runs/store") == absolute_uri(f"file://{tmp_path}/runs/store") == str(tmp_path / "runs/store")


def test_a_certificate_is_trusted_by_the_file_of_its_authority_and_refused_without(tmp_path: Path) -> None:
    certificates = tmp_path / "certs"
    certificates.mkdir()
    openssl_words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=minio"
    openssl_words += " -addext subjectAltName=IP:127.0.0.1 -keyout private.key -out public.crt"
    subprocess.run(["openssl", *openssl_words.split()], cwd=certificates, check=True, capture_output=True)
    with running(tmp_path, certificates) as server:
        with pytest.raises(StoreError, match=r"certificate .* is not trusted .*AWS_CA_BUNDLE"):
            open_changed(server.new_prefix(), **server.environment)
        store = open_changed(server.new_prefix(), **server.environment, AWS_CA_BUNDLE=str(certificates / "public.crt"))
        store.put("a", bytes(50 << 20))
        buffer = bytearray(b"x" * (50 << 20))
        store.read_into("a", 0, memoryview(buffer))
        assert not any(buffer)
        assert [entry.key for entry in store.list("")] == ["a"]


def begin_upload(store: Store, key: str) -> None:
    """What a writer leaves that is killed after its first part."""
    assert isinstance(store, S3Store)
    name, requests = store._object_name(key), store._requests
    upload = _xml_text(requests.send("POST", name, query={"uploads": ""}).data, "UploadId")
    requests.send("PUT", name, query={"partNumber": "1", "uploadId": upload}, body=bytes(1000))


def test_what_a_killed_put_left_is_given_up_when_it_is_old(s3: MinIO, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = s3.new_prefix()
    store, beside = open_store(uri), open_store(f"{uri}-beside")
    for key in ("jobs/j/checkpoints/a", "jobs/j/checkpoints/b", "runs/r"):
        begin_upload(store, key)
    begin_upload(beside, "jobs/j/checkpoints/c")
    assert list(store.list("")) == []
    assert list(store.sweep("")) == [], "their writers may live"
    monkeypatch.setattr(s3_module, "ABANDONED_S", -3600.0)
    swept_entries = [(entry.key, entry.size) for entry in store.sweep("jobs/j/", dry_run=True)]
    assert sorted(swept_entries) == [("jobs/j/checkpoints/a", 1000), ("jobs/j/checkpoints/b", 1000)]
    assert sorted((entry.key, entry.size) for entry in store.sweep("jobs/j/")) == sorted(swept_entries)
    assert [entry.key for entry in store.sweep("")] == ["runs/r"]
    assert list(store.sweep("")) == []
    assert [entry.key for entry in beside.sweep("", dry_run=True)] == ["jobs/j/checkpoints/c"]


def test_a_put_that_goes_on_while_others_are_swept_is_whole(s3: MinIO) -> None:
    store = open_store(s3.new_prefix())
    data, swept = os.urandom(3 * PART_BYTES), []
    with ThreadPoolExecutor(1) as threads:
        putting = threads.submit(store.put, "a/b", data)
        while not putting.done():
            swept += store.sweep("")
        putting.result()
    assert swept == []
    assert store.get("a/b") == data


def test_gc_gives_up_what_killed_puts_left_in_a_bucket(
    s3: MinIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = s3.new_prefix()
    store = open_store(uri)
    store.put("jobs/j/journal/000001", b"")
    begin_upload(store, "jobs/j/checkpoints/000001-000000002/rank-00000.safetensors")
    monkeypatch.setattr(s3_module, "ABANDONED_S", -3600.0)
    for verb in ("would be removed", "removed"):
        dry = ["--dry-run"] if verb != "removed" else []
        assert main(["checkpoint", "gc", uri, *dry]) == 0
        output = capsys.readouterr()
        assert f"rank-00000.safetensors: {verb}, 1000 bytes of a killed writer" in output.out
        assert f"1 {verb}, 1000 bytes" in output.err
    assert list(store.sweep("")) == []


def test_a_forked_process_shares_no_connection_with_its_parent(s3: MinIO) -> None:
    """On a shared connection, one process would read the answers to the other's requests."""

    def local_ports() -> list[int]:
        assert isinstance(store, S3Store)
        pool = store._requests._minio._http.connection_from_url(s3.endpoint).pool
        assert pool
        listing = [
            connection
            for connection in [pool.get_nowait() for _ in range(pool.qsize())]
            if connection and connection.sock
        ]
        return [connection.sock.getsockname()[1] for connection in [*store._requests._idle, *listing]]

    store = open_store(s3.new_prefix())
    store.put("a", b"1")
    assert [entry.key for entry in store.list("")] == ["a"]
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            keys = [entry.key for entry in store.list("")]
            os.write(write, json.dumps([store.get("a") == b"1", keys, local_ports()]).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with open(read, "rb") as report:
        os.close(write)
        is_there, keys, ports = json.load(report)
    assert (is_there, keys) == (True, ["a"])
    own = local_ports()
    assert len(ports) == len(own) == 2
    assert not {*ports} & {*own}
