"""Every field of Argo's Workflow and of the pod parts in it, its type, and whether it means anything on one machine.

After the API reference of Argo Workflows and Kubernetes' core/v1. A field's mark: `+` is carried out, `~` has no
effect on one machine (placement, garbage collection, security contexts), none is refused by name. Types: str, int,
bool, any, text (what becomes a string), quantity, intstr, [X] a list of X, {X} a map to X, else one of these kinds.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

Where = tuple[str | int, ...]

TABLE = """
Manifest: apiVersion=str+ kind=str+ metadata=Metadata+ spec=Spec+ status=any~
CronManifest: apiVersion=str+ kind=str+ metadata=Metadata+ spec=CronSpec+ status=any~
CronSpec: workflowSpec=any+ schedules=[str]+ concurrencyPolicy=str+ suspend=bool+ startingDeadlineSeconds=int+
  successfulJobsHistoryLimit=int+ failedJobsHistoryLimit=int+ timezone=str+ workflowMetadata=Metadata+
  stopStrategy=StopStrategy+ when=str+
StopStrategy: expression=str+
Metadata: name=str+ generateName=str+ namespace=str~ labels={str}+ annotations={str}+ uid=str~ resourceVersion=str~
  creationTimestamp=any~ generation=int~ managedFields=any~ finalizers=[str]~ ownerReferences=any~ selfLink=str~
  deletionTimestamp=any~ deletionGracePeriodSeconds=int~
PodMetadata: labels={str}~ annotations={str}~
WorkflowMetadata: labels={str}~ annotations={str}~ labelsFrom={LabelFrom}+
LabelFrom: expression=str+
Spec: activeDeadlineSeconds=int+ affinity=any~ archiveLogs=bool~ arguments=Arguments+ artifactGC=any~
  artifactRepositoryRef=RepositoryRef+ automountServiceAccountToken=bool~ dnsConfig=any~ dnsPolicy=str~
  entrypoint=str+ executor=any~ executorPlugins=[ExecutorPlugin] hooks={Hook}+ hostAliases=any~ hostNetwork=bool~
  imagePullSecrets=any~ metrics=Metrics~ nodeSelector={str}~ onExit=str+ parallelism=int+ podDisruptionBudget=any~
  podGC=PodGC~ podMetadata=PodMetadata~ podPriorityClassName=str~ podResources=Resources~ podSpecPatch=str+
  priority=int~ resourceClaims=[ResourceClaim]~ retryStrategy=Retry+ schedulerName=str~ securityContext=any~
  serviceAccountName=str~ shutdown=str suspend=bool+ synchronization=Synchronization+ templateDefaults=Template+
  templates=[Template]+ tolerations=any~ ttlStrategy=any~ volumeClaimGC=any~ volumeClaimTemplates=[Claim]+
  volumes=[Volume]+ workflowMetadata=WorkflowMetadata~ workflowTemplateRef=WorkflowTemplateRef+ artifacts=any
PodGC: strategy=str~ labelSelector=any~ deleteDelayDuration=any~
RepositoryRef: configMap=str+ key=str+
WorkflowTemplateRef: name=str+ clusterScope=bool+
Template: activeDeadlineSeconds=intstr+ affinity=any~ annotations={str}+ archiveLocation=any~
  automountServiceAccountToken=bool~ container=Container+ containerSet=ContainerSet+ daemon=bool+ dag=Dag+ data=Data+
  executor=any~ failFast=bool+ hostAliases=any~ http=HttpTemplate+ initContainers=[Container]+ inputs=Inputs+
  memoize=Memoize+ metadata=PodMetadata~ metrics=Metrics~ name=str+ nodeSelector={str}~ outputs=Outputs+
  parallelism=int+ pendingTimeout=str~ plugin=any podResources=Resources~ podSpecPatch=str+ priorityClassName=str~
  priority=int~ resource=Resource resourceClaims=[ResourceClaim]~ retryStrategy=Retry+ schedulerName=str~
  script=Script+ securityContext=any~ serviceAccountName=str~ sidecars=[Container]+ steps=[[Step]]+ suspend=Suspend+
  synchronization=Synchronization+ timeout=str+ tolerations=any~ volumes=[Volume]+ templateRef=any template=str
