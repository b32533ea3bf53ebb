{{/* What the schema cannot say in words that help: refused with the key to use. */}}
{{- define "holdfast.refusals" -}}
{{- $known := .Files.Get "files/refused.json" | fromJson -}}
{{- $settings := include "holdfast.settings" . | fromJson -}}
{{- $told := list -}}
{{- range $name, $instead := $known.values -}}
{{- if hasKey $.Values $name -}}
{{- $told = append $told (printf "%s: that is a value of the chart of NVIDIA's device plugin; %s" $name $instead) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if hasKey $known.variables .name -}}
{{- $told = append $told (printf "extraEnv: mounts and capabilities follow from the settings, and %s would change one past them; set config.%s" .name (get $known.variables .name)) -}}
{{- else if hasPrefix "HOLDFAST_" .name -}}
{{- $told = append $told (printf "extraEnv: there is no setting for the variable %s; settings stand below config" .name) -}}
{{- end -}}
{{- end -}}
{{- $own := include "holdfast.refused" . | fromJsonArray -}}
{{- range $own -}}{{- $told = append $told (printf "config.%s" .) -}}{{- end -}}
{{- if and .Values.config.map .Values.config.name -}}
{{- $told = append $told "config.map: config.name names another ConfigMap with the documents; leave one of them out" -}}
{{- end -}}
{{- if and .Values.config.map (not .Values.config.name) -}}
{{- range $name, $document := .Values.config.map -}}
{{- range include "holdfast.inDocument" (list $document $) | fromJsonArray -}}
{{- if not (has . $own) -}}{{- $told = append $told (printf "config.map.%s: %s" $name .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $documents := .Values.config.map -}}
{{- $strategies := $settings.named.fallbackStrategies -}}
{{- if $settings.named.default -}}
{{- if not (hasKey $documents $settings.named.default) -}}
{{- $told = append $told (printf "config.default: there is no document %s in config.map; there are %s" $settings.named.default (keys $documents | sortAlpha | join ", ")) -}}
{{- end -}}
{{- else if not (or (has "empty" $strategies) (and (has "named" $strategies) (hasKey $documents "default")) (and (has "single" $strategies) (eq (len $documents) 1))) -}}
{{- $told = append $told "config.default: a node without the label would have no document; name one, call one `default`, or add `empty` to config.fallbackStrategies" -}}
{{- end -}}
{{- end -}}
{{- if and (or .Values.config.default .Values.config.fallbackStrategies) (not (include "holdfast.documents" .)) -}}
{{- $told = append $told "config.default, config.fallbackStrategies: there are no documents; set config.map or config.name" -}}
{{- end -}}
{{- if has (dir $settings.tpu.envFile) (list "/" "/etc") -}}
{{- $told = append $told (printf "config.tpu.envFile: its folder is mounted, and the host's %s must not lie over the container's own; have the file in another" (dir $settings.tpu.envFile)) -}}
{{- end -}}
{{- $claimed := include "holdfast.classed" . | fromJsonArray -}}
{{- if and $settings.http.address (not .Values.hostNetwork) -}}
{{- $told = append $told "config.http.address: a pod's address is not known before it runs; leave it empty, or set hostNetwork" -}}
{{- end -}}
{{- if and $claimed (not .Values.dra.enabled) -}}
{{- $told = append $told (printf "config: the api of %s is dra, which needs rights and mounts; set dra.enabled: true" (join ", " $claimed)) -}}
{{- end -}}
{{- if and (or .Values.dra.enabled $settings.events.enabled (include "holdfast.followsLabel" .)) (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- $told = append $told "serviceAccount.name: with dra.enabled, config.events.enabled or named documents the account gets rights, and every pod of the namespace has the account default; name one, or set serviceAccount.create" -}}
{{- end -}}
{{- with $told -}}
{{- fail (join "\n" .) -}}
{{- end -}}
{{- end -}}

{{/* Why a daemon with these settings would not start, by the daemon's own rules between keys: a list in JSON. */}}
{{- define "holdfast.refused" -}}
{{- $known := .Files.Get "files/refused.json" | fromJson -}}
{{- $settings := include "holdfast.settings" . | fromJson -}}
{{- $told := list -}}
{{- if not (or $settings.tpu.enabled $settings.gpu.enabled $settings.pools) -}}
{{- $told = append $told "tpu.enabled: nothing is left to advertise; enable TPUs or GPUs, or add a pool" -}}
{{- end -}}
{{- if and (eq $settings.reclaim.leakedSandbox "restart") (ne $settings.reclaim.mode "terminate") -}}
{{- $told = append $told "reclaim.leakedSandbox: restart ends processes; it needs reclaim.mode: terminate" -}}
{{- end -}}
{{- $retry := $settings.reclaim.retry -}}
{{- if gt (include "holdfast.seconds" $retry.first | float64) (include "holdfast.seconds" $retry.last | float64) -}}
{{- $told = append $told "reclaim.retry.first: it is longer than reclaim.retry.last; lower it" -}}
{{- end -}}
{{- $question := $settings.kubelet.question -}}
{{- if gt (include "holdfast.seconds" $question.minInterval | float64) (include "holdfast.seconds" $question.idleInterval | float64) -}}
{{- $told = append $told "kubelet.question.minInterval: it is longer than question.idleInterval; lower it" -}}
{{- end -}}
{{- if gt (include "holdfast.seconds" $settings.gate.wait | float64) $known.longestWait -}}
{{- $told = append $told (printf "gate.wait: kubelet gives up after 30 s; use at most %vs" $known.longestWait) -}}
{{- end -}}
{{- if ge (include "holdfast.seconds" $settings.allocate.commitTimeout | float64) $known.longestAllocate -}}
{{- $told = append $told (printf "allocate.commitTimeout: kubelet admits no other pod meanwhile; use less than %vs" $known.longestAllocate) -}}
{{- end -}}
{{- $pluginDir := clean $settings.kubelet.pluginDir -}}
{{- if hasPrefix (printf "%s/" $pluginDir) (printf "%s/" (clean $settings.stateDir)) -}}
{{- $told = append $told "stateDir: kubelet may clean its plugin folder; choose a folder outside of it" -}}
{{- end -}}
{{- if gt (len (include "holdfast.path" (list $settings.stateDir $known.stateSocket))) (int $known.longestSocket) -}}
{{- $told = append $told "stateDir: the path is too long for a Unix socket in it; choose a shorter one" -}}
{{- end -}}
{{- if gt (add (len (include "holdfast.path" (list $pluginDir $settings.kubelet.socketPrefix))) $known.pluginSocket) (int64 $known.longestSocket) -}}
{{- $told = append $told "kubelet.socketPrefix: the paths of the sockets would be too long; choose a shorter one" -}}
{{- end -}}
{{- if and (not (kindIs "invalid" $settings.tpu.workerId)) $settings.tpu.workerHostnames -}}
{{- if ge (int $settings.tpu.workerId) (len $settings.tpu.workerHostnames) -}}
{{- $told = append $told "tpu.workerId: it is too high for tpu.workerHostnames" -}}
{{- end -}}
{{- end -}}
{{- if $settings.gpu.enabled -}}
{{- $others := list -}}
{{- if $settings.tpu.enabled -}}{{- $others = append $others (list "tpu" $settings.tpu.resourceName) -}}{{- end -}}
{{- range $place, $pool := $settings.pools -}}{{- $others = append $others (list (printf "pools[%d]" $place) $pool.resourceName) -}}{{- end -}}
{{- range $others -}}
{{- $name := index . 1 -}}
{{- if or (has $name (list "nvidia.com/gpu" "nvidia.com/gpu.shared")) (hasPrefix "nvidia.com/mig-" $name) -}}
{{- $told = append $told (printf "%s.resourceName: %s is a name of GPUs, which pods then could not tell from what else has it; choose another, or set gpu.enabled to false" (index . 0) $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $shared := dict -}}
{{- range dig "sharing" "timeSlicing" "resources" list $settings -}}
{{- if hasKey $shared .name -}}
{{- $told = append $told (printf "sharing.timeSlicing.resources: %s is there twice; remove one" .name) -}}
{{- end -}}
{{- $_ := set $shared .name true -}}
{{- if not (has (default "" .rename) (list "" (printf "%s.shared" .name))) -}}
{{- $told = append $told (printf "sharing.timeSlicing.resources: %s is not a name for replicas; use %s.shared" .rename .name) -}}
{{- end -}}
{{- end -}}
{{- if eq $settings.deviceListStrategy "cdi" -}}
{{- $names := list -}}
{{- if $settings.tpu.enabled -}}{{- $names = append $names $settings.tpu.resourceName -}}{{- end -}}
{{- range $settings.pools -}}{{- $names = append $names .resourceName -}}{{- end -}}
{{- range $settings.devices -}}{{- with .resource -}}{{- $names = append $names . -}}{{- end -}}{{- end -}}
{{- range $names -}}
{{- if not (regexMatch $known.cdiKind .) -}}
{{- $told = append $told (printf "deviceListStrategy: %s cannot be a CDI kind, because both parts of one begin with a letter; choose another name, or device-nodes" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $claimed := include "holdfast.claimed" . | fromJsonArray -}}
{{- $served := include "holdfast.served" . | fromJsonArray -}}
{{- $apis := dict -}}
{{- range $served -}}{{- if .on -}}{{- $_ := set $apis .api true -}}{{- end -}}{{- end -}}
{{- $ofRules := dict -}}
{{- range $settings.devices -}}
{{- if and .resource .api (not (hasKey $ofRules .resource)) -}}{{- $_ := set $ofRules .resource .api -}}{{- end -}}
{{- end -}}
{{- range $place, $rule := $settings.devices -}}
{{- if $rule.resource -}}
{{- $api := include "holdfast.hardwareApi" (list $served $rule.resource) | default (get $ofRules $rule.resource) -}}
{{- $given := default "" $rule.api -}}
{{- if and $given $api (ne $given $api) -}}
{{- $told = append $told (printf "devices[%d].api: %s is served by %s; give the same, or another name" $place $rule.resource $api) -}}
{{- else if and (not $given) (not $api) (gt (len $apis) 1) -}}
{{- $told = append $told (printf "devices[%d].api: some hardware is served by device-plugin and some by dra; say by which of them pods get %s" $place $rule.resource) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $claimed -}}
{{- range $known.draSockets -}}
{{- $path := include "holdfast.path" (list $settings.dra.kubeletRoot (printf . $settings.dra.driverName)) -}}
{{- if gt (len $path) (int $known.longestSocket) -}}
{{- $told = append $told (printf "dra.driverName: the path %s is too long for a socket; choose a shorter name" $path) -}}
{{- end -}}
{{- end -}}
{{- range $settings.pools -}}
{{- $name := .resourceName -}}
{{- $both := dict -}}
{{- range $served -}}
{{- if and .on (or (has $name .names) (hasPrefix .beginning $name)) -}}{{- $_ := set $both .api true -}}{{- end -}}
{{- end -}}
{{- if gt (len $both) 1 -}}
{{- $told = append $told (printf "pools: %s is served by both APIs; give its pools the same `api`" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $told | toJson -}}
{{- end -}}
