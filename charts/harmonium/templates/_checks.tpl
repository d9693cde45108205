{{/* Values that contradict each other. Every message names the value and the remedy. */}}
{{- define "harmonium.checks" -}}
{{- range $name, $remedy := (include "harmonium.ownSettings" . | fromYaml) -}}
{{- if hasKey $.Values.environment $name -}}
{{- fail (printf "environment.%s: %s" $name $remedy) -}}
{{- end -}}
{{- end -}}
{{- range $name, $remedy := (include "harmonium.foreignValues" . | fromYaml) -}}
{{- $parts := splitList "." $name -}}
{{- $holder := $.Values -}}
{{- if gt (len $parts) 1 -}}{{- $holder = get $.Values (first $parts) | default dict -}}{{- end -}}
{{- if hasKey $holder (last $parts) -}}
{{- fail (printf "%s is not a value of this chart: %s" $name $remedy) -}}
{{- end -}}
{{- end -}}
{{- range $path, $default := (include "harmonium.withoutEffect" . | fromYaml) -}}
{{- $value := $.Values -}}
{{- range (splitList "." $path) -}}{{- $value = get ($value | default dict) . -}}{{- end -}}
{{- if and (ne (toString $value) (toString $default)) (ne (toString $value) "") (not (kindIs "invalid" $value)) -}}
{{- if has $.Values.kubernetes (list "plain" "llm-d") -}}
{{- fail (printf "%s has no effect with cache.type: %s and kubernetes: %s; leave it out, or set the one that has it" $path $.Values.cache.type $.Values.kubernetes) -}}
{{- end -}}
{{- fail (printf "%s has no effect with kubernetes: %s, which makes the pod and its Service itself; leave it out, or set kubernetes: plain" $path $.Values.kubernetes) -}}
{{- end -}}
{{- end -}}
{{- $mayGrow := or (gt (int .Values.replicaCount) 1) (ne .Values.autoscaling.type "none") -}}
{{- if and (include "harmonium.claimIsForOneNode" .) $mayGrow -}}
{{- fail "cache.accessMode: several pods cannot mount a ReadWriteOnce claim; use ReadWriteMany (for an existing claim, set the mode that it has), cache.type: perPod or emptyDir" -}}
{{- end -}}
{{- if and $mayGrow (not (include "harmonium.hasCommonKeys" .)) (not (include "harmonium.isDynamoWorker" .)) -}}
{{- fail "several replicas need common keys: set auth.keysSecret, environmentSecret or auth.open" -}}
{{- end -}}
{{- if and .Values.prefetch.enabled (not (or (eq .Values.cache.type "existingClaim") (eq .Values.cache.accessMode "ReadWriteMany"))) -}}
{{- fail "prefetch.enabled: the Job and the pods share a claim; set cache.type: existingClaim, or persistentVolumeClaim with ReadWriteMany" -}}
{{- end -}}
{{- if and .Values.prefetch.enabled (eq .Values.cache.type "perPod") -}}
{{- fail "prefetch.enabled: with cache.type perPod each pod has its own claim; use a shared claim" -}}
{{- end -}}
{{- if and .Values.prefetch.enabled .Values.weights.volume -}}
{{- fail "prefetch.enabled: weights.volume has the weights, so that there is nothing to download; leave one of them out" -}}
{{- end -}}
{{- if and .Values.prefetch.hardware (not .Values.prefetch.enabled) -}}
{{- fail "prefetch.hardware has no effect without prefetch.enabled" -}}
{{- end -}}
{{- if and .Values.tools.run (include "harmonium.hasVariable" (list . "NIM_BUILTIN_TOOLS")) -}}
{{- fail "tools.run: NIM_BUILTIN_TOOLS says which tools run, too; leave one of them out" -}}
{{- end -}}
{{- if and .Values.tools.run (semverCompare "<1.29-0" .Capabilities.KubeVersion.Version) -}}
{{- fail "tools.run: containers that start before the server and stop after it need Kubernetes 1.29" -}}
{{- end -}}
{{- include "harmonium.responseChecks" . -}}
{{- include "harmonium.variableChecks" . -}}
{{- if has .Values.kubernetes (list "plain" "llm-d") -}}
{{- include "harmonium.listChecks" . -}}
{{- include "harmonium.serviceChecks" . -}}
{{- include "harmonium.policyChecks" . -}}
{{- include "harmonium.scrapeChecks" . -}}
{{- end -}}
{{- include "harmonium.strategyChecks" . -}}
{{- if and .Values.dra.enabled (not .Values.gpus) -}}
{{- fail "dra.enabled: set gpus to the number of devices of each pod" -}}
{{- end -}}
{{- if eq .Values.kubernetes "nim-operator" -}}
{{- if eq .Values.autoscaling.type "keda" -}}
{{- fail "autoscaling.type: keda has no effect with kubernetes: nim-operator, which makes an autoscaler itself; set hpa" -}}
{{- end -}}
{{- if and $mayGrow (hasPrefix "ReadWriteOnce" .Values.cache.accessMode) -}}
{{- fail "cache.accessMode: several pods cannot mount a ReadWriteOnce claim; use ReadWriteMany" -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.autoscaling.type "keda") (not .Values.autoscaling.prometheus) -}}
{{- fail "autoscaling.prometheus: KEDA needs the address of Prometheus, e.g. http://prometheus-operated.monitoring:9090" -}}
{{- end -}}
{{- if and (eq .Values.autoscaling.type "keda") (not .Values.monitoring.serviceMonitor) -}}
{{- fail "monitoring.serviceMonitor: KEDA scales on metrics that Prometheus scrapes; set it to true" -}}
{{- end -}}
{{- if and (ne .Values.tls.mode "disabled") (not .Values.tls.secret) (ne .Values.kubernetes "kserve") -}}
{{- fail "tls.secret: name the Secret with tls.crt and tls.key" -}}
{{- end -}}
{{- if and (eq .Values.kubernetes "llm-d") (ne .Values.tls.mode "disabled") -}}
{{- fail "tls.mode: the endpoint picker scrapes pods over plain HTTP; let the gateway terminate TLS" -}}
{{- end -}}
{{- if and .Values.kvEvents.enabled (not (has .Values.kubernetes (list "plain" "llm-d"))) -}}
{{- fail "kvEvents.enabled: only with kubernetes plain and llm-d" -}}
{{- end -}}
{{- if and .Values.kvEvents.enabled (not (and .Values.networkPolicy.enabled .Values.kvEvents.from)) -}}
{{- fail "kvEvents.from: the events show the tokens of prompts and need no key; name the router's pods there, and set networkPolicy.enabled" -}}
{{- end -}}
{{- include "harmonium.dynamoChecks" . -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) -}}
{{- fail "ingress.host: name the host of the Ingress" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute.parentRefs: name the Gateway, e.g. [{name: inference-gateway}]" -}}
{{- end -}}
{{- if and .Values.weights.path (not .Values.weights.volume) -}}
{{- fail "weights.volume: name the volume that holds weights.path" -}}
{{- end -}}
{{- if and .Values.weights.volume (not .Values.weights.path) -}}
{{- fail "weights.path: name the checkpoint's folder in the volume" -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.dynamoChecks" -}}
{{- $dynamo := .Values.dynamo -}}
{{- if and $dynamo.role (ne .Values.kubernetes "plain") -}}
{{- fail "dynamo.role: only with kubernetes plain" -}}
{{- end -}}
{{- if and $dynamo.role (not .Values.networkPolicy.enabled) -}}
{{- fail "dynamo.role: Dynamo's ports need no key; set networkPolicy.enabled" -}}
{{- end -}}
{{- if and $dynamo.role (not $dynamo.etcd) -}}
{{- fail "dynamo.etcd: fronts find workers through etcd; set its address, e.g. http://etcd:2379" -}}
{{- end -}}
{{- if and $dynamo.tlsSecret (not $dynamo.tlsServerName) -}}
{{- fail "dynamo.tlsServerName: peers connect by IP address; set the name in the certificate" -}}
{{- end -}}
{{- if and (include "harmonium.handsOver" .) (not $dynamo.handoverSecret) -}}
{{- fail "dynamo.handoverSecret: prefill and decode workers prove themselves to each other; name the Secret that they share" -}}
{{- end -}}
{{- if and $dynamo.role $dynamo.handoverSecret (not (include "harmonium.handsOver" .)) -}}
{{- fail "dynamo.handoverSecret: set dynamo.role to prefill or decode; others hand no K/V over" -}}
{{- end -}}
{{- if and (not $dynamo.role) (or $dynamo.etcd $dynamo.tlsSecret $dynamo.handoverSecret) -}}
{{- fail "dynamo.role: set front, worker, prefill or decode; without it the other values of dynamo have no effect" -}}
{{- end -}}
{{- if and (eq $dynamo.role "front") (or (include "harmonium.usesGpus" .) .Values.weights.volume .Values.prefetch.enabled .Values.kvEvents.enabled) -}}
{{- fail "dynamo.role: a front runs no engine; set gpus, dra, weights, prefetch and kvEvents for the workers" -}}
{{- end -}}
{{- if and (eq $dynamo.role "front") (not .Values.model) -}}
{{- fail "model: a front names the model of its workers" -}}
{{- end -}}
{{- if and .Values.environment.NIM_BUILTIN_TOOLS (eq (dig "seccompProfile" "type" "RuntimeDefault" .Values.podSecurityContext) "RuntimeDefault") -}}
{{- fail "environment.NIM_BUILTIN_TOOLS: the sandboxes need user namespaces, which the container runtime's default seccomp profile refuses; set tools.run, which gives them containers beside the server, or podSecurityContext.seccompProfile.type to Localhost (a profile that allows unshare and mount) or Unconfined" -}}
{{- end -}}
{{- if include "harmonium.isDynamoWorker" . -}}
{{- $ofFronts := dict "auth.open" .Values.auth.open "auth.keysSecret" .Values.auth.keysSecret "autoscaling.type" (ne .Values.autoscaling.type "none") "httpRoute.enabled" .Values.httpRoute.enabled "ingress.enabled" .Values.ingress.enabled "monitoring.serviceMonitor" .Values.monitoring.serviceMonitor "tls.mode" (ne .Values.tls.mode "disabled") "tools.run" .Values.tools.run -}}
{{- range $path, $value := $ofFronts -}}
{{- if $value -}}
{{- fail (printf "%s has no effect on workers, which have no API; set it for the front" $path) -}}
{{- end -}}
{{- end -}}
{{- if .Values.environment.NIM_REPLICAS -}}
{{- fail "environment.NIM_REPLICAS: a pod is one worker; set replicaCount" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Stored responses are a SQLite file, which is damaged where two hosts open it on a shared volume. */}}
{{- define "harmonium.responseChecks" -}}
{{- $mayGrow := or (gt (int .Values.replicaCount) 1) (ne .Values.autoscaling.type "none") -}}
{{- $hasRedis := include "harmonium.hasVariable" (list . "NIM_REDIS_URL") -}}
{{- $hasPath := include "harmonium.hasVariable" (list . "NIM_RESPONSES_PATH") -}}
{{- if and (eq .Values.responses.type "pod") (or $hasRedis $hasPath) -}}
{{- fail (printf "responses.type: %s says where stored responses are; leave one of them out" (ternary "NIM_REDIS_URL" "NIM_RESPONSES_PATH" (ne $hasRedis ""))) -}}
{{- end -}}
{{- if and (eq .Values.responses.type "pod") (include "harmonium.isDynamoWorker" .) -}}
{{- fail "responses.type has no effect on workers, which have no API; set it for the front" -}}
{{- end -}}
{{- if and (include "harmonium.sharesClaim" .) (not (include "harmonium.isDynamoWorker" .)) (has .Values.kubernetes (list "plain" "llm-d")) -}}
{{- $path := toString (.Values.environment.NIM_RESPONSES_PATH | default "") -}}
{{- range .Values.extraEnv -}}{{- if eq .name "NIM_RESPONSES_PATH" -}}{{- $path = toString .value -}}{{- end -}}{{- end -}}
{{- if and (hasPrefix "/opt/nim/.cache" $path) (not $hasRedis) -}}
{{- fail "environment.NIM_RESPONSES_PATH: the cache is a claim that several hosts may mount, and a SQLite file is for one host; leave it out and set responses.type: pod, or share responses with NIM_REDIS_URL in environmentFrom" -}}
{{- end -}}
{{- if and $mayGrow (ne .Values.responses.type "pod") (not $hasRedis) (not $hasPath) -}}
{{- fail "responses.type: several pods on one claim cannot keep stored responses in it (a SQLite file is for one host); set responses.type: pod (each pod has its own, on its node), or NIM_REDIS_URL in environmentFrom (all pods share them)" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Variables that bypass `environment`: a value of the chart has one way to be set. */}}
{{- define "harmonium.variableChecks" -}}
{{- $own := include "harmonium.ownSettings" . | fromYaml -}}
{{- $given := dict -}}
{{- range $name, $_ := .Values.environmentFrom -}}{{- $_ := set $given $name "environmentFrom" -}}{{- end -}}
{{- range .Values.extraEnv -}}
{{- if hasKey $given .name -}}
{{- fail (printf "extraEnv: %s is in environmentFrom too; remove one" .name) -}}
{{- end -}}
{{- $_ := set $given .name "extraEnv" -}}
{{- end -}}
{{- range $name, $where := $given -}}
{{- if and (hasKey $own $name) (not (and (eq $where "environmentFrom") (eq $name "NIM_API_KEYS"))) -}}
{{- fail (printf "%s.%s: %s" $where $name (get $own $name)) -}}
{{- end -}}
{{- if hasKey $.Values.environment $name -}}
{{- fail (printf "environment.%s: it is in %s too, which would win; remove one" $name $where) -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.kubernetes "kserve" -}}
{{- range $name := list "NIM_MODEL_PATH" "NIM_SERVED_MODEL_NAME" -}}
{{- if include "harmonium.hasVariable" (list $ $name) -}}
{{- fail (printf "environment.%s: KServe's model and its names decide it; leave it out, or set kubernetes: plain" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Lists whose items have a key: an API server refuses the same key twice. */}}
{{- define "harmonium.listChecks" -}}
{{- $lists := dict -}}
{{- $_ := set $lists "name of environment variables (extraEnv, environmentFrom)" (include "harmonium.environment" . | fromYamlArray) -}}
{{- $_ := set $lists "name of volumes (extraVolumes)" (include "harmonium.volumes" . | fromYamlArray) -}}
{{- $_ := set $lists "name of containers (sidecars, initContainers)" (concat (list (dict "name" "harmonium")) (include "harmonium.tools" . | fromYamlArray) .Values.sidecars .Values.initContainers) -}}
{{- $_ := set $lists "mountPath of mounts (extraVolumeMounts)" (include "harmonium.volumeMounts" . | fromYamlArray) -}}
{{- range $what, $items := $lists -}}
{{- $seen := dict -}}
{{- range $items -}}
{{- $key := get . (first (splitList " " $what)) | toString -}}
{{- if hasKey $seen $key -}}
{{- fail (printf "%s is there twice as a %s; remove one, or set the value of the chart that makes it" $key $what) -}}
{{- end -}}
{{- $_ := set $seen $key true -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.serviceChecks" -}}
{{- $service := .Values.service -}}
{{- if and (eq $service.type "ClusterIP") (or $service.nodePort $service.externalTrafficPolicy) -}}
{{- fail "service.type: nodePort and externalTrafficPolicy need NodePort or LoadBalancer" -}}
{{- end -}}
{{- $range := splitList "-" $service.nodePortRange -}}
{{- if and $service.nodePort (or (lt (int $service.nodePort) (int (first $range))) (gt (int $service.nodePort) (int (last $range)))) -}}
{{- fail (printf "service.nodePort: a node has %s for Services; choose one of them, or set service.nodePortRange to the API server's --service-node-port-range" $service.nodePortRange) -}}
{{- end -}}
{{- if and (ne $service.type "LoadBalancer") $service.loadBalancerSourceRanges -}}
{{- fail "service.type: loadBalancerSourceRanges needs LoadBalancer" -}}
{{- end -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas: it is above autoscaling.maxReplicas" -}}
{{- end -}}
{{- $name := include "harmonium.fullname" . -}}
{{- if and (eq .Values.cache.type "perPod") (gt (len $name) 52) -}}
{{- fail (printf "cache.type: the name %s of a StatefulSet has %d characters, and its pods' label has room for 52; set fullnameOverride" $name (len $name)) -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.scrapeChecks" -}}
{{- $isRead := or .Values.auth.open (eq .Values.tls.mode "mtls") (has "metrics" (splitList "," (include "harmonium.readWithoutKey" .))) -}}
{{- if and .Values.monitoring.serviceMonitor (not .Values.monitoring.keySecret) (not $isRead) (not (include "harmonium.isDynamoWorker" .)) -}}
{{- fail "monitoring.keySecret: /metrics needs a key, and the ServiceMonitor would have none; name a Secret whose `key` may read metrics, or set auth.readWithoutKey: [metrics]" -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.policyChecks" -}}
{{- if not (include "harmonium.isDynamoWorker" .) -}}
{{- $policy := .Values.networkPolicy -}}
{{- range $value, $isOn := dict "ingress.enabled" .Values.ingress.enabled "httpRoute.enabled" .Values.httpRoute.enabled "monitoring.serviceMonitor" .Values.monitoring.serviceMonitor -}}
{{- if and $policy.enabled $isOn (not $policy.from) -}}
{{- fail (printf "networkPolicy.from: by default only pods of this namespace get in, and %s has its callers elsewhere; list who may, e.g. {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}" $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.strategyChecks" -}}
{{- $own := .Values.strategy -}}
{{- $rolling := $own.rollingUpdate | default dict -}}
{{- if and $rolling (has ($own.type | default "RollingUpdate") (list "Recreate" "OnDelete")) -}}
{{- fail (printf "strategy.rollingUpdate: it has no effect with strategy.type: %s; set it to null" $own.type) -}}
{{- end -}}
{{- $isStateful := eq .Values.cache.type "perPod" -}}
{{- if and $isStateful (or (eq (toString $own.type) "Recreate") (hasKey $rolling "maxSurge")) -}}
{{- fail "strategy: a StatefulSet (cache.type: perPod) has no Recreate and no maxSurge; its types are RollingUpdate and OnDelete" -}}
{{- end -}}
{{- if and (not $isStateful) (or (eq (toString $own.type) "OnDelete") (hasKey $rolling "partition")) -}}
{{- fail "strategy: a Deployment has no OnDelete and no partition, which are a StatefulSet's (cache.type: perPod); its types are RollingUpdate and Recreate" -}}
{{- end -}}
{{- $deadline := include "harmonium.progressDeadline" . | int -}}
{{- if and (not $isStateful) (ge (int .Values.minReadySeconds) $deadline) -}}
{{- fail (printf "minReadySeconds: a rollout fails after %d seconds; set progressDeadlineSeconds above minReadySeconds" $deadline) -}}
{{- end -}}
{{- if and (has (toString (get $rolling "maxSurge")) (list "0" "0%")) (has (toString (get $rolling "maxUnavailable")) (list "0" "0%")) -}}
{{- fail "strategy.rollingUpdate: maxSurge and maxUnavailable cannot both be 0" -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.hasCommonKeys" -}}
{{- $names := keys .Values.environmentFrom -}}
{{- if or .Values.auth.open .Values.auth.keysSecret .Values.environmentSecret (has "NIM_API_KEYS" $names) (eq .Values.tls.mode "mtls") (regexMatch "NIM_JWT_" (toJson .Values.environment)) -}}
true
{{- end -}}
{{- end -}}

{{/* Whether all pods share a claim that one node can mount. */}}
{{- define "harmonium.claimIsForOneNode" -}}
{{- if and (has .Values.cache.type (list "persistentVolumeClaim" "existingClaim")) (hasPrefix "ReadWriteOnce" .Values.cache.accessMode) -}}true{{- end -}}
{{- end -}}

{{/* Values that are not rendered, with the defaults that may stay. */}}
{{- define "harmonium.withoutEffect" -}}
{{- if and (eq .Values.cache.type "emptyDir") (has .Values.kubernetes (list "plain" "llm-d")) -}}
cache.accessMode: ReadWriteOnce
cache.existingClaim: ""
cache.storageClassName: ""
{{- end }}
{{ if ne .Values.kubernetes "llm-d" -}}
inferencePool.endpointPicker.name: ""
{{- end }}
{{ if has .Values.kubernetes (list "nim-operator" "kserve") -}}
auth.keysSecret: ""
cache.existingClaim: ""
cache.type: emptyDir
dra.enabled: false
environmentSecret: ""
extraEnvFrom: []
extraPodSpec: {}
extraVolumeMounts: []
extraVolumes: []
global.imagePullSecrets: []
httpRoute.enabled: false
ingress.enabled: false
initContainers: []
minReadySeconds: 0
networkPolicy.enabled: false
podDisruptionBudget.enabled: false
podSecurityContext.fsGroup: 10001
podSecurityContext.runAsGroup: 10001
podSecurityContext.runAsUser: 10001
prefetch.enabled: false
prefetch.hardware: ""
probes.startup: {periodSeconds: 5, timeoutSeconds: 3, failureThreshold: 720}
progressDeadlineSeconds: 0
responses.type: ""
revisionHistoryLimit: 10
service.externalTrafficPolicy: ""
service.ipFamilies: []
service.ipFamilyPolicy: ""
service.loadBalancerSourceRanges: []
service.nodePort: 0
service.nodePortRange: 30000-32767
service.sessionAffinity: None
serviceAccount.annotations: {}
serviceAccount.name: ""
sidecars: []
strategy: {}
tests.keySecret: ""
tls.secret: ""
tools.run: []
topologySpreadConstraints: []
weights.volume: {}
{{- end }}
{{ if ne .Values.kubernetes "nim-operator" -}}
nimOperator.modelPuller: ""
{{- end }}
{{ if eq .Values.kubernetes "nim-operator" -}}
drainSeconds: 120
imagePullSecrets: []
monitoring.keySecret: ""
preStopSleepSeconds: 5
probes.liveness: {periodSeconds: 10, timeoutSeconds: 3, failureThreshold: 3}
probes.readiness: {periodSeconds: 5, timeoutSeconds: 3, failureThreshold: 2}
tls.mode: disabled
{{- else if eq .Values.kubernetes "kserve" -}}
affinity: {}
autoscaling.type: none
podAnnotations: {}
podLabels: {}
priorityClassName: ""
runtimeClassName: ""
schedulerName: ""
service.annotations: {}
service.labels: {}
shmSize: ""
cache.accessMode: ReadWriteOnce
cache.keep: true
cache.storageClassName: ""
imagePullSecrets: []
monitoring.keySecret: ""
monitoring.serviceMonitor: false
service.port: 8000
service.type: ClusterIP
{{- end -}}
{{- end -}}

{{/* Settings that other values render. */}}
{{- define "harmonium.ownSettings" -}}
NIM_SERVER_HOST: the pod listens on all addresses; service.port is the port of the Service
NIM_SERVER_PORT: the pod listens on 8000; service.port is the port of the Service
NIM_CACHE_PATH: the cache is the volume of `cache`
NIM_MODEL_NAME: set model
NIM_AUTH: set auth.open
NIM_API_KEYS: keys belong in a Secret; set auth.keysSecret, or environmentFrom
NIM_API_KEYS_PATH: set auth.keysSecret
NIM_READ_WITHOUT_KEY: set auth.readWithoutKey
NIM_DRAIN_GRACE_S: set drainSeconds
NIM_ENABLE_KV_CACHE_EVENTS: set kvEvents.enabled
NIM_KV_EVENTS_ENDPOINT: it is the pod's address; set kvEvents.enabled
NIM_KV_EVENTS_REPLAY_ENDPOINT: it is the pod's address; set kvEvents.enabled
NIM_KV_EVENTS_TOPIC: it names the pod and the model; set kvEvents.enabled
NIM_DYNAMO_DISCOVERY: it is etcd; set dynamo.etcd
NIM_DYNAMO_ENDPOINT: set dynamo.role and dynamo.endpoint
NIM_DYNAMO_ROLE: set dynamo.role
NIM_KV_HANDOVER_ENDPOINT: it is the pod's address; set dynamo.role
NIM_KV_HANDOVER_SECRET: it belongs in a Secret; set dynamo.handoverSecret
NIM_SSL_MODE: set tls.mode
NIM_SSL_KEY_PATH: set tls.secret
NIM_SSL_CERTS_PATH: set tls.secret
NIM_SSL_CA_CERTS_PATH: set tls.secret
NIM_COMPARE_ORIGINS: "it is no longer a setting, but a constant: the origins in NIM_CORS_ALLOW_ORIGINS; remove it"
NIM_ENGINE_QUARANTINE_S: "it is no longer a setting, but a constant: 600; remove it"
NIM_JWT_MAX_LIFETIME_S: "it is no longer a setting, but a constant: 86400; remove it"
NIM_JWT_MAX_STALE_S: "it is no longer a setting, but a constant: 21600; remove it"
NIM_MAX_UNREAD_BYTES: "it is no longer a setting, but a constant: 134217728; remove it"
NIM_MAX_UNREAD_BYTES_PER_STREAM: "it is no longer a setting, but a constant: 1048576; remove it"
NIM_MCP_MAX_CALLS: "it is no longer a setting, but a constant: 16; remove it"
NIM_MCP_MAX_RESULT_BYTES: "it is no longer a setting, but a constant: 65536; remove it"
NIM_OTEL_EXPORTER_OTLP_PROTOCOL: "it is no longer a setting, but a constant: http/protobuf, or OTEL_EXPORTER_OTLP_PROTOCOL; remove it"
NIM_OTEL_LOGS_EXPORTER: "it is no longer a setting, but a constant: otlp, or OTEL_LOGS_EXPORTER; remove it"
NIM_SLOW_READER_TIMEOUT_S: "it is no longer a setting, but a constant: 30; remove it"
NIM_SSE_KEEPALIVE_S: "it is no longer a setting, but a constant: 15; remove it"
{{- end -}}

{{/* Names of other charts. The schema lets them through, so that they are answered here. */}}
{{- define "harmonium.foreignValues" -}}
env: use extraEnv, or environment for settings of the service
envFrom: use extraEnvFrom
secret: use environmentSecret or environmentFrom
persistence: use cache
storage: use cache
volumes: use extraVolumes
volumeMounts: use extraVolumeMounts
extraInitContainers: use initContainers
extraContainers: use sidecars
securityContext: the container's is fixed (no rights, read-only root); ids are in podSecurityContext
containerSecurityContext: it is fixed (no rights, read-only root); ids are in podSecurityContext
livenessProbe: use probes.liveness
readinessProbe: use probes.readiness
startupProbe: use probes.startup
updateStrategy: use strategy
hpa: use autoscaling
keda: use autoscaling with type keda
serviceMonitor: use monitoring.serviceMonitor
metrics: use monitoring
terminationGracePeriodSeconds: use drainSeconds; the grace period is derived from it
podDisruptionBudgets: use podDisruptionBudget
pdb: use podDisruptionBudget
statefulSet: use cache.type perPod
hostPath: use weights.volume
nfs: use weights.volume
jobs: use prefetch
multiNode: not supported; one GPU holds gpt-oss-120b, and docs/deploy.md says what to do with several machines
lora: use environment, with NIM_PEFT_SOURCE, and mount the adapters with extraVolumes and extraVolumeMounts
modelSpec: one release serves one model; install the chart once for each
command: the image's command is fixed; settings are in environment
args: flags are environment variables here; use environment
replicas: use replicaCount
extraArgs: flags are environment variables here; use environment
extraEnvVars: use extraEnv, or environment for settings of the service
extraDeploy: use extraObjects
labels: use commonLabels or podLabels
annotations: use commonAnnotations or podAnnotations
lifecycle: a pause before the stop is preStopSleepSeconds, and time for open requests drainSeconds
hostNetwork: use extraPodSpec, which takes hostNetwork
hostAliases: use extraPodSpec, which takes hostAliases
dnsPolicy: use extraPodSpec, which takes dnsPolicy
dnsConfig: use extraPodSpec, which takes dnsConfig
ngcAPISecret: use environmentFrom, with NGC_API_KEY as the name and the Secret's name and key below it
hfTokenSecret: use environmentFrom, with HF_TOKEN as the name and the Secret's name and key below it
servingEngineSpec: one release serves one model, set in model; install the chart once for each
routerSpec: a router is not part of the chart; kubernetes llm-d renders what llm-d's needs
autoscaling.enabled: use autoscaling.type hpa or keda
serviceAccount.create: one is made unless serviceAccount.name names yours
image.registry: write it into image.repository, or use global.imageRegistry
ingress.hosts: use ingress.host
ingress.tls: use ingress.tlsSecret
ingress.ingressClassName: use ingress.className
{{- end -}}
