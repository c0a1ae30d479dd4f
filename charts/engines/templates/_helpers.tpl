{{- define "engines.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The labels that select one pool's Pods. Arguments: root, name. */}}
{{- define "engines.selector" -}}
app.kubernetes.io/name: {{ .root.Values.nameOverride | default .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: engine
tidegate/pool: {{ .name }}
{{- end -}}

{{- define "engines.labels" -}}
{{ include "engines.selector" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: tidegate
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "engines.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
privileged: false
capabilities: {drop: [ALL]}
{{- end -}}

{{/* A scalar of the values as text: a number without an exponent. */}}
{{- define "engines.text" -}}
{{- if kindIs "string" . -}}{{ . }}{{- else -}}{{ toRawJson . }}{{- end -}}
{{- end -}}

{{/*
Everything about one pool, as JSON: the launch configuration with the pool's parameters and flags filled in. The rules are those of
backends/launch/resolve.py; tests/charts compares the two. Arguments: root, name, pool.
*/}}
{{- define "engines.pool" -}}
{{- $root := .root -}}
{{- $name := .name -}}
{{- $pool := mergeOverwrite (deepCopy $root.Values.defaults) (deepCopy .pool) -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]{0,20}[a-z0-9])?$" $name) -}}{{- fail (printf "pools.%s: a pool's name has at most 22 small letters, digits and inner '-', and begins with a letter" $name) -}}{{- end -}}
{{- if not $pool.launch -}}{{- fail (printf "pools.%s.launch: is missing; name a launch configuration of `tidegate engine list`" $name) -}}{{- end -}}
{{- $file := $root.Files.Get (printf "files/launch/%s.json" $pool.launch) -}}
{{- if not $file -}}
{{- $there := list -}}
{{- range $path, $_ := $root.Files.Glob "files/launch/*.json" -}}{{- $there = append $there (base $path | trimSuffix ".json") -}}{{- end -}}
{{- fail (printf "pools.%s.launch: there is no launch configuration %q; there are %s" $name $pool.launch (join ", " (sortAlpha $there))) -}}
{{- end -}}
{{- $launch := fromJson $file -}}
{{- $known := $root.Files.Get (printf "files/flags/%s-%s.json" $launch.engine $launch.version) | fromJsonArray -}}
{{- $service := printf "%s-%s" (include "engines.fullname" $root) $name -}}
{{- /* Kubernetes adds a hash of 11 characters to the name and makes a label of it, of 63 at most */ -}}
{{- if gt (len $service) 52 -}}{{- fail (printf "pools.%s: the name %s has %d characters, and a StatefulSet's at most 52; choose a shorter release, fullnameOverride or pool" $name $service (len $service)) -}}{{- end -}}
{{- $derived := list "id" "events_endpoint" "replay_endpoint" "load_endpoint" -}}
{{- $parameters := deepCopy $launch.parameters -}}
{{- $_ := set $parameters "id" (printf "%s-$(POD_INDEX)" $service) -}}
{{- with $pool.servedName -}}{{- $_ := set $parameters "served_name" . -}}{{- end -}}
{{- if $pool.weights.path -}}{{- $_ := set $parameters "model" (printf "/models/%s" $pool.weights.path) -}}{{- end -}}
{{- range $key, $value := $pool.parameters -}}
{{- if not (or (hasKey $parameters $key) (has $key $derived)) -}}{{- fail (printf "pools.%s.parameters: %q is no parameter of %s; there are %s" $name $key $pool.launch (join ", " (sortAlpha (concat (keys $parameters) $derived | uniq)))) -}}{{- end -}}
{{- if has $key (list "host" "model" "served_name") -}}{{- fail (printf "pools.%s.parameters.%s: the chart sets it; use servedName, and weights.path for the model" $name $key) -}}{{- end -}}
{{- $_ := set $parameters $key (include "engines.text" $value) -}}
{{- end -}}
{{- if not (hasKey $parameters "events_endpoint") -}}{{- $_ := set $parameters "events_endpoint" (printf "tcp://*:%s" $parameters.events_port) -}}{{- end -}}
{{- if not (hasKey $parameters "replay_endpoint") -}}{{- $_ := set $parameters "replay_endpoint" (printf "tcp://*:%s" $parameters.replay_port) -}}{{- end -}}
{{- if not (hasKey $parameters "load_endpoint") -}}{{- $_ := set $parameters "load_endpoint" (ternary "auto" "off" (contains "*" $parameters.events_endpoint)) -}}{{- end -}}
{{- range $key, $value := $parameters -}}
{{- if and (or (eq $key "port") (hasSuffix "_port" $key)) (or (not (regexMatch "^[0-9]{1,5}$" (toString $value))) (lt (atoi (toString $value)) 1) (gt (atoi (toString $value)) 65535)) -}}{{- fail (printf "pools.%s.parameters.%s: is a port, between 1 and 65535, not %s" $name $key (toString $value)) -}}{{- end -}}
{{- end -}}
{{- $proof := "" -}}
{{- with $pool.digest -}}{{- $proof = printf "@sha256-%s" (trimPrefix "sha256:" . | trunc 12) -}}{{- end -}}
{{- if and $proof (eq $launch.engine "sglang") -}}{{- $_ := set $parameters "served_name" (printf "%s%s" (trimSuffix $proof $parameters.served_name) $proof) -}}{{- end -}}
{{- $flags := list -}}
{{- $seen := list -}}
{{- /* probes, ports, the Service and the time to end follow these parameters, and would not follow the flag */ -}}
{{- $followed := dict "{host}" "the chart sets it" "{model}" "use weights.path" "{served_name}" "use servedName" "{port}" "use parameters.port" "{grace_s}" "use parameters.grace_s" "{bootstrap_port}" "use parameters.bootstrap_port" -}}
{{- range $flag := $launch.flags -}}
{{- if hasKey $pool.flags $flag.name -}}
{{- with get $followed (get $flag "text" | default "" | toString) -}}{{- fail (printf "pools.%s.flags: --%s: %s, which the rest of the chart follows" $name $flag.name .) -}}{{- end -}}
{{- $seen = append $seen $flag.name -}}
{{- $value := get $pool.flags $flag.name -}}
{{- if and (not (kindIs "invalid" $value)) (ne (toString $value) "false") -}}
{{- $flags = append $flags (include "engines.flag" (dict "name" $flag.name "value" $value) | fromJson) -}}
{{- end -}}
{{- else -}}
{{- $flags = append $flags $flag -}}
{{- end -}}
{{- end -}}
{{- range $key := keys $pool.flags | sortAlpha -}}
{{- if not (has $key $known) -}}{{- fail (printf "pools.%s.flags: --%s is no flag of %s %s" $name $key $launch.engine $launch.version) -}}{{- end -}}
{{- if has $key (list "api-key" "admin-api-key" "hf-token") -}}{{- fail (printf "pools.%s.flags: --%s would stand in clear in the Pod; name an existing Secret in secretEnv, as VLLM_API_KEY or HF_TOKEN" $name $key) -}}{{- end -}}
{{- if hasPrefix "ssl-" $key -}}{{- fail (printf "pools.%s.flags: --%s: the chart writes it; use tls.secret" $name $key) -}}{{- end -}}
{{- $value := get $pool.flags $key -}}
{{- if and (not (has $key $seen)) (not (kindIs "invalid" $value)) (ne (toString $value) "false") -}}
{{- $flags = append $flags (include "engines.flag" (dict "name" $key "value" $value) | fromJson) -}}
{{- end -}}
{{- end -}}
{{- if and $proof (eq $launch.engine "vllm") -}}
{{- /* vLLM has several names: its usual one, and the one that proves the digest */ -}}
{{- $named := list -}}
{{- range $flags -}}
{{- if eq .name "served-model-name" -}}{{- $named = append $named (dict "name" .name "values" (list "{served_name}" (printf "{served_name}%s" $proof))) -}}
{{- else -}}{{- $named = append $named . -}}{{- end -}}
{{- end -}}
{{- $flags = $named -}}
{{- end -}}
{{- if $pool.tls.secret -}}
{{- $flags = append $flags (dict "name" "ssl-certfile" "text" "/etc/tidegate-tls/tls.crt") -}}
{{- $flags = append $flags (dict "name" "ssl-keyfile" "text" "/etc/tidegate-tls/tls.key") -}}
{{- $flags = append $flags (dict "name" "ssl-ca-certs" "text" "/etc/tidegate-tls/ca.crt") -}}
{{- $flags = append $flags (dict "name" "enable-ssl-refresh") -}}
{{- if $pool.tls.requireClient -}}
{{- if not (has "ssl-cert-reqs" $known) -}}{{- fail (printf "pools.%s.tls.requireClient: %s %s cannot demand client certificates; write requireClient: false, and rely on the NetworkPolicy" $name $launch.engine $launch.version) -}}{{- end -}}
{{- /* ssl.CERT_REQUIRED */ -}}
{{- $flags = append $flags (dict "name" "ssl-cert-reqs" "text" "2") -}}
{{- end -}}
{{- end -}}
{{- $args := list -}}
{{- range $word := $launch.command -}}
{{- $args = append $args (include "engines.filled" (dict "text" $word "parameters" $parameters)) -}}
{{- end -}}
{{- $ranks := 1 -}}
{{- range $flag := $flags -}}
{{- $args = append $args (printf "--%s" $flag.name) -}}
{{- if hasKey $flag "values" -}}
{{- range $flag.values -}}{{- $args = append $args (include "engines.filled" (dict "text" . "parameters" $parameters)) -}}{{- end -}}
{{- else if hasKey $flag "text" -}}
{{- $text := include "engines.filled" (dict "text" $flag.text "parameters" $parameters) -}}
{{- $args = append $args $text -}}
{{- if has $flag.name (list "dp-size" "data-parallel-size") -}}{{- $ranks = int $text -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $ports := list (dict "name" "http" "port" (int $parameters.port)) -}}
{{- if $launch.events -}}
{{- $events := int (last (splitList ":" $parameters.events_endpoint)) -}}
{{- $replay := int (last (splitList ":" $parameters.replay_endpoint)) -}}
{{- if hasPrefix "tcp://" $parameters.events_endpoint -}}{{- $ports = append $ports (dict "name" "kv-events" "port" $events) -}}{{- end -}}
{{- if hasPrefix "tcp://" $parameters.replay_endpoint -}}{{- $ports = append $ports (dict "name" "kv-replay" "port" $replay) -}}{{- end -}}
{{- if and (eq $launch.engine "sglang") (eq $parameters.load_endpoint "auto") -}}
{{- $first := add $events $ranks -}}
{{- if and (lt $replay (add $first $ranks)) (lt $first (add $replay $ranks)) -}}{{- $first = add $replay $ranks -}}{{- end -}}
{{- $ports = append $ports (dict "name" "load-push" "port" $first) -}}
{{- end -}}
{{- end -}}
{{- $environment := dict -}}
{{- range $key, $value := $launch.environment -}}
{{- $_ := set $environment $key (include "engines.filled" (dict "text" $value "parameters" $parameters)) -}}
{{- end -}}
{{- range $key, $value := $pool.env -}}{{- $_ := set $environment $key (include "engines.text" $value) -}}{{- end -}}
{{- $kind := "chat" -}}
{{- if contains "embeddings" $pool.launch -}}{{- $kind = "embedding" -}}{{- end -}}
{{- dict "pool" $pool "launch" (omit $launch "flags" "parameters") "service" $service "args" $args "ports" $ports "environment" $environment "model" $parameters.model "draft" (get $parameters "draft_model" | default "") "served" $parameters.served_name "grace" (int $parameters.grace_s) "kind" $kind | toRawJson -}}
{{- end -}}

{{- define "engines.flag" -}}
{{- if kindIs "bool" .value -}}{{ dict "name" .name | toRawJson }}
{{- else if kindIs "slice" .value -}}
{{- $texts := list -}}
{{- range .value -}}{{- $texts = append $texts (include "engines.text" .) -}}{{- end -}}
{{ dict "name" .name "values" $texts | toRawJson }}
{{- else -}}{{ dict "name" .name "text" (include "engines.text" .value) | toRawJson }}
{{- end -}}
{{- end -}}

{{/* A text with `{parameter}` replaced. Kubernetes expands $(NAME), so that of the values is meant, as in $(POD_INDEX). */}}
{{- define "engines.filled" -}}
{{- $text := .text -}}
{{- range $key, $value := .parameters -}}{{- $text = $text | replace (printf "{%s}" $key) $value -}}{{- end -}}
{{- $text -}}
{{- end -}}

{{/* Whether the recommendation is among the signals. Argument: the value `autoscaling`. */}}
{{- define "engines.recommended" -}}
{{- $found := false -}}
{{- range .signals -}}{{- if eq .name "recommendation" -}}{{- $found = true -}}{{- end -}}{{- end -}}
{{- $found -}}
{{- end -}}

{{/* Refusals of autoscaling that the schema cannot judge. Arguments: name, pool. */}}
{{- define "engines.autoscaling.check" -}}
{{- $a := .pool.autoscaling -}}
{{- $at := printf "pools.%s.autoscaling" .name -}}
{{- $recommended := eq (include "engines.recommended" $a) "true" -}}
{{- $names := list -}}
{{- range $a.signals -}}
{{- if has .name $names -}}{{- fail (printf "%s.signals: %s stands twice; keep one" $at .name) -}}{{- end -}}
{{- $names = append $names .name -}}
{{- if and (has .name (list "recommendation" "forecast")) (hasKey . "target") -}}{{- fail (printf "%s.signals: the %s is a number of backends and has no target; remove it" $at .name) -}}{{- end -}}
{{- end -}}
{{- range $i, $s := $a.schedule -}}
{{- if ne $a.by "keda" -}}{{- fail (printf "%s.schedule: needs by: keda, whose cron it is" $at) -}}{{- end -}}
{{- if gt (int $s.engines) (int $a.max) -}}{{- fail (printf "%s.schedule.%d.engines: is %d and max %d; raise max, or write fewer" $at $i (int $s.engines) (int $a.max)) -}}{{- end -}}
{{- if eq $s.start $s.end -}}{{- fail (printf "%s.schedule.%d: start and end are both %q; KEDA wants two times" $at $i $s.start) -}}{{- end -}}
{{- end -}}
{{- if and $recommended (has "forecast" $names) -}}{{- fail (printf "%s.signals: the recommendation has the forecast in it already; remove forecast" $at) -}}{{- end -}}
{{- if eq (join " " $names) "forecast" -}}{{- fail (printf "%s.signals: a forecast knows nothing of what days before did not have; name another signal beside it" $at) -}}{{- end -}}
{{- if and .pool.group (eq .pool.role "both") -}}{{- fail (printf "%s.by: the engines of group %q are ranks of one model and serve together, so none comes or goes alone; write by: none" $at .pool.group) -}}{{- end -}}
{{- if and (ne .pool.role "both") (not $a.pool) -}}{{- fail (printf "%s.pool: is empty; name the pool in tidegate.yaml, of which these are the %s engines" $at .pool.role) -}}{{- end -}}
{{- if eq .pool.role "decode" -}}
{{- range $a.signals -}}{{- if has .name (list "queue" "ttft") -}}{{- fail (printf "%s.signals: %s is that of prompts, which decode engines compute none of; name recommendation or kv" $at .name) -}}{{- end -}}{{- end -}}
{{- end -}}
{{- if and (ne .pool.role "both") $a.toZero.enabled -}}{{- fail (printf "%s.toZero: the other engines of group %q serve nobody without %s engines; keep one" $at .pool.group .pool.role) -}}{{- end -}}
{{- if gt (int $a.min) (int $a.max) -}}{{- fail (printf "%s.min: is %d and max %d; the first is the smaller one" $at (int $a.min) (int $a.max)) -}}{{- end -}}
{{- if eq (join " " $names) "deficit" -}}{{- fail (printf "%s.signals: the deficit is 0 as soon as promises are kept, so it alone removes what it has added; name another signal beside it" $at) -}}{{- end -}}
{{- if and (eq $a.by "keda") (not $a.prometheus.address) -}}{{- fail (printf "%s.prometheus.address: is empty; write where KEDA asks Prometheus, as http://prometheus.monitoring.svc:9090" $at) -}}{{- end -}}
{{- if and $a.standby (not $recommended) -}}{{- fail (printf "%s.standby: stands above the recommendation; add it to signals, or write standby: 0" $at) -}}{{- end -}}
{{- if and $a.standby (ne $a.by "keda") -}}{{- fail (printf "%s.standby: needs by: keda, whose query it is added to; a HorizontalPodAutoscaler takes the metric as it is" $at) -}}{{- end -}}
{{- if $a.toZero.enabled -}}
{{- if ne $a.by "keda" -}}{{- fail (printf "%s.toZero: needs by: keda; a HorizontalPodAutoscaler keeps at least one" $at) -}}{{- end -}}
{{- if not $recommended -}}{{- fail (printf "%s.toZero: needs the recommendation among signals, since without an engine the others say nothing" $at) -}}{{- end -}}
{{- if $a.standby -}}{{- fail (printf "%s.toZero: contradicts standby: %d, which keeps an engine; keep one of both" $at (int $a.standby)) -}}{{- end -}}
{{- end -}}
{{- if $a.fallback.replicas -}}
{{- if ne $a.by "keda" -}}{{- fail (printf "%s.fallback: needs by: keda" $at) -}}{{- end -}}
{{- if ne (join " " $names) "recommendation" -}}{{- fail (printf "%s.fallback: KEDA takes it only where the recommendation is the one signal; write replicas: 0, and the number stays while Prometheus is away" $at) -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels as matchers of PromQL. */}}
{{- define "engines.matchers" -}}
{{- $parts := list -}}
{{- range $key := keys . | sortAlpha -}}{{- $parts = append $parts (printf "%s=%q" $key (get $ $key)) -}}{{- end -}}
{{- join ", " $parts -}}
{{- end -}}

{{/*
A signal of docs/reference/scaling.md as a query and a target, as JSON. Gateways see the same engines: the highest counts. A signal of
requests that has no sample while engines are up counts as 0, so that a pool without traffic scales in. Arguments: signal, matched, standby.
*/}}
{{- define "engines.signal" -}}
{{- $signal := .signal.name -}}
{{- $of := include "engines.matchers" .matched -}}
{{- $kinds := dict
  "recommendation" (list "tidegate_pool_wanted_backends" "AverageValue" "1")
  "queue" (list "tidegate_pool_queue_tokens_per_backend" "Value" "4000")
  "ttft" (list "tidegate_pool_predicted_ttft_p95_seconds" "Value" "2")
  "kv" (list "tidegate_pool_kv_pressure_ratio" "Value" "0.7")
  "deficit" (list "tidegate_pool_goodput_deficit_ratio" "Value" "0.05")
  "forecast" (list "tidegate_pool_forecast_backends" "AverageValue" "1") -}}
{{- $kind := get $kinds $signal -}}
{{- $metric := index $kind 0 -}}
{{- $query := printf "max(%s{%s})" $metric $of -}}
{{- if has $signal (list "ttft" "deficit" "forecast") -}}{{- $query = printf "%s or 0 * max(tidegate_pool_queue_tokens_per_backend{%s})" $query $of -}}{{- end -}}
{{- if and .standby (eq $signal "recommendation") -}}{{- $query = printf "%s + %d" $query .standby -}}{{- end -}}
{{- $target := index $kind 2 -}}
{{- if hasKey .signal "target" -}}{{- $target = include "engines.text" .signal.target -}}{{- end -}}
{{- dict "name" $signal "metric" $metric "type" (index $kind 1) "target" $target "query" $query | toRawJson -}}
{{- end -}}

{{/* `replicas` of a pool's StatefulSet. With an autoscaler an upgrade writes the number that runs, and what only renders none. */}}
{{- define "engines.replicas" -}}
{{- if eq .pool.autoscaling.by "none" -}}
{{ int .pool.replicas }}
{{- else -}}
{{- $there := lookup "apps/v1" "StatefulSet" .root.Release.Namespace .service -}}
{{- if $there -}}{{ dig "spec" "replicas" 1 $there | int }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* What one engine asks of a node, as JSON. Argument: what engines.pool gives. */}}
{{- define "engines.resources" -}}
{{- $hardware := .launch.hardware -}}
{{- $gpus := ternary (dict .pool.gpuResource (int $hardware.gpus)) dict (gt (int $hardware.gpus) 0) -}}
{{- $memory := printf "%dGi" (int $hardware.memory_gib) -}}
{{- $own := dict "requests" (merge (dict "cpu" (int $hardware.cpus | toString) "memory" $memory) $gpus) "limits" (merge (dict "memory" $memory) $gpus) -}}
{{- mergeOverwrite $own .pool.resources | toRawJson -}}
{{- end -}}

{{- define "engines.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ int .Values.podSecurity.uid }}
runAsGroup: {{ int .Values.podSecurity.gid }}
fsGroup: {{ int .Values.podSecurity.gid }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* The labels of a pool's placeholders, which no Service and no policy of engines selects. Arguments: root, name. */}}
{{- define "engines.buffer.selector" -}}
app.kubernetes.io/name: {{ .root.Values.nameOverride | default .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: buffer
tidegate/pool: {{ .name }}
{{- end -}}

{{/* The labels of nodes that a pool's Pods and placeholders are for, as YAML; empty for all nodes. Arguments: name, pool. */}}
{{- define "engines.nodeSelector" -}}
{{- $selector := deepCopy .pool.nodeSelector -}}
{{- $disk := .pool.nodes.bootDisk -}}
{{- if and $disk.image (not $disk.project) -}}{{- fail (printf "pools.%s.nodes.bootDisk.project: is empty; name the project of the disk image %s" .name $disk.image) -}}{{- end -}}
{{- if $disk.image -}}
{{- $_ := set $selector (printf "cloud.google.com.node-restriction.kubernetes.io/gke-secondary-boot-disk-%s" $disk.image) (printf "CONTAINER_IMAGE_CACHE.%s" $disk.project) -}}
{{- end -}}
{{- if eq .pool.nodes.streaming "google" -}}{{- $_ := set $selector "cloud.google.com/gke-image-streaming" "true" -}}{{- end -}}
{{- if eq .pool.nodes.streaming "azure" -}}{{- $_ := set $selector "kubernetes.azure.com/artifactstreaming-enabled" "true" -}}{{- end -}}
{{- with $selector -}}{{- toYaml . -}}{{- end -}}
{{- end -}}
