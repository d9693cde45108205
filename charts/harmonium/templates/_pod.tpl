{{/* The parts of the pod that depend on more than one value. */}}

{{- define "harmonium.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if .Values.gpus -}}
{{- $limits := merge (dict "nvidia.com/gpu" (.Values.gpus | int)) ($resources.limits | default dict) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* Each pod would make a key of its own, so that no client could use them all. */}}
{{- define "harmonium.replicas" -}}
{{- $isKnown := or .Values.auth.open .Values.auth.keysSecret .Values.environmentSecret -}}
{{- $hasTokens := regexMatch "NIM_JWT_" (toJson .Values.environment) -}}
{{- if and (gt (int .Values.replicaCount) 1) (not $isKnown) (not $hasTokens) -}}
{{- fail "several replicas need common keys: set auth.keysSecret, environmentSecret or auth.open" -}}
{{- end -}}
{{- .Values.replicaCount -}}
{{- end -}}

{{/* A volume that one node holds cannot be taken over while the old pod still has it. */}}
{{- define "harmonium.strategy" -}}
{{- if and (eq .Values.cache.type "persistentVolumeClaim") (hasPrefix "ReadWriteOnce" .Values.cache.accessMode) -}}
type: Recreate
{{- else -}}
type: RollingUpdate
rollingUpdate:
  maxSurge: 1
  maxUnavailable: 0
{{- end -}}
{{- end -}}

{{- define "harmonium.cacheVolume" -}}
{{- if eq .Values.cache.type "emptyDir" -}}
emptyDir:
  sizeLimit: {{ .Values.cache.size }}
{{- else -}}
persistentVolumeClaim:
  claimName: {{ include "harmonium.claimName" . }}
{{- end -}}
{{- end -}}

{{/* Takes (dict "path" path "probe" values). */}}
{{- define "harmonium.probe" -}}
httpGet:
  path: {{ .path }}
  port: api
{{ toYaml .probe }}
{{- end -}}
