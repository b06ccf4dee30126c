"""Where artifacts are kept: a folder beside the runs, or the bucket that an artifact or artifactRepositoryRef names.

After Argo's documentation ("Configuring Your Artifact Repository", "Artifact Repository Ref", "Key-Only Artifacts").
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from everstep.runtime.net import web
from everstep.runtime.store import NoSuchKey, Store, StoreError, open_store
from everstep.runtime.store.s3_settings import ENDPOINTS
from everstep.runtime.system import atomic
from everstep.runtime.workflow.artifacts import artifacts, remote
from everstep.runtime.workflow.artifacts.archives import DEFAULT_LIMITS, UnpackLimits
from everstep.runtime.workflow.artifacts.artifacts import BAD_VALUE_ERRORS, ArtifactError
from everstep.runtime.workflow.artifacts.inside import resolve_inside
from everstep.runtime.workflow.engine.template_call import UNLISTABLE
from everstep.runtime.workflow.manifest.library import Library, MissingObjectError

KEY_FORMAT = "{{workflow.name}}/{{pod.name}}"
CHUNK_BYTES = 16 << 20
NOT_LISTED = "ListObjects is currently not supported for this artifact type, but it will be in a future version"
SECRET_FIELDS = {
    "AWS_ACCESS_KEY_ID": "accessKeySecret",
    "AWS_SECRET_ACCESS_KEY": "secretKeySecret",
    "AWS_SESSION_TOKEN": "sessionTokenSecret",
}
"""Fields of an s3 location by the variable that they set."""


@dataclass(frozen=True)
class Repository:
    """The artifact repository of one run."""

    folder: Path
    library: Library
    s3: Mapping[str, Any] = field(default_factory=dict)
    """What an artifact that names only a key inherits: bucket, endpoint, credentials, keyFormat."""
    limits: UnpackLimits = DEFAULT_LIMITS
    """What archives may unpack to."""

    def location(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """The complete s3 location of an artifact. Without a bucket the artifact is in the folder."""
        own = entry.get("s3") or {}
        return dict(own) if own.get("bucket") else {**self.s3, **own}

    def save(self, place: Path, entry: Mapping[str, Any], key: str, below_volume: bool) -> None:
        """Save the file or folder at `place` under the key. Raises ArtifactError."""
        at = self.location(entry)
        if entry.get("git"):
            raise ArtifactError("git output artifacts unsupported")
        if not at.get("bucket") and not entry.get("http"):
            artifacts.save(place, entry, self.folder, key, below_volume)
            return
        with tempfile.TemporaryDirectory() as folder:
            artifacts.save(place, entry, Path(folder), "packed", below_volume)
            packed_path = Path(folder, "packed")
            try:
                if entry.get("http"):
                    remote.upload(entry["http"], self.library, packed_path)
                else:
                    _upload(self._open_store(at), key.strip("/"), packed_path)
            except (*BAD_VALUE_ERRORS, MissingObjectError) as error:
                raise ArtifactError(f"artifact {entry['name']} failed to save: {error}") from None

    def load(self, entry: Mapping[str, Any], into: Path, ending: web.Ending | None = None) -> None:
        """Put an input artifact at `into`; `ending` may end it on the way. Raises ArtifactError."""
        at = self.location(entry)
        if not entry.get("s3") or not at.get("bucket"):
            artifacts.load(entry, self.folder, into, self.library, self.limits, ending)
            return
        with tempfile.TemporaryDirectory() as folder:
            try:
                download = _BucketDownload(
                    self._open_store(at), remote.DiskBudget(Path(folder)), ending or web.Ending()
                )
                download.download(str(at["key"]).lstrip("/"), Path(folder, "got"))
            except (*BAD_VALUE_ERRORS, MissingObjectError, KeyError) as error:
                raise ArtifactError(f"artifact {entry['name']} failed to load: {error}") from None
            artifacts.load({**entry, "s3": {"key": "got"}}, Path(folder), into, self.library, self.limits)

    def list_keys(self, entry: Mapping[str, Any]) -> list[str]:
        """All keys below the artifact's key. Raises ArtifactError."""
        if any(entry.get(kind) for kind in UNLISTABLE):
            raise ArtifactError(NOT_LISTED)
        at = self.location(entry)
        key = f"{at['key'].strip('/')}/" if at.get("key") else ""
        try:
            if at.get("bucket"):
                return [entry.key for entry in self._open_store(at).list(key) if not entry.key.endswith("/")]
        except (*BAD_VALUE_ERRORS, MissingObjectError) as error:
            raise ArtifactError(f"failed to list {key!r}: {error}") from None
        return sorted(path for path in self._folder_files() if path.startswith(key) and not path.startswith("."))

    def _folder_files(self) -> Iterator[str]:
        """Keys of the files in the folder, without those that are being packed."""
        for folder, below, names in os.walk(self.folder):
            below[:] = [name for name in below if not name.startswith(artifacts.PACKING_PREFIX)]
            for file in (Path(folder, name) for name in names):
                if file.is_file():
                    yield str(file.relative_to(self.folder))

    def _open_store(self, at: Mapping[str, Any]) -> Store:
        """Open the store of a bucket. Raises StoreError, MissingObjectError."""
        return open_store(f"s3://{at['bucket']}", read_only=True, environment=self.store_environment(at))

    def store_environment(self, at: Mapping[str, Any]) -> dict[str, str]:
        """The variables of the store for an s3 location; what it leaves open comes from this process's environment.

        Raises MissingObjectError, and StoreError for an endpoint of its own without keys of its own: keys of the
        environment go only to the endpoint of the environment.
        """
        variables = dict(os.environ)
        own_keys = all(at.get(name) for name in ("accessKeySecret", "secretKeySecret"))
        if own_keys:
            variables.pop("AWS_SESSION_TOKEN", None)
        if at.get("endpoint"):
            endpoint = f"{'http' if at.get('insecure') else 'https'}://{at['endpoint']}"
            endpoint_in_use = next((variables[name] for name in ENDPOINTS if variables.get(name)), "")
            if not own_keys and not (endpoint_in_use and _is_same_server(endpoint, endpoint_in_use)):
                raise StoreError(
                    f"s3 endpoint {endpoint}: it has no keys of its own, and yours are for "
                    f"{endpoint_in_use or 'no endpoint'}; "
                    "give it accessKeySecret and secretKeySecret"
                )
            variables["MINIO_ENDPOINT"] = endpoint
        if at.get("region"):
            variables["AWS_REGION"] = str(at["region"])
        for variable, name in SECRET_FIELDS.items():
            if at.get(name):
                variables[variable] = self.library.value("Secret", at[name]) or ""
        if at.get("caSecret"):
            certificates = self.library.value("Secret", at["caSecret"]) or ""
            self.folder.mkdir(parents=True, exist_ok=True)
            place = self.folder / f".ca-{hashlib.sha256(certificates.encode()).hexdigest()[:16]}.pem"
            atomic.replace(place, certificates)
            variables["AWS_CA_BUNDLE"] = str(place)
        return variables


