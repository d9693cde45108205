{{/* The pod, as Deployment, StatefulSet and the download Job share it. */}}

{{- define "harmonium.strategy" -}}
{{/* Type and rollingUpdate are always rendered: a default that the API server fills in has no owner, and no later
upgrade can take it away. */ -}}
{{- $own := .Values.strategy -}}
{{- $rolling := $own.rollingUpdate | default dict -}}
{{- /* Of one pod that gives its GPU up first, a rolling update calls zero pods available, and `helm --wait` of Helm 3 agrees. */ -}}
{{- $isAlone := and (include "harmonium.usesGpus" .) (le (int .Values.replicaCount) 1) (eq .Values.autoscaling.type "none") -}}
{{- $type := $own.type | default (ternary "Recreate" "RollingUpdate" (and (empty $rolling) (or $isAlone (ne (include "harmonium.claimIsForOneNode" .) "")))) -}}
type: {{ $type }}
{{- if eq $type "RollingUpdate" }}
rollingUpdate:
  {{- if $rolling }}
  {{- /* By key: `merge` takes 0 for unset. */}}
  {{- range $key := list "maxSurge" "maxUnavailable" }}
  {{ $key }}: {{ ternary (get $rolling $key) "25%" (hasKey $rolling $key) | toJson }}
  {{- end }}
  {{- else if include "harmonium.usesGpus" . }}
  {{- /* A new pod would wait for ever for a GPU that the old one holds. */}}
  maxSurge: 0
  maxUnavailable: 1
  {{- else }}
  maxSurge: 1
  maxUnavailable: 0
  {{- end }}
{{- end }}
{{- end -}}

{{/* The same of a StatefulSet. */}}
{{- define "harmonium.updateStrategy" -}}
{{- $type := .Values.strategy.type | default "RollingUpdate" -}}
type: {{ $type }}
{{- if eq $type "RollingUpdate" }}
rollingUpdate:
  {{- $rolling := .Values.strategy.rollingUpdate | default dict }}
  partition: {{ $rolling.partition | default 0 | int }}
  {{- with omit $rolling "partition" }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "harmonium.progressDeadline" -}}
{{- $probe := .Values.probes.startup -}}
{{- .Values.progressDeadlineSeconds | default (add 120 (mul $probe.periodSeconds $probe.failureThreshold)) | int -}}
{{- end -}}

{{/* After the pause and the drain the engine process gets 15 s to stop. */}}
{{- define "harmonium.gracePeriod" -}}
{{- add .Values.preStopSleepSeconds .Values.drainSeconds 15 -}}
{{- end -}}

{{/* Takes (dict "root" . "path" path "probe" values). A kubelet has no client certificate for mTLS. */}}
{{- define "harmonium.probe" -}}
{{- if eq .root.Values.tls.mode "mtls" -}}
exec:
  command: ["python", "-m", "service.http.probe", "8000", "mtls"]
{{- else -}}
httpGet:
  path: {{ .path | quote }}
  port: api
  {{- if eq .root.Values.tls.mode "tls" }}
  scheme: HTTPS
  {{- end }}
{{- end }}
{{ toYaml .probe }}
{{- end -}}

{{- define "harmonium.preStop" -}}
preStop:
  exec:
    command: ["sleep", {{ .Values.preStopSleepSeconds | quote }}]
{{- end -}}

{{- define "harmonium.environment" -}}
- name: NIM_SERVER_PORT
  value: "8000"
