{{/* What a model needs. Sizes: docs/weights.md; memory is chosen generously and was not measured in a pod. */}}

{{- define "harmonium.models" -}}
nano: {cache: 20Gi, leastCache: 1Gi, cpu: "1", memory: 2Gi, limit: 4Gi, leastMemory: 1Gi}
gpt-oss-20b: {cache: 40Gi, leastCache: 26Gi, cpu: "4", memory: 32Gi, limit: 48Gi, leastMemory: 16Gi}
gpt-oss-120b: {cache: 160Gi, leastCache: 122Gi, cpu: "8", memory: 96Gi, limit: 128Gi, leastMemory: 72Gi}
{{- end -}}

{{/* The catalogue's model, or nothing where weights of the user's are served. */}}
{{- define "harmonium.model" -}}
{{- $ownWeights := or .Values.weights.volume .Values.environment.NIM_MODEL_PATH -}}
{{- if .Values.model -}}
{{- .Values.model -}}
{{- else if $ownWeights -}}
{{- else if include "harmonium.usesGpus" . -}}
{{- fail "model: name the model to serve on GPUs: gpt-oss-20b or gpt-oss-120b" -}}
{{- else -}}
nano
{{- end -}}
{{- end -}}

{{/* The name that requests have. */}}
{{- define "harmonium.servedName" -}}
{{- $given := .Values.environment.NIM_SERVED_MODEL_NAME | default "" | splitList "," | first | trim -}}
{{- $name := $given | default (include "harmonium.model" .) -}}
{{- required "environment.NIM_SERVED_MODEL_NAME: kvEvents and weights of your own need the model's name" $name -}}
{{- end -}}

{{/* The model that the pod holds. */}}
{{- define "harmonium.heldModel" -}}
{{- ternary "nano" (include "harmonium.model" .) (eq .Values.dynamo.role "front") -}}
{{- end -}}

{{- define "harmonium.usesGpus" -}}
{{- if or .Values.gpus .Values.dra.enabled -}}true{{- end -}}
{{- end -}}

{{- define "harmonium.bytes" -}}
{{- $units := dict "m" 0.001 "k" 1e3 "Ki" 1024.0 "M" 1e6 "Mi" 1048576.0 "G" 1e9 "Gi" 1073741824.0 "T" 1e12 "Ti" 1099511627776.0 -}}
{{- $text := toString . -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- $scale := get $units $unit | default 1.0 -}}
{{- mulf (trimSuffix $unit $text | float64) $scale | int64 -}}
{{- end -}}

{{/* CPUs in thousandths, of a quantity. */}}
{{- define "harmonium.milli" -}}
{{- $text := toString . -}}
{{- ternary (trimSuffix "m" $text | int64) (mulf (float64 $text) 1000.0 | int64) (hasSuffix "m" $text) -}}
{{- end -}}

{{/* What the model's weights and their packed copy take; 0 where the weights lie elsewhere. */}}
{{- define "harmonium.leastCache" -}}
{{- $model := include "harmonium.heldModel" . -}}
{{- $needs := index (include "harmonium.models" . | fromYaml) ($model | default "nano") -}}
{{- ternary $needs.leastCache "0" (and (ne $model "") (not .Values.weights.volume)) -}}
{{- end -}}

{{- define "harmonium.cacheSize" -}}
{{- $model := include "harmonium.heldModel" . -}}
{{- $needs := index (include "harmonium.models" . | fromYaml) ($model | default "nano") -}}
{{- $size := .Values.cache.size | default $needs.cache -}}
{{- $isSized := ne .Values.cache.type "existingClaim" -}}
{{- $least := include "harmonium.leastCache" . -}}
{{- if and .Values.checkSizes $isSized (lt (include "harmonium.bytes" $size | int64) (include "harmonium.bytes" $least | int64)) -}}
{{- fail (printf "cache.size: %s cannot hold %s, which needs %s for its weights and their packed copy; checkSizes: false renders it nevertheless" $size $model $least) -}}
{{- end -}}
{{- $size -}}
{{- end -}}

{{- define "harmonium.resources" -}}
{{- $model := include "harmonium.heldModel" . -}}
{{- $needs := index (include "harmonium.models" . | fromYaml) ($model | default "nano") -}}
{{- $limits := deepCopy (.Values.resources.limits | default dict) -}}
{{- $requests := deepCopy (.Values.resources.requests | default dict) -}}
{{- if or $model (not (include "harmonium.usesGpus" .)) -}}
{{- $limits = merge $limits (dict "memory" $needs.limit) -}}
{{- $limit := include "harmonium.bytes" $limits.memory | int64 -}}
{{- $memory := ternary $needs.memory (toString $limits.memory) (le (include "harmonium.bytes" $needs.memory | int64) $limit) -}}
{{- $cpu := $needs.cpu -}}
{{- if and $limits.cpu (gt (include "harmonium.bytes" (printf "%sk" $cpu) | int64) (include "harmonium.milli" $limits.cpu | int64)) -}}
{{- $cpu = toString $limits.cpu -}}
{{- end -}}
{{- $requests = merge $requests (dict "cpu" $cpu "memory" $memory) -}}
{{- range $of, $unit := dict "cpu" "harmonium.milli" "memory" "harmonium.bytes" -}}
{{- if and (hasKey $limits $of) (gt (include $unit (get $requests $of) | int64) (include $unit (get $limits $of) | int64)) -}}
{{- if hasKey ($.Values.resources.limits | default dict) $of -}}
{{- fail (printf "resources.requests.%s: %v is above the limit of %v" $of (get $requests $of) (get $limits $of)) -}}
{{- end -}}
{{- $_ := set $limits $of (get $requests $of) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.checkSizes (lt $limit (include "harmonium.bytes" $needs.leastMemory | int64)) -}}
{{- fail (printf "resources.limits.memory: %s cannot hold %s, which needs %s; checkSizes: false renders it nevertheless" $limits.memory $model $needs.leastMemory) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.gpus (not .Values.dra.enabled) -}}
{{- $_ := set $limits .Values.gpuResource (.Values.gpus | int) -}}
{{- end -}}
{{- $resources := dict -}}
{{- with $requests }}{{- $_ := set $resources "requests" . -}}{{- end -}}
{{- with $limits }}{{- $_ := set $resources "limits" . -}}{{- end -}}
{{- if .Values.dra.enabled -}}
{{- $_ := set $resources "claims" (list (dict "name" "gpus")) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
