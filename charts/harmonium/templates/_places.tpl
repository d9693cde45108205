{{/* Which place holds what a pod writes; docs/guides/kubernetes.md has the same table. */}}

{{- define "harmonium.cachePlace" -}}
{{- $type := .Values.cache.type -}}
{{- if eq $type "emptyDir" -}}
each pod's own emptyDir, lost with the pod
{{- else if eq $type "perPod" -}}
each pod's own claim, cache-{{ include "harmonium.fullname" . }}-0 and so on
{{- else -}}
the claim {{ include "harmonium.claimName" . }}{{ if include "harmonium.sharesClaim" . }}, shared by all pods{{ end }}
{{- end -}}
{{- end -}}

{{- define "harmonium.responsePlace" -}}
{{- if include "harmonium.hasVariable" (list . "NIM_REDIS_URL") -}}
Redis, shared by all pods
{{- else if include "harmonium.hasVariable" (list . "NIM_RESPONSES_PATH") -}}
the file of NIM_RESPONSES_PATH
{{- else if include "harmonium.responsesAreInPod" . -}}
each pod's own emptyDir (2Gi), lost with the pod; NIM_REDIS_URL in environmentFrom shares and keeps them
{{- else if eq .Values.cache.type "emptyDir" -}}
{{ include "harmonium.cachePlace" . }}
{{- else -}}
{{ include "harmonium.cachePlace" . }}; on NFS and other network volumes each pod's /tmp, lost with the pod:
                        there set responses.type: pod, which has room for them, or NIM_REDIS_URL in environmentFrom
{{- end -}}
{{- end -}}

{{- define "harmonium.places" -}}
{{- if ne .Values.dynamo.role "front" }}
  weights               {{ ternary "weights.volume, read-only" (include "harmonium.cachePlace" .) (not (empty .Values.weights.volume)) }}
  packed weights,
  kernels, vocabulary   {{ include "harmonium.cachePlace" . }}
  locks                 beside what they guard; pods of several nodes take turns by leases there
{{- end }}
{{- if not (include "harmonium.isDynamoWorker" .) }}
  stored responses      {{ include "harmonium.responsePlace" . }}
{{- end }}
{{- if not (or .Values.auth.open (include "harmonium.hasCommonKeys" .) (include "harmonium.isDynamoWorker" .)) }}
  first key             {{ ternary "each pod's emptyDir, lost with the pod" "the claim, or, on network volumes, /tmp of the pod" (eq .Values.cache.type "emptyDir") }}
{{- end }}
  crash records         /tmp of the pod, lost with the pod
{{- if eq .Values.cache.type "persistentVolumeClaim" }}
{{- $live := dig "spec" "resources" "requests" "storage" "" (include "harmonium.liveClaim" . | fromJson) }}
{{- if and $live .Values.cache.size (gt (include "harmonium.bytes" $live | int64) (include "harmonium.bytes" .Values.cache.size | int64)) }}

The claim {{ include "harmonium.claimName" . }} stays at {{ $live }}: a claim cannot shrink.
{{- end }}
{{- if and $live (lt (include "harmonium.bytes" $live | int64) (include "harmonium.bytes" (include "harmonium.claimSize" .) | int64)) }}

The claim {{ include "harmonium.claimName" . }} grows from {{ $live }} to {{ include "harmonium.claimSize" . }}. To undo an upgrade from before that, use `helm upgrade`
with its values; the API server refuses `helm rollback`, which would ask for the smaller size.
{{- end }}
{{- end }}
{{- end -}}

{{/* What the other end of a feature has to allow. */}}
{{- define "harmonium.opened" -}}
{{- $values := .Values -}}
{{- $settings := toJson $values.environment -}}
{{- if and $values.networkPolicy.enabled (not $values.networkPolicy.egress) -}}
{{- $needs := list -}}
{{- if not (or $values.weights.volume (eq (include "harmonium.heldModel" .) "nano")) -}}{{- $needs = append $needs "the download of the model" -}}{{- end -}}
{{- if contains "OTEL_" $settings -}}{{- $needs = append $needs "the OpenTelemetry collector" -}}{{- end -}}
{{- if contains "NIM_JWT_" $settings -}}{{- $needs = append $needs "the keys of NIM_JWT_*" -}}{{- end -}}
{{- if include "harmonium.hasVariable" (list . "NIM_REDIS_URL") -}}{{- $needs = append $needs "Redis" -}}{{- end -}}
{{- with $needs }}

The NetworkPolicy lets pods call DNS only. Open these in networkPolicy.egress: {{ join ", " . }}.
{{- end -}}
{{- end -}}
{{- if and $values.httpRoute.enabled (ne $values.tls.mode "disabled") }}

The pods speak TLS: the Gateway needs a BackendTLSPolicy for the Service{{ if eq $values.tls.mode "mtls" }}, and a client certificate{{ end }}.
{{- end -}}
{{- if and $values.ingress.enabled (eq $values.tls.mode "mtls") (not (hasKey $values.ingress.annotations "nginx.ingress.kubernetes.io/proxy-ssl-secret")) }}

The pods ask for a client certificate: name the Ingress controller's in ingress.annotations, for ingress-nginx
nginx.ingress.kubernetes.io/proxy-ssl-secret.
{{- end -}}
{{- end -}}