- name: NIM_DRAIN_GRACE_S
  value: {{ .Values.drainSeconds | quote }}
{{- with include "harmonium.model" . }}
- name: NIM_MODEL_NAME
  value: {{ . | quote }}
{{- end }}
{{- with .Values.weights.path }}
- name: NIM_MODEL_PATH
  value: {{ printf "/models/%s" (trimPrefix "/" .) | quote }}
{{- end }}
{{- if include "harmonium.responsesAreInPod" . }}
- name: NIM_RESPONSES_PATH
  value: /var/lib/harmonium/responses.sqlite
{{- end }}
{{- if .Values.auth.open }}
- name: NIM_AUTH
  value: "off"
{{- end }}
{{- if .Values.auth.keysSecret }}
- name: NIM_API_KEYS_PATH
  value: /etc/harmonium/keys
{{- end }}
{{- with include "harmonium.readWithoutKey" . }}
- name: NIM_READ_WITHOUT_KEY
  value: {{ . | quote }}
{{- end }}
{{- if and .Values.kvEvents.enabled (not .Values.dynamo.role) }}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- end }}
{{- if .Values.dynamo.role }}
{{- include "harmonium.dynamoEnvironment" . }}
{{- end }}
{{- if .Values.kvEvents.enabled }}
- name: NIM_ENABLE_KV_CACHE_EVENTS
  value: "true"
# Each engine of the pod takes the next port; the policy allows as many as there may be.
- name: NIM_KV_EVENTS_ENDPOINT
  value: tcp://$(POD_IP):5557
- name: NIM_KV_EVENTS_REPLAY_ENDPOINT
  value: tcp://$(POD_IP):5657
- name: NIM_KV_EVENTS_TOPIC
  value: kv@$(POD_IP):8000@{{ include "harmonium.servedName" . }}
{{- end }}
{{- if ne .Values.tls.mode "disabled" }}
- name: NIM_SSL_MODE
  value: {{ .Values.tls.mode | quote }}
- name: NIM_SSL_CERTS_PATH
  value: /etc/harmonium/tls/tls.crt
- name: NIM_SSL_KEY_PATH
  value: /etc/harmonium/tls/tls.key
{{- end }}
{{- if eq .Values.tls.mode "mtls" }}
- name: NIM_SSL_CA_CERTS_PATH
  value: /etc/harmonium/tls/ca.crt
{{- end }}
{{- range $name, $from := .Values.environmentFrom }}
- name: {{ $name | quote }}
  valueFrom:
    secretKeyRef:
      name: {{ $from.name | quote }}
      key: {{ $from.key | quote }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Its sockets are on the pod's address alone; which pods reach that, the NetworkPolicy says. */}}
{{- define "harmonium.dynamoEnvironment" }}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: NIM_DYNAMO_ENDPOINT
  value: {{ .Values.dynamo.endpoint | quote }}
- name: ETCD_ENDPOINTS
  value: {{ .Values.dynamo.etcd | quote }}
- name: DYN_TCP_RPC_HOST
  value: $(POD_IP)
- name: DYN_TCP_RESPONSE_STREAM_HOST
  value: $(POD_IP)
{{- if include "harmonium.isDynamoWorker" . }}
- name: DYN_SYSTEM_PORT
  value: "9090"
- name: NIM_REPLICAS
  value: "1"
{{- end }}
{{- if include "harmonium.handsOver" . }}
- name: NIM_DYNAMO_ROLE
  value: {{ .Values.dynamo.role | quote }}
- name: NIM_KV_HANDOVER_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ .Values.dynamo.handoverSecret | quote }}
      key: secret
{{- end }}
{{- if eq .Values.dynamo.role "prefill" }}
- name: NIM_KV_HANDOVER_ENDPOINT
  value: tcp://$(POD_IP):5560
{{- end }}
{{- if .Values.dynamo.tlsSecret }}
{{- range $name, $file := dict "CERT" "tls.crt" "KEY" "tls.key" "CA_CERT" "ca.crt" "CLIENT_CERT" "tls.crt" "CLIENT_KEY" "tls.key" "CLIENT_CA_CERT" "ca.crt" }}
- name: DYN_TCP_TLS_{{ $name }}_PATH
  value: /etc/harmonium/dynamo/{{ $file }}
{{- end }}
- name: DYN_TCP_TLS_SERVER_NAME
  value: {{ .Values.dynamo.tlsServerName | quote }}
{{- end }}
{{- end -}}

{{/* Whether pods that live at the same time have one cache. */}}
{{- define "harmonium.sharesClaim" -}}
{{- if and (has .Values.cache.type (list "persistentVolumeClaim" "existingClaim")) (eq .Values.cache.accessMode "ReadWriteMany") -}}true{{- end -}}
{{- end -}}

