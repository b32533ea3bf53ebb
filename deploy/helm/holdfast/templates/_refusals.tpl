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
{{- if and .Values.config.map .Values.config.name -}}
{{- $told = append $told "config.map: config.name names another ConfigMap with the documents; leave one of them out" -}}
{{- end -}}
{{- if and (or .Values.config.default .Values.config.fallbackStrategies) (not (include "holdfast.documents" .)) -}}
{{- $told = append $told "config.default, config.fallbackStrategies: there are no documents; set config.map or config.name" -}}
{{- end -}}
{{- if not (or $settings.tpu.enabled $settings.gpu.enabled $settings.pools) -}}
{{- $told = append $told "config.tpu.enabled: nothing is left to advertise; enable TPUs or GPUs, or name a pool in config.pools" -}}
{{- end -}}
{{- if and (eq $settings.reclaim.leakedSandbox "restart") (ne $settings.reclaim.mode "terminate") -}}
{{- $told = append $told "config.reclaim.leakedSandbox: restart ends processes; it needs config.reclaim.mode: terminate" -}}
{{- end -}}
{{- if and $settings.http.address (not .Values.hostNetwork) -}}
{{- $told = append $told "config.http.address: a pod's address is not known before it runs; leave it empty, or set hostNetwork" -}}
{{- end -}}
{{- $claimed := include "holdfast.claimed" . | fromJsonArray -}}
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
