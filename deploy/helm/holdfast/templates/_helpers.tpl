{{- define "holdfast.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "holdfast.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "holdfast.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "holdfast.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "holdfast.selector" . }}
{{- end -}}

{{- define "holdfast.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "holdfast.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The name of what belongs to no namespace: unique among releases of the same name. */}}
{{- define "holdfast.clusterName" -}}
{{- printf "%s.%s" (include "holdfast.fullname" .) (include "holdfast.namespace" .) -}}
{{- end -}}

{{- define "holdfast.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The configuration file: what was given, where kubelet's socket and folders are, and where the node's
whole cgroup tree is mounted: /sys/fs/cgroup in a container shows only the container's own part.
*/}}
{{- define "holdfast.config" -}}
{{- $kubelet := trimSuffix "/" .Values.kubeletRoot -}}
{{- $socket := printf "%s/pod-resources/kubelet.sock" $kubelet -}}
{{- $ours := dict "host" (dict "cgroup" "/host/cgroup") "kubelet" (dict "podResourcesSocket" $socket) -}}
{{- if .Values.dra.enabled -}}
{{- $state := printf "/proc/1/root%s/dra_manager_state" $kubelet -}}
{{- $_ := set $ours "dra" (dict "kubeletRoot" $kubelet "claimState" $state) -}}
{{- end -}}
{{- $given := deepCopy (default dict .Values.config) -}}
{{- if include "holdfast.documents" . -}}
{{- $named := dict "folder" "/etc/holdfast-named" -}}
{{- with $given.default }}{{ $_ := set $named "default" . }}{{ end -}}
{{- if hasKey $given "fallbackStrategies" }}{{ $_ := set $named "fallbackStrategies" $given.fallbackStrategies }}{{ end -}}
{{- $_ := set $ours "named" $named -}}
{{- end -}}
{{- mustMergeOverwrite $ours (omit $given "map" "name" "default" "fallbackStrategies") | toYaml -}}
{{- end -}}