ExecutorPlugin: metadata=Metadata~ spec=PluginSpec~
PluginSpec: sidecar=PluginSidecar~
PluginSidecar: automountServiceAccountToken=bool~ container=Container~
ResourceClaim: name=str~ resourceClaimName=str~ resourceClaimTemplateName=str~
Dag: failFast=bool+ target=str+ tasks=[Task]+
Task: name=str+ template=str+ arguments=Arguments+ depends=str+ dependencies=[str]+ when=str+
  continueOn=ContinueOn+ hooks={Hook}+ inline=Template+ onExit=str+ templateRef=TemplateRef+ withItems=[any]+
  withParam=str+ withSequence=Sequence+
Step: name=str+ template=str+ arguments=Arguments+ when=str+ continueOn=ContinueOn+ hooks={Hook}+ inline=Template+
  onExit=str+ templateRef=TemplateRef+ withItems=[any]+ withParam=str+ withSequence=Sequence+
ContinueOn: error=bool+ failed=bool+
TemplateRef: name=str+ template=str+ clusterScope=bool+
Sequence: count=intstr+ start=intstr+ end=intstr+ format=str+
Hook: template=str+ arguments=Arguments+ templateRef=TemplateRef+ expression=str+
Arguments: parameters=[Parameter]+ artifacts=[Artifact]+
Inputs: parameters=[Parameter]+ artifacts=[Artifact]+
Outputs: parameters=[Parameter]+ artifacts=[Artifact]+ result=str exitCode=str
Parameter: name=str+ value=text+ default=text+ description=text~ enum=[text]+ valueFrom=ValueFrom+ globalName=str+
ValueFrom: path=str+ default=text+ parameter=str+ expression=str+ configMapKeyRef=KeyRef+ supplied=any+ event=str
  jqFilter=str jsonPath=str
KeyRef: name=str+ key=str+ optional=bool+
Artifact: name=str+ path=str+ archive=Archive+ from=str+ fromExpression=str+ optional=bool+ mode=int+ recurseMode=bool+
  raw=Raw+ subPath=str+ globalName=str+ description=any~ archiveLogs=bool~ deleted=bool~ artifactGC=any~ s3=S3+
  http=Http+ git=Git+ gcs=any azure=any oss=any hdfs=any artifactory=any plugin=any
Archive: none=any+ tar=Tar+ zip=any+
Tar: compressionLevel=int+
Raw: data=str+
S3: key=str+ bucket=str+ endpoint=str+ insecure=bool+ region=str+ accessKeySecret=KeyRef+ secretKeySecret=KeyRef+
  sessionTokenSecret=KeyRef+ roleARN=str~ useSDKCreds=bool~ createBucketIfNotPresent=any~ encryptionOptions=any~
  caSecret=KeyRef+ addressingStyle=str~
Http: url=str+ headers=[Header]+ auth=HttpAuth+ saveStreamViaFile=bool~
HttpAuth: basicAuth=BasicAuth+ clientCert=ClientCert+ oauth2=OAuth2+
BasicAuth: usernameSecret=KeyRef+ passwordSecret=KeyRef+
ClientCert: clientCertSecret=KeyRef+ clientKeySecret=KeyRef+
OAuth2: clientIDSecret=KeyRef+ clientSecretSecret=KeyRef+ tokenURLSecret=KeyRef+ scopes=[str]+
  endpointParams=[KeyValue]+
