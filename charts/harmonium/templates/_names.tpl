{{/* Every name, label and reference between objects is defined here, once. */}}

{{- define "harmonium.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* A Service's name has no dots and starts with a letter; a release's may have dots and digits alone. */}}
{{- define "harmonium.fullname" -}}
{{- $name := include "harmonium.name" . -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if regexMatch "^[0-9]" $release -}}
{{- printf "%s-%s" $name $release | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name $release -}}
{{- $release | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" $release $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Takes (list . "suffix"): the full name with a suffix, within the 63 characters of a label. */}}
{{- define "harmonium.suffixed" -}}
{{- $suffix := index . 1 -}}
{{- $room := int (sub 62 (len $suffix)) -}}
{{- printf "%s-%s" (include "harmonium.fullname" (index . 0) | trunc $room | trimSuffix "-") $suffix -}}
{{- end -}}

{{- define "harmonium.configMapName" -}}
{{- include "harmonium.suffixed" (list . "env") -}}
{{- end -}}

{{- define "harmonium.claimName" -}}
{{- if eq .Values.cache.type "existingClaim" -}}
{{- .Values.cache.existingClaim -}}
{{- else -}}
{{- include "harmonium.suffixed" (list . "cache") -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.gpuClaimSpec" -}}
spec:
  devices:
    requests:
      - name: gpus
        exactly:
          deviceClassName: {{ .Values.dra.deviceClassName | quote }}
          count: {{ .Values.gpus }}
          {{- with .Values.dra.selector }}
          selectors:
            - cel:
                expression: {{ . | quote }}
          {{- end }}
{{- end -}}

{{/* A ResourceClaimTemplate cannot be changed: another one has another name. */}}
{{- define "harmonium.gpuClaimName" -}}
{{- include "harmonium.suffixed" (list . (printf "gpus-%s" (include "harmonium.gpuClaimSpec" . | sha256sum | trunc 8))) -}}
{{- end -}}

{{- define "harmonium.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "harmonium.fullname" .) -}}
{{- end -}}

{{- define "harmonium.imageRepository" -}}
{{- $repository := required "image.repository: name the registry and image you pushed, e.g. registry.example.com/harmonium; this project publishes no image" .Values.image.repository -}}
{{- with .Values.global.imageRegistry -}}{{- . | trimSuffix "/" -}}/{{- end -}}
{{- $repository -}}
{{- end -}}

{{- define "harmonium.image" -}}
{{- $repository := include "harmonium.imageRepository" . -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.selectorLabels" -}}
app.kubernetes.io/name: {{ include "harmonium.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* What fronts and workers of one deployment have in common. */}}
{{- define "harmonium.dynamoLabel" -}}
harmonium/dynamo: {{ .Values.dynamo.endpoint | quote }}
{{- end -}}

{{/* Whether the pods are Dynamo's workers, of whatever role. */}}
{{- define "harmonium.isDynamoWorker" -}}
{{- if has .Values.dynamo.role (list "worker" "prefill" "decode") -}}true{{- end -}}
{{- end -}}

{{/* Whether they hand K/V over to each other. */}}
{{- define "harmonium.handsOver" -}}
{{- if has .Values.dynamo.role (list "prefill" "decode") -}}true{{- end -}}
{{- end -}}

{{/* Takes (list . labels): the chart's labels, the common ones, and these, which take precedence over the common ones. */}}
{{- define "harmonium.labels" -}}
{{- $root := index . 0 -}}
{{ include "harmonium.selectorLabels" $root }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | quote }}
{{- with mustMergeOverwrite (deepCopy $root.Values.commonLabels) (deepCopy (index . 1)) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Takes (list . "name" annotations labels): the metadata of an object; annotations and labels may be empty. */}}
{{- define "harmonium.metadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 | quote }}
labels:
  {{- $labels := dict }}
  {{- if gt (len .) 3 }}{{- $labels = index . 3 }}{{- end }}
  {{- include "harmonium.labels" (list $root $labels) | nindent 2 }}
{{- $annotations := deepCopy $root.Values.commonAnnotations -}}
{{- if gt (len .) 2 -}}
{{- $annotations = mustMergeOverwrite $annotations (index . 2) -}}
{{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