{{/* Takes (list . "NAME"): whether a value gives the pod this variable, as far as the chart can see. */}}
{{- define "harmonium.hasVariable" -}}
{{- $values := (index . 0).Values -}}
{{- $name := index . 1 -}}
{{- if or (hasKey $values.environment $name) (hasKey $values.environmentFrom $name) -}}true{{- end -}}
{{- range $values.extraEnv -}}{{- if eq .name $name -}}true{{- end -}}{{- end -}}
{{- end -}}

{{/* Stored responses are a SQLite file, which one host alone may open: where a rolling update has two pods on one claim,
each has its own. */}}
{{- define "harmonium.responsesAreInPod" -}}
{{- $isElsewhere := or (include "harmonium.hasVariable" (list . "NIM_REDIS_URL")) (include "harmonium.hasVariable" (list . "NIM_RESPONSES_PATH")) -}}
{{- if or (eq .Values.responses.type "pod") (and (include "harmonium.sharesClaim" .) (not $isElsewhere) (not (include "harmonium.isDynamoWorker" .))) -}}true{{- end -}}
{{- end -}}

{{/* The endpoint picker of llm-d has no key. */}}
{{- define "harmonium.readWithoutKey" -}}
{{- if .Values.auth.readWithoutKey -}}
{{- join "," .Values.auth.readWithoutKey -}}
{{- else if and (eq .Values.kubernetes "llm-d") (not .Values.auth.open) -}}
metrics,models,render
{{- end -}}
{{- end -}}

{{/* The settings of `environment`, and of ours what nothing else sets. */}}
{{- define "harmonium.settings" -}}
{{- $settings := deepCopy .Values.environment -}}
{{- if not (include "harmonium.hasVariable" (list . "NIM_JSONL_LOGGING")) -}}
{{- $_ := set $settings "NIM_JSONL_LOGGING" "1" -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{- define "harmonium.environmentSources" -}}
- configMapRef:
    name: {{ include "harmonium.configMapName" . | quote }}
{{- with .Values.environmentSecret }}
- secretRef:
    name: {{ . | quote }}
{{- end }}
{{- with .Values.extraEnvFrom }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "harmonium.volumeMounts" -}}
- name: cache
  mountPath: /opt/nim/.cache
- name: tmp
  mountPath: /tmp
{{- if include "harmonium.responsesAreInPod" . }}
- name: responses
  mountPath: /var/lib/harmonium
{{- end }}
{{- if .Values.weights.volume }}
- name: weights
  mountPath: /models
  readOnly: true
{{- end }}
{{- if .Values.auth.keysSecret }}
- name: keys
  mountPath: /etc/harmonium/keys
  readOnly: true
{{- end }}
{{- if .Values.tls.secret }}
- name: tls
  mountPath: /etc/harmonium/tls
  readOnly: true
{{- end }}
{{- if .Values.dynamo.tlsSecret }}
- name: dynamo
  mountPath: /etc/harmonium/dynamo
  readOnly: true
{{- end }}
{{- if .Values.shmSize }}
- name: shm
  mountPath: /dev/shm
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "harmonium.volumes" -}}
{{- if eq .Values.cache.type "emptyDir" }}
- name: cache
  emptyDir:
    sizeLimit: {{ include "harmonium.cacheSize" . | quote }}
{{- else if ne .Values.cache.type "perPod" }}
- name: cache
  persistentVolumeClaim:
    claimName: {{ include "harmonium.claimName" . | quote }}
{{- end }}
- name: tmp
  emptyDir:
    sizeLimit: 1Gi
{{- if include "harmonium.responsesAreInPod" . }}
- name: responses
  emptyDir:
    sizeLimit: 2Gi
{{- end }}
{{- with .Values.weights.volume }}
- name: weights
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.auth.keysSecret }}
- name: keys
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
{{- end }}
{{- with .Values.tls.secret }}
- name: tls
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
{{- end }}
{{- with .Values.dynamo.tlsSecret }}
- name: dynamo
  secret:
    secretName: {{ . | quote }}
    defaultMode: 0440
{{- end }}
{{- with .Values.shmSize }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ . | quote }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "harmonium.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end -}}