{{/* The name of the ConfigMap with the named documents, empty without any. */}}
{{- define "holdfast.documents" -}}
{{- if .Values.config.name -}}
{{- .Values.config.name -}}
{{- else if .Values.config.map -}}
{{- printf "%s-named" (include "holdfast.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* Whether a label of the node names its document, which takes a token and the right to read the node. */}}
{{- define "holdfast.followsLabel" -}}
{{- $settings := include "holdfast.settings" . | fromJson -}}
{{- if and (include "holdfast.documents" .) $settings.named.labels -}}true{{- end -}}
{{- end -}}

{{/* The same with every default of the daemon's: what the templates decide by. */}}
{{- define "holdfast.settings" -}}
{{- $defaults := .Files.Get "files/settings.json" | fromJson -}}
{{- mustMergeOverwrite $defaults (include "holdfast.config" . | fromYaml) | toJson -}}
{{- end -}}

{{/* Whether somebody outside the node can ask the daemons by HTTP: there is a port, and it is not bound to an address of the node alone. */}}
{{- define "holdfast.reachable" -}}
{{- $http := (include "holdfast.settings" . | fromJson).http -}}
{{- if and (int $http.port) (not (regexMatch "^(127\\.|::1$|localhost$)" $http.address)) -}}true{{- end -}}
{{- end -}}

{{/* The path of a file in a folder, with one slash between its parts, as the daemon has it. Takes both in a list. */}}
{{- define "holdfast.path" -}}
{{- regexReplaceAll "/(\\.?/)+" (join "/" .) "/" -}}
{{- end -}}

{{/* A duration in seconds, of a number or of text such as 1h30m: as the daemon, at least a millisecond and at most 100 years. */}}
{{- define "holdfast.seconds" -}}
{{- $text := toString . -}}
{{- $sum := 0.0 -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- $parts := regexFindAll "[0-9]+(\\.[0-9]+)?(ms|s|m|h)" $text -1 -}}
{{- if and (kindIs "string" .) $parts -}}
{{- range $parts -}}
{{- $unit := regexFind "[a-z]+" . -}}
{{- $sum = addf $sum (mulf (float64 (trimSuffix $unit .)) (get $units $unit)) -}}
{{- end -}}
{{- else -}}
{{- $sum = float64 . -}}
{{- end -}}
{{- $sum | maxf 0.001 | minf 3153600000.0 -}}
{{- end -}}

{{/*
What a document of config.map has, in our form or in that of NVIDIA's plugin, in JSON: GPUs divided by MIG (`mig`; `mixed`: by that
strategy) or given by CDI (`cdi`), functions on VFIO (`vfio`) that are reset (`resets`) or bound again (`rebinds`).
*/}}
{{- define "holdfast.needs" -}}
{{- $mig := false -}}{{- $mixed := false -}}{{- $cdi := false -}}
{{- $vfio := false -}}{{- $resets := false -}}{{- $rebinds := false -}}
{{- range .Values.config.map -}}
{{- $content := . -}}
{{- if kindIs "string" . -}}{{- $content = fromYaml . -}}{{- end -}}
{{- if not (kindIs "map" $content) -}}{{- $content = dict -}}{{- end -}}
{{- $flags := ternary $content.flags dict (kindIs "map" $content.flags) -}}
{{- range list $content.gpu $flags $flags.plugin -}}
{{- if kindIs "map" . -}}
{{- if has (toString .migStrategy) (list "single" "mixed") -}}{{- $mig = true -}}{{- end -}}
{{- if eq (toString .migStrategy) "mixed" -}}{{- $mixed = true -}}{{- end -}}
{{- if contains "cdi-" (toString .deviceListStrategy) -}}{{- $cdi = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (toString $content.deviceListStrategy) "cdi" -}}{{- $cdi = true -}}{{- end -}}
{{- if kindIs "map" $content.tpu -}}{{- if eq (toString $content.tpu.enabled) "true" -}}{{- $vfio = true -}}{{- end -}}{{- end -}}
{{- if $content.pools -}}{{- $vfio = true -}}{{- end -}}
{{- if kindIs "map" $content.reclaim -}}
{{- if eq (toString $content.reclaim.reset) "afterForcedRelease" -}}{{- $resets = true -}}{{- end -}}
{{- if eq (toString $content.reclaim.rebind) "true" -}}{{- $rebinds = true -}}{{- end -}}
{{- end -}}
{{- if contains "\"reset\":\"afterForcedRelease\"" (toJson $content.devices) -}}{{- $resets = true -}}{{- end -}}
{{- end -}}
{{- dict "mig" $mig "mixed" $mixed "cdi" $cdi "vfio" $vfio "resets" $resets "rebinds" $rebinds | toJson -}}
{{- end -}}

{{/*
What is wrong with a document, as a list in JSON. Of one that is text its keys, and of a file of NVIDIA's plugin only that it can be parsed; of a
mapping, whose form the schema has, the settings that it makes. Takes a list: the document, and the chart's root.
*/}}
{{- define "holdfast.inDocument" -}}
{{- $document := index . 0 -}}{{- $root := index . 1 -}}
{{- $content := $document -}}
{{- if kindIs "string" $document -}}{{- $content = fromYaml $document -}}{{- end -}}
{{- $told := list -}}
{{- if and (hasKey $content "Error") (eq (len $content) 1) -}}
{{- $told = append $told $content.Error -}}
{{- else if not (or (hasKey $content "version") (hasKey $content "flags")) -}}
{{- if kindIs "string" $document -}}
{{- $known := $root.Files.Get "files/refused.json" | fromJson -}}
{{- $defaults := $root.Files.Get "files/settings.json" | fromJson -}}
{{- $told = include "holdfast.unknown" (list $content $defaults "" $known.inDocuments) | fromJsonArray -}}
{{- else -}}
{{- $config := mustMergeOverwrite (omit $root.Values.config "map" "default" "fallbackStrategies" | deepCopy) $content -}}
{{- $told = include "holdfast.refused" (dict "Files" $root.Files "Values" (set (omit $root.Values "config") "config" $config)) | fromJsonArray -}}
{{- end -}}
{{- end -}}
{{- $told | toJson -}}
{{- end -}}

{{/* Which keys of a mapping are none of the settings, or not for a document: a list in JSON. Takes the mapping, the defaults beside it, their path, and what is not for a document. */}}
{{- define "holdfast.unknown" -}}
{{- $content := index . 0 -}}{{- $defaults := index . 1 -}}{{- $prefix := index . 2 -}}{{- $fixed := index . 3 -}}
{{- $told := list -}}
{{- range $key, $value := $content -}}
{{- $path := printf "%s%s" $prefix $key -}}
{{- if hasKey $fixed $path -}}
{{- $told = append $told (printf "%s is the same for every document; set config.%s" $path $path) -}}
{{- else if not (hasKey $defaults $key) -}}
{{- $told = append $told (printf "%s: there is no such key" $path) -}}
{{- else if kindIs "map" (get $defaults $key) -}}
{{- if kindIs "map" $value -}}
{{- $told = concat $told (include "holdfast.unknown" (list $value (get $defaults $key) (printf "%s." $path) $fixed) | fromJsonArray) -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $told = append $told (printf "%s: it is a section with keys of its own" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $told | toJson -}}
{{- end -}}

{{/* A variable of an admission policy: the node of the pod whose token it is, which the API server itself writes there. */}}
{{- define "holdfast.podNode" -}}
- name: podNode
  expression: >-
    has(request.userInfo.extra) && "authentication.kubernetes.io/node-name" in request.userInfo.extra
    ? request.userInfo.extra["authentication.kubernetes.io/node-name"][0] : ""
{{- end -}}

{{/* What each section of hardware serves, as the daemon's `Settings.served`, first what is enabled (`on`): a list in JSON. No name begins with a dash. */}}
{{- define "holdfast.served" -}}
{{- $settings := include "holdfast.settings" . | fromJson -}}
{{- $tpu := dict "names" (list $settings.tpu.resourceName) "beginning" "-" "api" $settings.tpu.api "on" $settings.tpu.enabled -}}
{{- $gpu := dict "names" (list "nvidia.com/gpu" "nvidia.com/gpu.shared") "beginning" "nvidia.com/mig-" "api" $settings.gpu.api "on" $settings.gpu.enabled -}}
{{- $on := list -}}{{- $off := list -}}
{{- range list $tpu $gpu -}}
{{- if .on -}}{{- $on = append $on . -}}{{- else -}}{{- $off = append $off . -}}{{- end -}}
{{- end -}}
{{- range $settings.pools -}}{{- $on = append $on (dict "names" (list .resourceName) "beginning" "-" "api" (default "device-plugin" .api) "on" true) -}}{{- end -}}
{{- concat $on $off | toJson -}}
{{- end -}}

{{/* By which API the daemon serves a resource, as `Settings.hardware_api`: empty where no section has it. Takes what is served, and the name. */}}
{{- define "holdfast.hardwareApi" -}}
{{- $name := index . 1 -}}
{{- $api := "" -}}
{{- range reverse (index . 0) -}}
{{- if or (has $name .names) (hasPrefix .beginning $name) -}}{{- $api = .api -}}{{- end -}}
{{- end -}}
{{- $api -}}
{{- end -}}

{{/* The names of the resources whose `api` is dra, as a list in JSON; a rule without one goes by that of all hardware. */}}
{{- define "holdfast.claimed" -}}
{{- $settings := include "holdfast.settings" . | fromJson -}}
{{- $served := include "holdfast.served" . | fromJsonArray -}}
{{- $sharing := dig "sharing" "timeSlicing" dict $settings -}}
{{- $renamed := false -}}
{{- range $sharing.resources -}}{{- if and (has .name (list "nvidia.com/gpu" "gpu")) (or $sharing.renameByDefault .rename) -}}{{- $renamed = true -}}{{- end -}}{{- end -}}
{{- $names := list -}}{{- $apis := dict -}}
{{- range $served -}}
{{- if .on -}}
{{- $_ := set $apis .api true -}}
{{- if eq .api "dra" -}}{{- $names = concat $names (ternary .names (list "nvidia.com/gpu") (or $renamed (eq .beginning "-"))) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $only := eq (keys $apis | join ",") "dra" -}}
{{- range $settings.devices -}}
{{- $same := and .resource (not .api) $only (not (include "holdfast.hardwareApi" (list $served .resource))) -}}
{{- if or (eq (default "" .api) "dra") $same -}}{{- $names = append $names .resource -}}{{- end -}}
{{- end -}}
{{- uniq $names | toJson -}}
{{- end -}}

{{/* The same of `config` and of each document of config.map, which may have another API. Of a document that is text the types are not known. */}}
{{- define "holdfast.classed" -}}
{{- $root := . -}}
{{- $settings := include "holdfast.settings" . | fromJson -}}
{{- $names := include "holdfast.claimed" . | fromJsonArray -}}
{{- range .Values.config.map -}}
{{- $content := . -}}
{{- if kindIs "string" . -}}{{- $content = fromYaml . -}}{{- end -}}
{{- $config := omit $root.Values.config "map" "default" "fallbackStrategies" | deepCopy -}}
{{- range $key, $default := pick $settings "tpu" "gpu" "pools" "devices" "sharing" -}}
{{- $given := get $content $key -}}
{{- if kindIs (kindOf $default) $given -}}{{- $config = mustMergeOverwrite $config (dict $key $given) -}}{{- end -}}
{{- end -}}
{{- $values := set (omit $root.Values "config") "config" $config -}}
{{- $names = concat $names (include "holdfast.claimed" (dict "Files" $root.Files "Values" $values) | fromJsonArray) -}}
{{- end -}}
{{- uniq $names | toJson -}}
{{- end -}}