KeyValue: key=str+ value=str+
Git: repo=str+ revision=str+ depth=int+ fetch=[str]+ branch=str+ singleBranch=bool+ usernameSecret=KeyRef+
  passwordSecret=KeyRef+ sshPrivateKeySecret=KeyRef+ insecureIgnoreHostKey=bool+ insecureSkipTLS=bool+
  disableSubmodules=bool+
HttpTemplate: method=str+ url=str+ headers=[Header]+ timeoutSeconds=int+ successCondition=str+ body=str+ bodyFrom=Body+
  insecureSkipVerify=bool+
Header: name=str+ value=str+ valueFrom=HeaderSource+
HeaderSource: secretKeyRef=KeyRef+
Body: bytes=str+
Retry: limit=intstr+ retryPolicy=str+ expression=str+ backoff=Backoff+ affinity=any~
Backoff: duration=str+ factor=intstr+ cap=str+ maxDuration=str+
Container: name=str+ image=str+ command=[str]+ args=[str]+ env=[Env]+ envFrom=[EnvFrom]+ workingDir=str+
  resources=Resources~ volumeMounts=[VolumeMount]+ imagePullPolicy=str~ securityContext=any~ ports=[Port]~ tty=bool~
  stdin=bool~ stdinOnce=bool~ terminationMessagePath=str~ terminationMessagePolicy=str~ volumeDevices=any
  livenessProbe=any~ readinessProbe=Probe~ startupProbe=any~ lifecycle=any resizePolicy=any~ restartPolicy=str~
  mirrorVolumeMounts=bool+
Script: name=str+ image=str+ command=[str]+ args=[str]+ env=[Env]+ envFrom=[EnvFrom]+ workingDir=str+
  resources=Resources~ volumeMounts=[VolumeMount]+ imagePullPolicy=str~ securityContext=any~ ports=[Port]~ tty=bool~
  stdin=bool~ stdinOnce=bool~ terminationMessagePath=str~ terminationMessagePolicy=str~ volumeDevices=any
  livenessProbe=any~ readinessProbe=Probe~ startupProbe=any~ lifecycle=any resizePolicy=any~ restartPolicy=str~
  source=str+
Port: name=str~ containerPort=int~ protocol=str~ hostPort=int~ hostIP=str~
Probe: httpGet=HttpGet~ tcpSocket=TcpSocket~ exec=any~ grpc=any~ initialDelaySeconds=int~ periodSeconds=int~
  timeoutSeconds=int~ successThreshold=int~ failureThreshold=int~ terminationGracePeriodSeconds=int~
HttpGet: path=str~ port=intstr~ host=str~ scheme=str~ httpHeaders=[Header]~
TcpSocket: port=intstr~ host=str~
ContainerSet: containers=[SetContainer]+ volumeMounts=[VolumeMount]+ retryStrategy=SetRetry+
SetRetry: retries=intstr+ duration=str+
SetContainer: name=str+ image=str+ command=[str]+ args=[str]+ env=[Env]+ envFrom=[EnvFrom]+ workingDir=str+
  resources=Resources~ volumeMounts=[VolumeMount]+ imagePullPolicy=str~ securityContext=any~ ports=[Port]~ tty=bool~
  stdin=bool~ stdinOnce=bool~ terminationMessagePath=str~ terminationMessagePolicy=str~ volumeDevices=any
  livenessProbe=any~ readinessProbe=Probe~ startupProbe=any~ lifecycle=any resizePolicy=any~ restartPolicy=str~
  dependencies=[str]+
Env: name=str+ value=str+ valueFrom=EnvSource+
EnvSource: configMapKeyRef=KeyRef+ secretKeyRef=KeyRef+ fieldRef=FieldRef+ resourceFieldRef=ResourceRef+
FieldRef: fieldPath=str+ apiVersion=str~
ResourceRef: resource=str+ containerName=str+ divisor=quantity+
Downward: items=[DownwardFile]+ defaultMode=int+
DownwardFile: path=str+ fieldRef=FieldRef+ resourceFieldRef=ResourceRef+ mode=int~
EnvFrom: prefix=str+ configMapRef=NameRef+ secretRef=NameRef+
NameRef: name=str+ optional=bool+
Resources: limits={quantity}~ requests={quantity}~ claims=any~
VolumeMount: name=str+ mountPath=str+ subPath=str+ subPathExpr=str+ readOnly=bool+ mountPropagation=str~
  recursiveReadOnly=str~