def _upload(store: Store, key: str, packed_path: Path) -> None:
    if not packed_path.is_dir():
        store.put(key, packed_path)
        return
    for folder, _, names in os.walk(packed_path):
        for name in names:
            file = Path(folder, name)
            store.put(f"{key.rstrip('/')}/{file.relative_to(packed_path)}", file)


def _is_same_server(url: str, other_url: str) -> bool:
    """Whether both URLs have the same scheme, host and port."""
    first, second = urlsplit(url), urlsplit(other_url)
    return first.scheme == second.scheme and web.same_host(url, other_url)


@dataclass(frozen=True)
class _BucketDownload:
    """The download of one artifact from a bucket."""

    store: Store
    room: remote.DiskBudget
    ending: web.Ending

    def download(self, key: str, to: Path) -> None:
        """Get one object, or all objects below the key as a folder; nothing where there is neither."""
        try:
            if not key.endswith("/"):
                self._copy(key, to)
                return
        except NoSuchKey:
            to.unlink()
        prefix = key.rstrip("/") + "/"
        for entry in self.store.list(prefix):
            if entry.key.endswith("/"):
                continue  # Some programs make an object for each folder.
            place = resolve_inside(to, entry.key.removeprefix(prefix))
            place.parent.mkdir(parents=True, exist_ok=True)
            self._copy(entry.key, place)

    def _copy(self, key: str, to: Path) -> None:
        with to.open("wb") as file:
            while piece := self.store.get(key, file.tell(), CHUNK_BYTES):
                self.ending.check()
                self.room.spend(len(piece))
                file.write(piece)
                if len(piece) < CHUNK_BYTES:
                    break