{{/* Takes (dict "root" . "body" yaml): a pod's spec with what every pod of the chart has. */}}
{{- define "harmonium.podBase" -}}
serviceAccountName: {{ include "harmonium.serviceAccountName" . | quote }}
automountServiceAccountToken: false
# Links would put variables of other services among the settings.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  seccompProfile:
    {{- toYaml (.Values.podSecurityContext.seccompProfile | default (dict "type" "RuntimeDefault")) | nindent 4 }}
  fsGroupChangePolicy: OnRootMismatch
  {{- with omit .Values.podSecurityContext "seccompProfile" }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with concat .Values.imagePullSecrets .Values.global.imagePullSecrets | uniq }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "harmonium.tolerations" . }}
tolerations:
  {{- . | nindent 2 }}
{{- end }}
{{- with .Values.schedulerName }}
schedulerName: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "harmonium.tolerations" -}}
{{- $tolerations := .Values.tolerations -}}
{{- if include "harmonium.usesGpus" . -}}
{{- $gpu := dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule" -}}
{{- $tolerations = uniq (append $tolerations $gpu) -}}
{{- end -}}
{{- with $tolerations }}{{- toYaml . -}}{{- end -}}
{{- end -}}

{{- define "harmonium.podTemplate" -}}
metadata:
  labels:
    {{- $labels := ternary (dict "llm-d.ai/engine-type" "vllm") dict (eq .Values.kubernetes "llm-d") }}
    {{- $labels = mustMergeOverwrite $labels (deepCopy .Values.podLabels) }}
    {{- if .Values.dynamo.role }}
    {{- $labels = mustMergeOverwrite $labels (include "harmonium.dynamoLabel" . | fromYaml) }}
    {{- end }}
    {{- include "harmonium.labels" (list . $labels) | nindent 4 }}
  annotations:
    {{- with mustMergeOverwrite (deepCopy .Values.commonAnnotations) .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    checksum/environment: {{ toJson .Values.environment | sha256sum }}
spec:
  {{- $own := include "harmonium.podSpec" . | fromYaml }}
  {{- $values := include "harmonium.podSpecValues" . | fromYaml }}
  {{- range $field, $_ := .Values.extraPodSpec }}
  {{- if hasKey $own $field }}
  {{- fail (printf "extraPodSpec.%s: the chart sets this field; %s" $field (get $values $field | default "it is fixed")) }}
  {{- end }}
  {{- end }}
  {{- mustMerge $own (deepCopy .Values.extraPodSpec) | toYaml | nindent 2 }}
{{- end -}}

{{/* Where the fields of a pod that the chart sets come from. */}}
{{- define "harmonium.podSpecValues" -}}
affinity: use affinity
containers: use sidecars
imagePullSecrets: use imagePullSecrets
initContainers: use initContainers
nodeSelector: use nodeSelector
priorityClassName: use priorityClassName
resourceClaims: use dra
runtimeClassName: use runtimeClassName
schedulerName: use schedulerName
securityContext: use podSecurityContext
serviceAccountName: use serviceAccount
terminationGracePeriodSeconds: use drainSeconds
tolerations: use tolerations
topologySpreadConstraints: use topologySpreadConstraints
volumes: use extraVolumes
{{- end -}}

{{- define "harmonium.podSpec" -}}
{{ include "harmonium.podBase" . }}
terminationGracePeriodSeconds: {{ include "harmonium.gracePeriod" . }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with concat (include "harmonium.tools" . | fromYamlArray) .Values.initContainers }}
initContainers:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.dra.enabled }}
resourceClaims:
  - name: gpus
    resourceClaimTemplateName: {{ include "harmonium.gpuClaimName" . | quote }}
{{- end }}
containers:
  - name: harmonium
    {{- include "harmonium.container" . | nindent 4 }}
  {{- with .Values.sidecars }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumes:
  {{- include "harmonium.volumes" . | nindent 2 }}
  {{- if .Values.tools.run }}
  - name: tools
    emptyDir:
      sizeLimit: 1Mi
  {{- end }}
{{- end -}}

{{/* Containers that start before the server and stop after it. They have its image, and none of its keys, settings and
volumes but that of the sockets. */}}
{{- define "harmonium.tools" -}}
{{- range $tool := .Values.tools.run }}
- name: tool-{{ $tool }}
  image: {{ $.Values.tools.image | default (include "harmonium.image" $) | quote }}
  imagePullPolicy: {{ $.Values.image.pullPolicy | quote }}
  restartPolicy: Always
  command: ["python", "-m", "parts.sandbox.host", {{ $tool | quote }}, "/run/harmonium"]
  startupProbe:
    exec:
      command: ["test", "-S", "/run/harmonium/{{ $tool }}.sock"]
    periodSeconds: 1
    failureThreshold: 60
  resources:
    {{- mustMergeOverwrite (dict "requests" (dict "cpu" "100m" "memory" "256Mi") "limits" (dict "memory" "10Gi")) (deepCopy $.Values.tools.resources) | toYaml | nindent 4 }}
  securityContext:
    {{- include "harmonium.containerSecurity" $ | nindent 4 }}
    seccompProfile:
      {{- toYaml ($.Values.tools.seccompProfile | default (dict "type" "Unconfined")) | nindent 6 }}
    {{- if semverCompare ">=1.30-0" $.Capabilities.KubeVersion.Version }}
    appArmorProfile:
      {{- toYaml ($.Values.tools.appArmorProfile | default (dict "type" "Unconfined")) | nindent 6 }}
    {{- end }}
  volumeMounts:
    - name: tools
      mountPath: /run/harmonium
{{- end }}
{{- end -}}

{{- define "harmonium.container" -}}
image: {{ include "harmonium.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy | quote }}
{{- $isWorker := include "harmonium.isDynamoWorker" . }}
{{- if $isWorker }}
args: ["dynamo-worker"]
ports:
  - name: system
    containerPort: 9090
  {{- if eq .Values.dynamo.role "prefill" }}
  - name: handover
    containerPort: 5560
  {{- end }}
{{- else }}
ports:
  - name: api
    containerPort: 8000
  {{- with .Values.environment.NIM_OLLAMA_PORT }}
  - name: ollama
    containerPort: {{ . | int }}
  {{- end }}
{{- end }}
env:
  {{- include "harmonium.environment" . | nindent 2 }}
  {{- with .Values.tools.run }}
  - name: NIM_BUILTIN_TOOLS
    value: {{ printf "%s@/run/harmonium" (join "@/run/harmonium," .) | quote }}
  {{- end }}
envFrom:
  {{- include "harmonium.environmentSources" . | nindent 2 }}
{{- if $isWorker }}
# None for life: an engine that dies is started again in the pod, and meanwhile the port is closed.
{{- range $kind := list "startup" "readiness" }}
{{ $kind }}Probe:
  httpGet:
    path: /health
    port: system
  {{- index $.Values.probes $kind | toYaml | nindent 2 }}
{{- end }}
{{- else }}
startupProbe:
  {{- include "harmonium.probe" (dict "root" . "path" "/v1/health/ready" "probe" .Values.probes.startup) | nindent 2 }}
livenessProbe:
  {{- include "harmonium.probe" (dict "root" . "path" "/v1/health/live" "probe" .Values.probes.liveness) | nindent 2 }}
readinessProbe:
  {{- include "harmonium.probe" (dict "root" . "path" "/v1/health/ready" "probe" .Values.probes.readiness) | nindent 2 }}
{{- end }}
lifecycle:
  {{- include "harmonium.preStop" . | nindent 2 }}
resources:
  {{- include "harmonium.resources" . | nindent 2 }}
securityContext:
  {{- include "harmonium.containerSecurity" . | nindent 2 }}
volumeMounts:
  {{- include "harmonium.volumeMounts" . | nindent 2 }}
  {{- if .Values.tools.run }}
  - name: tools
    mountPath: /run/harmonium
  {{- end }}
{{- end -}}
