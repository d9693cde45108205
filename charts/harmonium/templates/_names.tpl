{{/* Every name, label and reference between objects is defined here, once. */}}

{{- define "harmonium.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.configMapName" -}}
{{- printf "%s-env" (include "harmonium.fullname" . | trunc 59 | trimSuffix "-") -}}
{{- end -}}

{{- define "harmonium.dashboardName" -}}
{{- printf "%s-dashboard" (include "harmonium.fullname" . | trunc 53 | trimSuffix "-") -}}
{{- end -}}

{{- define "harmonium.claimName" -}}
{{- if eq .Values.cache.type "existingClaim" -}}
{{- .Values.cache.existingClaim -}}
{{- else -}}
{{- printf "%s-cache" (include "harmonium.fullname" . | trunc 57 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "harmonium.fullname" .) -}}
{{- end -}}

{{- define "harmonium.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "harmonium.labels" -}}
{{ include "harmonium.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}