Volume: name=str+ emptyDir=EmptyDir+ configMap=ConfigMapVolume+ secret=SecretVolume+ persistentVolumeClaim=ClaimName+
  projected=Projected+ hostPath=HostPath+ downwardAPI=Downward+ ephemeral=any+ nfs=any csi=any image=any
ConfigMapVolume: name=str+ items=[KeyPath]+ optional=bool+ defaultMode=int+
SecretVolume: secretName=str+ name=str+ items=[KeyPath]+ optional=bool+ defaultMode=int+
KeyPath: key=str+ path=str+ mode=int~
ClaimName: claimName=str+ readOnly=bool+
Projected: sources=[ProjectedSource]+ defaultMode=int+
ProjectedSource: configMap=ConfigMapVolume+ secret=SecretVolume+ downwardAPI=Downward+ serviceAccountToken=any~
  clusterTrustBundle=any~
HostPath: path=str+ type=str+
Claim: apiVersion=str~ kind=str~ metadata=Metadata+ spec=any~ status=any~
EmptyDir: medium=str~ sizeLimit=quantity~
Resource: action=str flags=[str] failureCondition=str successCondition=str manifest=str manifestFrom=any
  mergeStrategy=str
  setOwnerReference=bool
Suspend: duration=intstr+
Data: source=DataSource+ transformation=[Transformation]+
DataSource: artifactPaths=Artifact+
Transformation: expression=str+
Memoize: key=str+ cache=Cache+ maxAge=str+
Cache: configMap=KeyRef+
Metrics: prometheus=[Metric]~
Metric: name=str~ help=str~ labels=[any]~ when=str~ gauge=Gauge~ counter=Counter~ histogram=Histogram~
Gauge: value=str~ realtime=bool~ operation=str~
Counter: value=str~
Histogram: value=str~ buckets=[any]~
Synchronization: mutexes=[Mutex]+ semaphores=[Semaphore]+
Mutex: name=str+ namespace=str+ database=bool
Semaphore: configMapKeyRef=KeyRef+ namespace=str+ database=any
"""

UNSUPPORTED = "not supported by the executor on this machine"
REASONS: dict[str, str] = dict.fromkeys(("resource", "manifestFrom", "event"), "it needs a cluster; ")
REASONS |= dict.fromkeys(("gcs", "azure", "oss", "hdfs", "artifactory"), "use s3, http, git or raw; ")
REASONS |= dict.fromkeys(("plugin", "executorPlugins"), "it needs a plugin of the controller; ")
REASONS |= {"database": "use a mutex or a ConfigMap's semaphore; "}
QUANTITY = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")


class Problem(NamedTuple):
    """A mistake and its place: `where` is the path of keys and indexes."""

    where: Where
    message: str
    of: str = ""
    """`WorkflowTemplate NAME` for a problem of that object; empty: of the workflow."""
    only: Literal["", "here", "cluster"] = ""
    """Where alone it is a problem: here, as this machine lacks what a cluster may have, or on a cluster."""

    @property
    def text(self) -> str:
        """`object: path: message` in one line."""
        return " ".join(": ".join(filter(None, (self.of, dotted_path(self.where), self.message))).splitlines())


class _Field(NamedTuple):
    type: str
    mark: str


def _parse_table() -> dict[str, dict[str, _Field]]:
    kinds: dict[str, dict[str, _Field]] = {}
    fields: dict[str, _Field] = {}
    for word in TABLE.split():
        if word.endswith(":"):
            fields = kinds[word[:-1]] = {}
            continue
        name, _, type_text = word.partition("=")
        mark = type_text[-1] if type_text[-1] in "+~" else ""
        fields[name] = _Field(type_text.removesuffix(mark) if mark else type_text, mark)
    return kinds


KINDS = _parse_table()


def problems(value: Any, kind: str = "Manifest", where: Where = ()) -> Iterator[Problem]:
    """What Argo's reader would refuse (unknown fields, wrong types), and what this machine does not do."""
    yield from _type_problems(value, kind, where)


