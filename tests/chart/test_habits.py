"""What platform engineers set on other charts has a value here, or is answered with a hint."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.chart.conftest import IMAGE

pytestmark = pytest.mark.chart

# By what is wanted: the pairs that set it, and a text of the rendering that shows it.
TAKEN = {
    "rolling strategy": ("strategy.rollingUpdate.maxSurge=2", "maxSurge: 2"),
    "recreate": ("strategy.type=Recreate", "type: Recreate"),
    "progress deadline": ("progressDeadlineSeconds=7200", "progressDeadlineSeconds: 7200"),
    "minimum ready time": ("minReadySeconds=9", "minReadySeconds: 9"),
    "revision history": ("revisionHistoryLimit=3", "revisionHistoryLimit: 3"),
    "a proxy": ("extraEnv[0].name=HTTPS_PROXY,extraEnv[0].value=http://p", "name: HTTPS_PROXY"),
    "a field of the pod as a variable": (
        "extraEnv[0].name=IP,extraEnv[0].valueFrom.fieldRef.fieldPath=status.podIP",
        "fieldPath: status.podIP",
    ),
    "a ConfigMap of variables": ("extraEnvFrom[0].configMapRef.name=c", "name: c"),
    "a key of a Secret": (
        "environmentFrom.HF_TOKEN.name=hub,environmentFrom.HF_TOKEN.key=token",
        "key: token",
    ),
    "a volume": ("extraVolumes[0].name=v,extraVolumes[0].emptyDir.medium=Memory", "name: v"),
    "a mount": ("extraVolumeMounts[0].name=v,extraVolumeMounts[0].mountPath=/v", "mountPath: /v"),
    "an init container": ("initContainers[0].name=i,initContainers[0].image=x", "image: x"),
    "tools": ("tools.run={python,browser}", "python@/run/harmonium,browser@/run/harmonium"),
    "a sidecar": ("sidecars[0].name=s,sidecars[0].image=shipper", "image: shipper"),
    "labels of objects": ("commonLabels.team=a", "team: a"),
    "annotations of objects": ("commonAnnotations.team=a", "team: a"),
    "labels of pods": ("podLabels.team=a", "team: a"),
    "annotations of pods": ("podAnnotations.team=a", "team: a"),
    "labels of the Service": ("service.labels.team=a", "team: a"),
    "annotations of the Service": ("service.annotations.team=a", "team: a"),
    "a node port": ("service.type=NodePort,service.nodePort=30001", "nodePort: 30001"),
    "address families": (
        "service.ipFamilyPolicy=PreferDualStack,service.ipFamilies={IPv6,IPv4}",
        "ipFamilyPolicy: PreferDualStack",
    ),
    "session affinity": ("service.sessionAffinity=ClientIP", "sessionAffinity: ClientIP"),
    "local traffic": (
        "service.type=NodePort,service.externalTrafficPolicy=Local",
        "externalTrafficPolicy: Local",
    ),
    "source ranges": (
        "service.type=LoadBalancer,service.loadBalancerSourceRanges[0]=10.0.0.0/8",
        "10.0.0.0/8",
    ),
    "an Ingress": ("ingress.enabled=true,ingress.host=h.example", "host: h.example"),
    "an HTTPRoute": (
        "httpRoute.enabled=true,httpRoute.parentRefs[0].name=g",
        "kind: HTTPRoute",
    ),
    "an InferencePool": ("kubernetes=llm-d,auth.open=true", "kind: InferencePool"),
    "KV events": (
        "kvEvents.enabled=true,networkPolicy.enabled=true,kvEvents.from[0].podSelector.a=b",
        "value: kv@$(POD_IP):8000@nano",
    ),
    "a NetworkPolicy": ("networkPolicy.enabled=true", "kind: NetworkPolicy"),
    "an HPA": ("autoscaling.type=hpa,auth.open=true", "kind: HorizontalPodAutoscaler"),
    "KEDA": (
        "autoscaling.type=keda,autoscaling.prometheus=http://p,auth.open=true,monitoring.serviceMonitor=true",
        "kind: ScaledObject",
    ),
    "a disruption budget": ("podDisruptionBudget.enabled=true", "kind: PodDisruptionBudget"),
    "topology spread": ("topologySpreadConstraints[0].maxSkew=1", "maxSkew: 1"),
    "a priority class": ("priorityClassName=high", "priorityClassName: high"),
    "a scheduler": ("schedulerName=volcano", "schedulerName: volcano"),
    "a runtime class": ("runtimeClassName=nvidia", "runtimeClassName: nvidia"),
    "node selector": ("nodeSelector.gpu=h100", "gpu: h100"),
    "a toleration": ("tolerations[0].operator=Exists", "operator: Exists"),
    "node affinity": ("affinity.nodeAffinity.zone=a", "zone: a"),
    "host aliases": ("extraPodSpec.hostAliases[0].ip=10.0.0.7", "ip: 10.0.0.7"),
    "DNS settings": ("extraPodSpec.dnsPolicy=None", "dnsPolicy: None"),
    "shared memory": ("shmSize=21Gi", "21Gi"),
    "a MIG slice": ("gpus=1,model=gpt-oss-20b,gpuResource=nvidia.com/mig-1g.18gb", "mig-1g.18gb"),
    "DRA": ("gpus=1,model=gpt-oss-20b,dra.enabled=true", "kind: ResourceClaimTemplate"),
    "another resource": (r"resources.limits.rdma/hca=1", "rdma/hca: 1"),
    "a claim per pod": ("cache.type=perPod", "kind: StatefulSet"),
    "weights on NFS": ("weights.volume.nfs.server=nas,weights.path=m", "server: nas"),
    "weights on the host": ("weights.volume.hostPath.path=/m,weights.path=m", "path: /m"),
    "a download Job": (
        "prefetch.enabled=true,cache.type=existingClaim,cache.existingClaim=m",
        "kind: Job",
    ),
    "TLS": ("tls.mode=tls,tls.secret=t", "scheme: HTTPS"),
    "mTLS": ("tls.mode=mtls,tls.secret=t", "value: mtls"),
    "monitor labels": (
        "auth.open=true,monitoring.serviceMonitor=true,monitoring.labels.release=p",
        "release: p",
    ),
    "monitor interval": (
        "auth.open=true,monitoring.serviceMonitor=true,monitoring.interval=5s",
        "interval: 5s",
    ),
    "a name": ("nameOverride=assistant", "name: demo-assistant"),
    "objects of one's own": (
        "extraObjects[0].kind=Secret,extraObjects[0].apiVersion=v1",
        "kind: Secret",
    ),
    "a registry for all charts": ("global.imageRegistry=m.example", "m.example/"),
    "pull secrets for all charts": ("global.imagePullSecrets[0].name=pull", "name: pull"),
    "probe limits": ("probes.startup.failureThreshold=999", "failureThreshold: 999"),
    "a pause before the stop": ("preStopSleepSeconds=77", '"77"'),
    "the pod's user": ("podSecurityContext.runAsUser=1234", "runAsUser: 1234"),
    "a role of the cloud": ("serviceAccount.annotations.role=r", "role: r"),
}
# What stays refused, and what the refusal says.
HINTED = {
    "tools under the default profile": (
        "environment.NIM_BUILTIN_TOOLS=python",
        "set tools.run, which gives them containers beside the server",
    ),
    "a privileged container": ("securityContext.privileged=true", "is fixed"),
    "another command": ("command[0]=bash", "settings are in environment"),
    "an autoscaler by a switch": ("autoscaling.enabled=true", "use autoscaling.type"),
    "an account by a switch": ("serviceAccount.create=false", "serviceAccount.name"),
    "a registry of its own": ("image.registry=r.example", "global.imageRegistry"),
    "arguments": ("extraArgs[0]=--x", "use environment"),
    "the host's network": ("hostNetwork=true", "use extraPodSpec"),
    "a hook": ("lifecycle.preStop.sleep=1", "preStopSleepSeconds"),
    "several nodes": ("multiNode.enabled=true", "not supported"),
    "LoRA adapters": ("lora.enabled=true", "NIM_PEFT_SOURCE"),
}


def plain(text: str) -> str:
    return text.replace('"', "").replace("'", "")


@pytest.mark.parametrize("wanted", TAKEN)
def test_it_can_be_set(template: Callable[..., str], wanted: str) -> None:
    pairs, shown = TAKEN[wanted]
    assert plain(shown) in plain(template("--set", pairs))


@pytest.mark.parametrize("wanted", sorted(TAKEN.keys() - {"an InferencePool"}))
@pytest.mark.parametrize("platform", ["nim-operator", "kserve"])
def test_where_a_platform_makes_the_pod_it_is_rendered_or_refused(
    helm: Callable[..., CompletedProcess[str]], chart: Path, platform: str, wanted: str
) -> None:
    pairs, shown = TAKEN[wanted]
    needed = f"kubernetes={platform},nimOperator.profile={'0' * 64},model=gpt-oss-20b"
    result = helm("template", "demo", chart, "--set", f"{IMAGE},{needed},{pairs}")
    assert (
        plain(shown) in plain(result.stdout)
        or "has no effect" in result.stderr
        or "only with" in result.stderr
        or "use ReadWriteMany" in result.stderr
    )


@pytest.mark.parametrize("wanted", HINTED)
def test_a_refusal_says_what_to_do(
    helm: Callable[..., CompletedProcess[str]], chart: Path, wanted: str
) -> None:
    pairs, hint = HINTED[wanted]
    result = helm("template", "demo", chart, "--set", f"{IMAGE},{pairs}")
    assert result.returncode != 0
    assert hint in result.stderr


def test_containers_of_tools_need_a_kubernetes_that_starts_them_first(
    helm: Callable[..., CompletedProcess[str]], chart: Path
) -> None:
    asked = ("--set", f"{IMAGE},tools.run={{python}}", "--kube-version", "1.28.15")
    result = helm("template", "demo", chart, *asked)
    assert result.returncode != 0
    assert "need Kubernetes 1.29" in result.stderr


def test_tools_have_the_profile_and_ollama_its_port(template: Callable[..., str]) -> None:
    tools = "environment.NIM_BUILTIN_TOOLS=python,podSecurityContext.seccompProfile.type=Unconfined"
    port = ("--set-string", "environment.NIM_OLLAMA_PORT=11434")
    shown = " ".join(plain(template("--set", tools, *port)).split())
    assert "seccompProfile: type: Unconfined" in shown
    assert "- name: ollama port: 11434 targetPort: ollama" in shown
