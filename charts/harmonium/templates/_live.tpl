{{/* What the cluster has already, and what an API server would not let an upgrade change.
`lookup` finds nothing in `helm template`, in client-side dry runs and under GitOps controllers that render so: then
these checks pass, and the API server decides. */}}

{{- define "harmonium.liveChecks" -}}
{{- if has .Values.kubernetes (list "plain" "llm-d") -}}
{{- include "harmonium.liveClaimChecks" . -}}
{{- include "harmonium.liveWorkloadChecks" . -}}
{{- include "harmonium.livePortChecks" . -}}
{{- else if eq .Values.kubernetes "nim-operator" -}}
{{- include "harmonium.liveCacheChecks" . -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.workloadKind" -}}
{{- ternary "StatefulSet" "Deployment" (eq .Values.cache.type "perPod") -}}
{{- end -}}

{{- define "harmonium.liveWorkload" -}}
{{- lookup "apps/v1" (include "harmonium.workloadKind" .) .Release.Namespace (include "harmonium.fullname" .) | toJson -}}
{{- end -}}

{{/* The claim of the release as it is, or {}. */}}
{{- define "harmonium.liveClaim" -}}
{{- if eq .Values.cache.type "persistentVolumeClaim" -}}
{{- lookup "v1" "PersistentVolumeClaim" .Release.Namespace (include "harmonium.claimName" .) | toJson -}}
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{/* The model that the pods serve now; empty where none are there. */}}
{{- define "harmonium.liveModel" -}}
{{- $live := include "harmonium.liveWorkload" . | fromJson -}}
{{- range (dig "spec" "template" "spec" "containers" list $live) -}}
{{- if eq .name "harmonium" -}}
{{- range .env -}}{{- if eq .name "NIM_MODEL_NAME" -}}{{- .value -}}{{- end -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Takes (list . "size or empty"): the size to render. Without cache.size, what is there stays if it holds the model. */}}
{{- define "harmonium.keptSize" -}}
{{- $root := index . 0 -}}
{{- $live := index . 1 -}}
{{- $wanted := include "harmonium.cacheSize" $root -}}
{{- if not $live -}}
{{- $wanted -}}
{{- else if and (not $root.Values.cache.size) (include "harmonium.holdsModel" (list $root $live)) -}}
{{- $live -}}
{{- else -}}
{{- $wanted -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.holdsModel" -}}
{{- $root := index . 0 -}}
{{- $least := include "harmonium.leastCache" $root -}}
{{- if or (not $root.Values.checkSizes) (ge (include "harmonium.bytes" (index . 1) | int64) (include "harmonium.bytes" $least | int64)) -}}true{{- end -}}
{{- end -}}

{{- define "harmonium.claimSize" -}}
{{- $live := dig "spec" "resources" "requests" "storage" "" (include "harmonium.liveClaim" . | fromJson) -}}
{{- $size := include "harmonium.keptSize" (list . $live) -}}
{{- if and $live (lt (include "harmonium.bytes" $size | int64) (include "harmonium.bytes" $live | int64)) -}}
{{- $live -}}
{{- else -}}
{{- $size -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.liveClaimChecks" -}}
{{- $claim := include "harmonium.liveClaim" . | fromJson -}}
{{- if $claim -}}
{{- $name := $claim.metadata.name -}}
{{- $space := .Release.Namespace -}}
{{- $remedy := printf "the claim %s cannot be changed to it; make a claim of your own and mount it with cache.type: existingClaim, or delete this one and download the model again: kubectl --namespace %s delete pvc %s --wait=false, then kubectl --namespace %s delete deployment %s, then upgrade" $name $space $name $space (include "harmonium.fullname" .) -}}
{{- if ne .Values.cache.accessMode (first $claim.spec.accessModes) -}}
{{- fail (printf "cache.accessMode: it is %s, and %s" (first $claim.spec.accessModes) $remedy) -}}
{{- end -}}
{{- $class := dig "spec" "storageClassName" "" $claim -}}
{{- if and .Values.cache.storageClassName (ne .Values.cache.storageClassName $class) -}}
{{- fail (printf "cache.storageClassName: it is %q, and %s" $class $remedy) -}}
{{- end -}}
{{- if not .Values.cache.storageClassName -}}
{{- range (dig "metadata" "managedFields" list $claim) -}}
{{- if and (contains "helm" (lower .manager)) (hasKey (dig "fieldsV1" "f:spec" dict .) "f:storageClassName") -}}
{{- fail (printf "cache.storageClassName: it was set to %s, and a claim cannot lose it; leave it set" $class) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "harmonium.growthChecks" (list . $claim) -}}
{{- end -}}
{{- end -}}

{{/* Takes (list . claim). `helm rollback` sends what an older revision rendered, which is less than a claim that grew: so it
grows in an upgrade of its own, and what comes after can be undone. */}}
{{- define "harmonium.growthChecks" -}}
{{- $root := index . 0 -}}
{{- $claim := index . 1 -}}
{{- $name := $claim.metadata.name -}}
{{- $live := $claim.spec.resources.requests.storage -}}
{{- $wanted := include "harmonium.claimSize" $root -}}
{{- $model := include "harmonium.model" $root | default "the model" -}}
{{- if gt (include "harmonium.bytes" $wanted | int64) (include "harmonium.bytes" $live | int64) -}}
{{- $before := include "harmonium.liveModel" $root -}}
{{- if or (not $root.Values.cache.size) (and $before (ne $before $model)) -}}
{{- fail (printf "cache.size: the claim %s has %s, and %s needs %s. Grow the claim in an upgrade of its own, with the model as it is: --set cache.size=%s; then change the model, with the same cache.size. Only so can `helm rollback` undo the change of the model" $name $live $model $wanted $wanted) -}}
{{- end -}}
{{- if ne (dig "status" "phase" "" $claim) "Bound" -}}
{{- fail (printf "cache.size: the claim %s has %s and is not bound to a volume yet, and such a claim cannot be changed; wait until a pod uses it, or delete it: kubectl --namespace %s delete pvc %s" $name $live $root.Release.Namespace $name) -}}
{{- end -}}
{{- $class := dig "spec" "storageClassName" "" $claim -}}
{{- $found := dict -}}
{{- if and $class $root.Values.checkSizes -}}{{- $found = lookup "storage.k8s.io/v1" "StorageClass" "" $class -}}{{- end -}}
{{- if and $found (not (dig "allowVolumeExpansion" false $found)) -}}
{{- fail (printf "cache.size: the claim %s has %s, and volumes of its storage class %s cannot grow; make a claim of %s yourself and mount it with cache.type: existingClaim, or leave cache.size at %s" $name $live $class $wanted $live) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.liveWorkloadChecks" -}}
{{- $live := include "harmonium.liveWorkload" . | fromJson -}}
{{- if $live -}}
{{- $kind := include "harmonium.workloadKind" . | lower -}}
{{- $name := include "harmonium.fullname" . -}}
{{- $selector := $live.spec.selector.matchLabels -}}
{{- if ne (toJson $selector) (include "harmonium.selectorLabels" . | fromYaml | toJson) -}}
{{- fail (printf "nameOverride: the %s %s selects its pods by the name %s, which cannot be changed; leave nameOverride, change fullnameOverride too, or delete it first (its pods stop): kubectl --namespace %s delete %s %s" $kind $name (get $selector "app.kubernetes.io/name") .Release.Namespace $kind $name) -}}
{{- end -}}
{{- if eq .Values.cache.type "perPod" -}}{{- include "harmonium.livePodClaimChecks" (list . $live) -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The number of pods that an autoscaler finds, or empty where nothing need be said. A number that Helm set and then leaves
out becomes 1. Server-side apply knows whose it is: it is Helm's until the autoscaler first changes it. Otherwise Helm compares
with the manifest before, which this cannot see, so the number is always said. */}}
{{- define "harmonium.liveReplicas" -}}
{{- $live := include "harmonium.liveWorkload" . | fromJson -}}
{{- $isApplied := false -}}
{{- $isOurs := false -}}
{{- range (dig "metadata" "managedFields" list $live) -}}
{{- if and (contains "helm" (lower .manager)) (eq .operation "Apply") -}}
{{- $isApplied = true -}}
{{- $isOurs = or $isOurs (hasKey (dig "fieldsV1" "f:spec" dict .) "f:replicas") -}}
{{- end -}}
{{- end -}}
{{- if not $live -}}
{{- $other := ternary "Deployment" "StatefulSet" (eq .Values.cache.type "perPod") -}}
{{- dig "spec" "replicas" "" (lookup "apps/v1" $other .Release.Namespace (include "harmonium.fullname" .)) -}}
{{- else if or $isOurs (not $isApplied) -}}
{{- dig "spec" "replicas" "" $live -}}
{{- end -}}
{{- end -}}

{{/* The size in the claim template of a StatefulSet that is there, or empty. */}}
{{- define "harmonium.livePodSize" -}}
{{- range (dig "spec" "volumeClaimTemplates" list (include "harmonium.liveWorkload" . | fromJson)) -}}
{{- .spec.resources.requests.storage -}}
{{- end -}}
{{- end -}}

{{/* Takes (list . StatefulSet). */}}
{{- define "harmonium.livePodClaimChecks" -}}
{{- $root := index . 0 -}}
{{- $live := index . 1 -}}
{{- $name := $live.metadata.name -}}
{{- $space := $root.Release.Namespace -}}
{{- $old := (first $live.spec.volumeClaimTemplates).spec -}}
{{- $size := include "harmonium.keptSize" (list $root $old.resources.requests.storage) -}}
{{- $remedy := printf "the claim template of the StatefulSet %s cannot be changed. Delete the StatefulSet without its pods, which continue to serve, then upgrade: kubectl --namespace %s delete statefulset %s --cascade=orphan" $name $space $name -}}
{{- $grow := printf "New pods' claims are made as you say; claims that are there must grow first, one by one: kubectl --namespace %s patch pvc cache-%s-0 --patch '{\"spec\": {\"resources\": {\"requests\": {\"storage\": %q}}}}'" $space $name $size -}}
{{- if ne (include "harmonium.bytes" $size | int64) (include "harmonium.bytes" $old.resources.requests.storage | int64) -}}
{{- fail (printf "cache.size: it is %s, %s is wanted, and %s. %s. Then also set cache.size=%s" $old.resources.requests.storage $size $remedy $grow $size) -}}
{{- end -}}
{{- if ne (toString $root.Values.cache.storageClassName) (dig "storageClassName" "" $old) -}}
{{- fail (printf "cache.storageClassName: it is %q, and %s. Claims that are there keep their class: delete each with its pod, and the model is downloaded again" (dig "storageClassName" "" $old) $remedy) -}}
{{- end -}}
{{- if ne $root.Values.cache.accessMode (first $old.accessModes) -}}
{{- fail (printf "cache.accessMode: it is %s, and %s. Claims that are there keep their mode: delete each with its pod, and the model is downloaded again" (first $old.accessModes) $remedy) -}}
{{- end -}}
{{- end -}}

{{/* Helm makes the Service of a new name before it deletes the old one, which still has the port. */}}
{{- define "harmonium.livePortChecks" -}}
{{- if .Values.service.nodePort -}}
{{- $root := . -}}
{{- range (lookup "v1" "Service" .Release.Namespace "").items -}}
{{- $service := . -}}
{{- range .spec.ports -}}
{{- if and (eq (dig "nodePort" 0 . | int) (int $root.Values.service.nodePort)) (ne $service.metadata.name (include "harmonium.fullname" $root)) -}}
{{- fail (printf "service.nodePort: %v belongs to the Service %s; choose another, or, where that is this release's Service under its old name, delete it first: kubectl --namespace %s delete service %s" $root.Values.service.nodePort $service.metadata.name $root.Release.Namespace $service.metadata.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "harmonium.liveCache" -}}
{{- lookup "apps.nvidia.com/v1alpha1" "NIMCache" .Release.Namespace (include "harmonium.fullname" .) | toJson -}}
{{- end -}}

{{/* The image that downloads: a NIMCache that is there keeps its own, as the operator allows no other. */}}
{{- define "harmonium.modelPuller" -}}
{{- $live := dig "spec" "source" "ngc" "modelPuller" "" (include "harmonium.liveCache" . | fromJson) -}}
{{- $live | default .Values.nimOperator.modelPuller | default (include "harmonium.image" .) -}}
{{- end -}}

{{- define "harmonium.liveCacheChecks" -}}
{{- $live := dig "spec" "source" "ngc" "modelPuller" "" (include "harmonium.liveCache" . | fromJson) -}}
{{- $own := .Values.nimOperator.modelPuller -}}
{{- if and $live $own (ne $live $own) -}}
{{- $name := include "harmonium.fullname" . -}}
{{- fail (printf "nimOperator.modelPuller: it is %s, and the NIM Operator lets no NIMCache change it; leave it out, or delete the NIMCache, and the model is downloaded again: kubectl --namespace %s delete nimcache %s" $live .Release.Namespace $name) -}}
{{- end -}}
{{- end -}}