def _type_problems(value: Any, type_text: str, where: Where) -> Iterator[Problem]:
    if value is None or type_text == "any":
        return
    if type_text[0] == "[":
        if not isinstance(value, list):
            yield Problem(where, f"must be a list, not {_describe(value)}")
            return
        for index, item in enumerate(value):
            if item is None and not type_text.startswith(("[[", "[any")):
                yield Problem((*where, index), "must not be null")
            yield from _type_problems(item, type_text[1:-1], (*where, index))
    elif type_text[0] == "{":
        if not isinstance(value, Mapping):
            yield Problem(where, f"must be a mapping, not {_describe(value)}")
            return
        for key, item in value.items():
            yield from _type_problems(item, type_text[1:-1], (*where, str(key)))
    elif type_text in KINDS:
        yield from _field_problems(value, type_text, where)
    else:
        yield from _scalar_problems(value, type_text, where)


def type_problems(value: Any, type_text: str) -> Iterator[Problem]:
    """Problems of a value that is declared to have that type."""
    yield from _type_problems(value, type_text, ())


def _field_problems(value: Any, kind: str, where: Where) -> Iterator[Problem]:
    if not isinstance(value, Mapping):
        yield Problem(where, f"must be a mapping, not {_describe(value)}")
        return
    field_types = KINDS[kind]
    for key, inner in value.items():
        here = (*where, str(key))
        field = field_types.get(str(key))
        if field is None:
            yield Problem(here, f"there is no such field{nearest_hint(str(key), field_types)}")
        else:
            beyond = not field.mark and inner is not None
            if beyond:
                yield Problem(here, f"{REASONS.get(str(key), '')}{UNSUPPORTED}", only="here")
            inner_problems = _type_problems(inner, field.type, here)
            yield from (problem for problem in inner_problems if not beyond or problem.only != "here")


def _scalar_problems(value: Any, type_text: str, where: Where) -> Iterator[Problem]:
    number = isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63
    expected_types = {
        "str": (isinstance(value, str), "a text"),
        "int": (number, "a whole number"),
        "bool": (isinstance(value, bool), "true or false"),
        "intstr": (number or isinstance(value, str), "a whole number or a string"),
        "text": (True, ""),
        "quantity": (number or isinstance(value, float | str), "a quantity"),
    }
    fits, name = expected_types[type_text]
    if not fits:
        mend = "; put it in quotes" if type_text == "str" and isinstance(value, bool | int | float) else ""
        yield Problem(where, f"must be {name}, not {_describe(value)}{mend}")
    elif type_text == "quantity" and not QUANTITY.fullmatch(str(value)) and "{{" not in str(value):
        yield Problem(where, f"{value!r} is not a quantity; write 500m, 2 or 1Gi")


def nearest_hint(name: str, names_allowed: Mapping[str, Any]) -> str:
    """`; did you mean X?` where a known name is similar, else empty."""
    lowered = {key.lower(): key for key in names_allowed}
    plain = name.replace("_", "").lower()
    value = lowered.get(plain) or next(iter(get_close_matches(name, names_allowed, 1, 0.7)), None)
    return f"; did you mean {value}?" if value else ""


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f"{str(value).lower() if isinstance(value, bool) else value!r}"


def dotted_path(where: Where) -> str:
    """`spec.templates[0].name`."""
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
