{{- define "tidegate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "tidegate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.selector" -}}
app.kubernetes.io/name: {{ include "tidegate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end -}}

{{- define "tidegate.labels" -}}
{{ include "tidegate.selector" . }}
{{ include "tidegate.chartLabels" . }}
{{- end -}}

{{- define "tidegate.chartLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: tidegate
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "tidegate.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Security of every container; nothing of it can be weakened by values. */}}
{{- define "tidegate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
privileged: false
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "tidegate.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .uid }}
runAsGroup: {{ .gid }}
fsGroup: {{ .gid }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* How many gateways there may be at once. */}}
{{- define "tidegate.most" -}}
{{ ternary .Values.autoscaling.max .Values.replicas .Values.autoscaling.enabled | int }}
{{- end -}}

{{/* `replicas` of the StatefulSet. With an autoscaler an upgrade writes the number that runs, and what only renders writes none. */}}
{{- define "tidegate.replicas" -}}
{{- if not .Values.autoscaling.enabled -}}
{{ int .Values.replicas }}
{{- else -}}
{{- $there := lookup "apps/v1" "StatefulSet" .Release.Namespace (include "tidegate.fullname" .) -}}
{{- if $there -}}{{- dig "spec" "replicas" 1 $there | int -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refusals of values that the schema cannot judge. */}}
{{- define "tidegate.check" -}}
{{- $v := .Values -}}
{{- $s := $v.settings -}}
{{- $bundled := $v.stores.bundled -}}
{{- $most := include "tidegate.most" . | int -}}
{{- if eq $v.image.tag "latest" -}}{{- fail "image.tag: latest is another image tomorrow; write a version, or image.digest" -}}{{- end -}}
{{- $size := ternary "autoscaling.max" "replicas" $v.autoscaling.enabled -}}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.min) $most) -}}{{- fail (printf "autoscaling.min: is %d and max %d; the first is the smaller one" (int $v.autoscaling.min) $most) -}}{{- end -}}
{{- if and $v.autoscaling.enabled (not $v.autoscaling.cpu) (not $v.autoscaling.openRequests) -}}{{- fail "autoscaling: neither cpu nor openRequests is set; name what the number of gateways follows" -}}{{- end -}}
{{- if not $s.pools -}}{{- fail "settings.pools: is empty; name the pools of engines (docs/reference/configuration.md)" -}}{{- end -}}
{{- range $key := list "stores" "secrets" "policies" "policies_from" "prompts" -}}
{{- if hasKey $s $key -}}{{- fail (printf "settings.%s: the chart writes this part; use the values `stores`, `secrets` and `policies`" $key) -}}{{- end -}}
{{- end -}}
{{- $ports := dict -}}
{{- range $part := ternary (list "data" "admin" "picker") (list "data" "admin") $v.picker.enabled -}}
{{- $port := get $v.ports $part | int | toString -}}
{{- if hasKey $ports $port -}}{{- fail (printf "ports.%s: is %s, as ports.%s; write another one" $part $port (get $ports $port)) -}}{{- end -}}
{{- $_ := set $ports $port $part -}}
{{- end -}}
{{- range $label, $_ := $v.podLabels -}}
{{- if regexMatch "^(app\\.kubernetes\\.io|helm\\.sh)/" $label -}}{{- fail (printf "podLabels: %s is the chart's, whose Services and policies select by such labels; use another name" $label) -}}{{- end -}}
{{- end -}}
{{- if and $v.metrics.serviceMonitor.enabled $v.networkPolicy.enabled (not $v.networkPolicy.adminFrom) -}}{{- fail "networkPolicy.adminFrom: is empty, so that Prometheus cannot reach the gateways; name its Pods, or write metrics.serviceMonitor.enabled: false" -}}{{- end -}}
{{- range $part := list "data" "admin" -}}
{{- if hasKey (dig $part dict $s) "bind" -}}{{- fail (printf "settings.%s.bind: the chart writes the address; use ports.%s" $part $part) -}}{{- end -}}
{{- end -}}
{{- if and (hasKey $s "picker") (not $v.picker.enabled) -}}{{- fail "settings.picker: its Service and its NetworkPolicy are the chart's; write picker.enabled: true" -}}{{- end -}}
{{- range $key := list "bind" "tenant" "tls" "plain_text" -}}
{{- if hasKey (dig "picker" dict $s) $key -}}{{- fail (printf "settings.picker.%s: the chart writes it; use picker" $key) -}}{{- end -}}
{{- end -}}
{{- if $v.picker.enabled -}}
{{- if not $v.picker.tenant -}}{{- fail "picker.tenant: is empty; name the tenant whose policy says which models there are" -}}{{- end -}}
{{- if and (not $v.picker.tlsSecret) (not $v.picker.plainText) -}}{{- fail "picker.tlsSecret: is empty; name the Secret of its certificate, or write picker.plainText: true where a mesh encrypts" -}}{{- end -}}
{{- if and $v.picker.tlsSecret $v.picker.plainText -}}{{- fail "picker.plainText: contradicts picker.tlsSecret; keep one" -}}{{- end -}}
{{- if and $v.picker.clientCa (not $v.picker.tlsSecret) -}}{{- fail "picker.clientCa: needs picker.tlsSecret, whose ca.crt it is" -}}{{- end -}}
{{- if and $v.networkPolicy.enabled (not $v.networkPolicy.pickerFrom) -}}{{- fail "networkPolicy.pickerFrom: is empty, and the picker asks nobody for a key; name the Pods of the Gateway that ask it" -}}{{- end -}}
{{- end -}}
{{- if hasKey (dig "data" dict $s) "tls" -}}{{- fail "settings.data.tls: the chart writes it; use tls.secret" -}}{{- end -}}
{{- if and $v.stores.sql.name $bundled.postgres.enabled -}}{{- fail "stores.sql and stores.bundled.postgres: two databases; keep one" -}}{{- end -}}
{{- if and $v.stores.counters.name $bundled.valkey.enabled -}}{{- fail "stores.counters and stores.bundled.valkey: two counter stores; keep one" -}}{{- end -}}
{{- range $name, $store := $bundled -}}
{{- if and $store.enabled (eq $v.mode "production") -}}{{- fail (printf "stores.bundled.%s: one Pod without backups is no store for production; name an external one in stores.%s, or write mode: trial" $name (ternary "sql" "counters" (eq $name "postgres"))) -}}{{- end -}}
{{- if and $store.enabled (not $store.password.name) -}}{{- fail (printf "stores.bundled.%s.password.name: name an existing Secret that holds its password" $name) -}}{{- end -}}
{{- end -}}
{{- $sql := or $v.stores.sql.name $bundled.postgres.enabled -}}
{{- if and (gt $most 1) (not $sql) -}}{{- fail (printf "%s: %d gateways cannot share SQLite; name PostgreSQL in stores.sql, or write %s: 1" $size $most $size) -}}{{- end -}}
{{- if and (gt $most 1) (not (or $v.stores.counters.name $bundled.valkey.enabled)) -}}{{- fail (printf "%s: %d gateways would each grant the whole limits; name Valkey in stores.counters, or write %s: 1" $size $most $size) -}}{{- end -}}
{{- if and $sql (not $v.secrets.pepper.name) -}}{{- fail "secrets.pepper.name: PostgreSQL needs a pepper that every gateway has; name an existing Secret" -}}{{- end -}}
{{- if and (eq $v.mode "production") (not $v.persistence.enabled) -}}{{- fail "persistence.enabled: without a claim a lost node loses usage that is not booked yet; write true, or mode: trial" -}}{{- end -}}
{{- if and (eq $v.mode "production") (not $v.secrets.adminToken.name) -}}{{- fail "secrets.adminToken.name: without a token nobody can change anything over the admin port; name an existing Secret, or write mode: trial" -}}{{- end -}}
{{- if and (gt $most 1) (dig "files" "enabled" true $s) (not (dig "files" "s3" nil $s)) -}}{{- fail "settings.files: gateways do not share a folder of callers' files; write settings.files.s3, or settings.files.enabled: false and settings.batches.enabled: false" -}}{{- end -}}
{{- if and (eq $v.policies.from "configMap") (not $v.policies.files) (not $v.policies.existingConfigMap) -}}{{- fail "policies.files: is empty; write a policy (docs/reference/policies.md), or name policies.existingConfigMap, or policies.from: git" -}}{{- end -}}
{{- if and $v.policies.files $v.policies.existingConfigMap -}}{{- fail "policies.files and policies.existingConfigMap: two sources; keep one" -}}{{- end -}}
{{- if and (eq $v.policies.from "database") (not $v.policies.files) (not $v.policies.existingConfigMap) -}}{{- fail "policies.files: the database's first policies come from here; write one" -}}{{- end -}}
{{- if and (eq $v.policies.from "git") (not $v.policies.git.repository) -}}{{- fail "policies.git.repository: is empty; name the repository of the policies" -}}{{- end -}}
{{- if and (eq $v.policies.from "git") (or $v.policies.files $v.policies.existingConfigMap) -}}{{- fail "policies.files: with policies.from: git the policies come from the repository; remove it, or write from: configMap" -}}{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}{{- fail "ingress.hosts: is empty; name the host that callers use" -}}{{- end -}}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.parentRefs) -}}{{- fail "httpRoute.parentRefs: is empty; name the Gateway that the route belongs to" -}}{{- end -}}
{{- if and $v.tls.issuer (not $v.tls.secret) -}}{{- fail "tls.secret: is empty; name the Secret that cert-manager shall make" -}}{{- end -}}
{{- if and $v.tls.issuer (not $v.tls.dnsNames) -}}{{- fail "tls.dnsNames: is empty; name the hosts of the certificate" -}}{{- end -}}
{{- $pools := list -}}
{{- range $s.pools -}}{{- $pools = append $pools (default "" .name) -}}{{- end -}}
{{- $secured := list -}}
{{- $made := ternary (list $v.tls.secret) list (not (empty $v.tls.issuer)) -}}
{{- range $v.engineTls -}}
{{- if has .pool $secured -}}{{- fail (printf "engineTls: two items are for pool %q; keep one" .pool) -}}{{- end -}}
{{- $secured = append $secured .pool -}}
{{- if and .issuer (has .secret $made) -}}{{- fail (printf "engineTls: Secret %q is made twice; write its issuer once" .secret) -}}{{- end -}}
{{- if .issuer -}}{{- $made = append $made .secret -}}{{- end -}}
{{- if not (has .pool $pools) -}}{{- fail (printf "engineTls: there is no pool %q in settings.pools; there are %s" .pool (join ", " $pools)) -}}{{- end -}}
{{- end -}}
{{- $listed := dict -}}
{{- range $v.engines -}}
{{- if hasKey $listed .service -}}{{- fail (printf "engines: service %q stands twice (pools %q and %q), and its engines would have the same names; keep one item" .service (get $listed .service) .pool) -}}{{- end -}}
{{- $_ := set $listed .service .pool -}}
{{- if not (has .pool $pools) -}}{{- fail (printf "engines: there is no pool %q in settings.pools; there are %s" .pool (join ", " $pools)) -}}{{- end -}}
{{- end -}}
{{- if and (ne (include "tidegate.discovery" .) "{}") $v.networkPolicy.enabled (not $v.networkPolicy.apiServer) -}}{{- fail "networkPolicy.apiServer: is empty, and a pool of settings.pools discovers its engines in this cluster; write the address of the API server, as {cidr: 10.96.0.1/32, port: 443} and that of its endpoints (kubectl get endpointslices -n default kubernetes)" -}}{{- end -}}
{{- range $s.pools -}}
{{- if hasKey . "tls" -}}{{- fail (printf "settings.pools: tls of pool %q: the chart writes it; use engineTls" (default "" .name)) -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The whole tidegate.yaml. */}}
{{- define "tidegate.settings" -}}
{{- $v := .Values -}}
{{- $state := "/var/lib/tidegate" -}}
{{- $own := dict
  "data" (dict "bind" (printf "0.0.0.0:%d" (int $v.ports.data)))
  "admin" (dict "bind" (printf "0.0.0.0:%d" (int $v.ports.admin)))
  "stores" (dict "directory_file" (printf "%s/directory" $state) "policies_copy" (printf "%s/policies" $state))
  "ledger" (dict "folder" (printf "%s/ledger" $state))
  "routing" (dict "index_file" (printf "%s/index" $state))
  "explanations" (dict "folder" (printf "%s/explanations" $state))
  "files" (dict "folder" (printf "%s/files" $state))
  "policies" "/etc/tidegate-policies"
  "prompts" "/etc/tidegate-prompts"
-}}
{{- if eq $v.policies.from "git" -}}
{{- $_ := set $own "policies" (printf "/git/current/%s" $v.policies.git.folder) -}}
{{- $_ := set $own "prompts" "/git/current/prompts" -}}
{{- else if eq $v.policies.from "database" -}}
{{- $_ := set $own "policies_from" "database" -}}
{{- end -}}
{{- if and (not $v.stores.sql.name) (not $v.stores.bundled.postgres.enabled) -}}
{{- $_ := set $own.stores "sql" (printf "sqlite:///%s/tidegate.db" $state) -}}
{{- end -}}
{{- $secrets := dict -}}
{{- if $v.secrets.pepper.name -}}{{- $_ := set $secrets "pepper" (dict "file" "/etc/tidegate-secrets/pepper") -}}{{- end -}}
{{- if $v.secrets.adminToken.name -}}{{- $_ := set $secrets "admin_token" (dict "file" "/etc/tidegate-secrets/admin-token") -}}{{- end -}}
{{- if $secrets -}}{{- $_ := set $own "secrets" $secrets -}}{{- end -}}
{{- if $v.tls.secret -}}
{{- $_ := set $own.data "tls" (dict "certificate" "/etc/tidegate-tls/tls.crt" "private_key" "/etc/tidegate-tls/tls.key") -}}
{{- end -}}
{{- if $v.picker.enabled -}}
{{- $picker := dict "bind" (printf "0.0.0.0:%d" (int $v.ports.picker)) "tenant" $v.picker.tenant -}}
{{- if $v.picker.plainText -}}{{- $_ := set $picker "plain_text" true -}}{{- end -}}
{{- if $v.picker.tlsSecret -}}
{{- $tls := dict "certificate" "/etc/tidegate-picker/tls.crt" "private_key" "/etc/tidegate-picker/tls.key" -}}
{{- if $v.picker.clientCa -}}{{- $_ := set $tls "client_ca" "/etc/tidegate-picker/ca.crt" -}}{{- end -}}
{{- $_ := set $picker "tls" $tls -}}
{{- end -}}
{{- $_ := set $own "picker" $picker -}}
{{- end -}}
{{- $settings := deepCopy $v.settings -}}
{{- $pools := list -}}
{{- range $pool := $settings.pools -}}
{{- range $v.engineTls -}}
{{- if eq .pool $pool.name -}}
{{- $at := printf "/etc/tidegate-engines/%s" .pool -}}
{{- $_ := set $pool "tls" (dict "ca" (printf "%s/ca.crt" $at) "certificate" (printf "%s/tls.crt" $at) "private_key" (printf "%s/tls.key" $at)) -}}
{{- end -}}
{{- end -}}
{{- $backends := default list $pool.backends -}}
{{- range $e := $v.engines -}}
{{- if eq $e.pool $pool.name -}}
{{- range $i := until (int $e.replicas) -}}
{{- $host := printf "%s-%d.%s.%s.svc" $e.service $i $e.service ($e.namespace | default $.Release.Namespace) -}}
{{- $backend := dict "id" (printf "%s-%d" $e.service $i) "url" (printf "%s://%s:%d" (ternary "https" "http" (or (hasKey $pool "tls") (has $pool.name ($v.issuedLater | default list)))) $host (int ($e.port | default 8000))) -}}
{{- if $e.kvEvents -}}
{{- $_ := set $backend "kv_events" (dict "endpoint" (printf "tcp://%s:5557" $host) "replay" (printf "tcp://%s:5657" $host)) -}}
{{- end -}}
{{- if $e.loadPush -}}{{- $_ := set $backend "load_push" (dict "endpoint" (printf "tcp://%s:5558" $host)) -}}{{- end -}}
{{- with $e.role -}}{{- $_ := set $backend "role" . -}}{{- end -}}
{{- with $e.bootstrapPort -}}{{- $_ := set $backend "bootstrap_port" (int .) -}}{{- end -}}
{{- $backends = append $backends $backend -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $backends -}}{{- $_ := set $pool "backends" $backends -}}{{- end -}}
{{- $pools = append $pools $pool -}}
{{- end -}}
{{- $_ := set $settings "pools" $pools -}}
{{- toYaml (mergeOverwrite $own $settings) -}}
{{- end -}}

{{/*
The values of the migration Job, as YAML: without the certificates that cert-manager makes, since their requests are manifests of the release and
come after the Job. `issuedLater` has the pools whose engines these are for.
*/}}
{{- define "tidegate.valuesBefore" -}}
{{- $v := deepCopy .Values -}}
{{- $issued := ternary (list $v.tls.secret) list (not (empty $v.tls.issuer)) -}}
{{- range $v.engineTls -}}{{- if .issuer -}}{{- $issued = append $issued .secret -}}{{- end -}}{{- end -}}
{{- $there := list -}}
{{- $later := list -}}
{{- range $v.engineTls -}}
{{- if has .secret $issued -}}{{- $later = append $later .pool -}}{{- else -}}{{- $there = append $there . -}}{{- end -}}
{{- end -}}
{{- $_ := set $v "engineTls" $there -}}
{{- $_ := set $v "issuedLater" $later -}}
{{- if has $v.tls.secret $issued -}}{{- $_ := set $v.tls "secret" "" -}}{{- end -}}
{{- if and $v.picker.enabled (has $v.picker.tlsSecret $issued) -}}
{{- $_ := set $v.picker "enabled" false -}}
{{- $_ := unset $v.settings "picker" -}}
{{- end -}}
{{- toYaml $v -}}
{{- end -}}

{{/* Environment variables that come from Secrets; never values themselves. */}}
{{- define "tidegate.env" -}}
- {name: HOME, value: /tmp}
- {name: TIDEGATE_ADMIN_URL, value: "http://127.0.0.1:{{ int .Values.ports.admin }}"}
{{- if .Values.stores.sql.name }}
- name: TIDEGATE__STORES__SQL
  valueFrom: {secretKeyRef: {name: {{ .Values.stores.sql.name | quote }}, key: {{ .Values.stores.sql.key | quote }}}}
{{- else if .Values.stores.bundled.postgres.enabled }}
- name: TIDEGATE_TRIAL_POSTGRES_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .Values.stores.bundled.postgres.password.name | quote }}, key: {{ .Values.stores.bundled.postgres.password.key | quote }}}}
- {name: TIDEGATE__STORES__SQL, value: "postgresql://tidegate:$(TIDEGATE_TRIAL_POSTGRES_PASSWORD)@{{ include "tidegate.fullname" . }}-postgres:5432/tidegate"}
{{- end }}
{{- if .Values.stores.counters.name }}
- name: TIDEGATE__STORES__COUNTERS
  valueFrom: {secretKeyRef: {name: {{ .Values.stores.counters.name | quote }}, key: {{ .Values.stores.counters.key | quote }}}}
{{- else if .Values.stores.bundled.valkey.enabled }}
- name: TIDEGATE_TRIAL_VALKEY_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .Values.stores.bundled.valkey.password.name | quote }}, key: {{ .Values.stores.bundled.valkey.password.key | quote }}}}
- {name: TIDEGATE__STORES__COUNTERS, value: "redis://:$(TIDEGATE_TRIAL_VALKEY_PASSWORD)@{{ include "tidegate.fullname" . }}-valkey:6379"}
{{- end }}
{{- range .Values.secrets.env }}
- name: {{ .variable }}
  valueFrom: {secretKeyRef: {name: {{ .name | quote }}, key: {{ .key | quote }}}}
{{- end }}
{{- end -}}

{{/* What every container of the gateway's program mounts. */}}
{{- define "tidegate.mounts" -}}
- {name: settings, mountPath: /etc/tidegate, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if eq .Values.policies.from "git" }}
- {name: git, mountPath: /git, readOnly: true}
{{- else }}
- {name: policies, mountPath: /etc/tidegate-policies, readOnly: true}
{{- if .Values.policies.prompts }}
- {name: prompts, mountPath: /etc/tidegate-prompts, readOnly: true}
{{- end }}
{{- end }}
{{- if or .Values.secrets.pepper.name .Values.secrets.adminToken.name }}
- {name: secrets, mountPath: /etc/tidegate-secrets, readOnly: true}
{{- end }}
{{- if .Values.tls.secret }}
- {name: tls, mountPath: /etc/tidegate-tls, readOnly: true}
{{- end }}
{{- if and .Values.picker.enabled .Values.picker.tlsSecret }}
- {name: picker-tls, mountPath: /etc/tidegate-picker, readOnly: true}
{{- end }}
{{- range $i, $tls := .Values.engineTls }}
- {name: engine-tls-{{ $i }}, mountPath: /etc/tidegate-engines/{{ $tls.pool }}, readOnly: true}
{{- end }}
{{- range .Values.claims }}
- {name: {{ printf "claim-%s" .name }}, mountPath: {{ .path | quote }}, readOnly: true}
{{- end }}
{{- end -}}

{{/* The volumes of these mounts. `settingsName` is the ConfigMap of the settings, `policiesName` that of policies. */}}
{{- define "tidegate.volumes" -}}
{{- $v := .root.Values -}}
- {name: settings, configMap: {name: {{ .settingsName }}}}
- {name: tmp, emptyDir: {sizeLimit: 256Mi}}
{{- if eq $v.policies.from "git" }}
- {name: git, emptyDir: {sizeLimit: 256Mi}}
{{- with $v.policies.git.secret }}
- {name: git-secret, secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- else }}
- {name: policies, configMap: {name: {{ $v.policies.existingConfigMap | default .policiesName }}}}
{{- if $v.policies.prompts }}
- {name: prompts, configMap: {name: {{ .promptsName }}}}
{{- end }}
{{- end }}
{{- if or $v.secrets.pepper.name $v.secrets.adminToken.name }}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
    {{- with $v.secrets.pepper }}
    {{- if .name }}
    - secret: {name: {{ .name | quote }}, items: [{key: {{ .key | quote }}, path: pepper}]}
    {{- end }}
    {{- end }}
    {{- with $v.secrets.adminToken }}
    {{- if .name }}
    - secret: {name: {{ .name | quote }}, items: [{key: {{ .key | quote }}, path: admin-token}]}
    {{- end }}
    {{- end }}
{{- end }}
{{- with $v.tls.secret }}
- {name: tls, secret: {secretName: {{ . | quote }}, defaultMode: 0440}}
{{- end }}
{{- if and $v.picker.enabled $v.picker.tlsSecret }}
- {name: picker-tls, secret: {secretName: {{ $v.picker.tlsSecret | quote }}, defaultMode: 0440}}
{{- end }}
{{- range $i, $tls := $v.engineTls }}
- {name: engine-tls-{{ $i }}, secret: {secretName: {{ $tls.secret | quote }}, defaultMode: 0440}}
{{- end }}
{{- range $v.claims }}
- {name: {{ printf "claim-%s" .name }}, persistentVolumeClaim: {claimName: {{ .claim | quote }}, readOnly: true}}
{{- end }}
{{- end -}}

{{/* git-sync: `once` for init containers and Jobs. */}}
{{- define "tidegate.gitSync" -}}
{{- $git := .root.Values.policies.git -}}
image: {{ $git.image }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args:
- --repo={{ $git.repository }}
- --ref={{ $git.ref }}
- --root=/git
- --link=current
- --depth=1
{{- if .once }}
- --one-time
{{- else }}
- --period={{ int $git.everySeconds }}s
- --max-failures=-1
{{- end }}
{{- if hasPrefix "ssh://" $git.repository }}
- --ssh-key-file=/etc/git-secret/ssh-privatekey
- --ssh-known-hosts-file=/etc/git-secret/known_hosts
{{- end }}
env:
- {name: HOME, value: /tmp}
{{- if and $git.secret (not (hasPrefix "ssh://" $git.repository)) }}
- {name: GITSYNC_USERNAME, valueFrom: {secretKeyRef: {name: {{ $git.secret | quote }}, key: username}}}
- {name: GITSYNC_PASSWORD, valueFrom: {secretKeyRef: {name: {{ $git.secret | quote }}, key: password}}}
{{- end }}
resources:
  requests: {cpu: 10m, memory: 32Mi}
  limits: {memory: 128Mi}
securityContext:
  {{- /* the account of that image: ssh wants a name for it */}}
  runAsUser: 65533
  {{- include "tidegate.containerSecurity" .root | nindent 2 }}
volumeMounts:
- {name: git, mountPath: /git}
- {name: tmp, mountPath: /tmp}
{{- if $git.secret }}
- {name: git-secret, mountPath: /etc/git-secret, readOnly: true}
{{- end }}
{{- end -}}

{{/*
The rights that discovery in this cluster needs, as JSON: namespace -> the kinds of resources that pools read there. Pools that name the
address of an API server have a token of their own.
*/}}
{{- define "tidegate.discovery" -}}
{{- $needed := dict -}}
{{- range .Values.settings.pools -}}
{{- $k := dig "discover" "kubernetes" dict . -}}
{{- if and $k (not $k.address) -}}
{{- $namespace := $k.namespace | default $.Release.Namespace -}}
{{- $kinds := get $needed $namespace | default list -}}
{{- if or $k.service $k.selector -}}{{- $kinds = append $kinds "endpointslices" -}}{{- end -}}
{{- if or $k.labels $k.pods $k.llm_inference_service $k.inference_pool -}}{{- $kinds = append $kinds "pods" -}}{{- end -}}
{{- if $k.inference_pool -}}{{- $kinds = append $kinds "inferencepools" -}}{{- end -}}
{{- $_ := set $needed $namespace ($kinds | uniq | sortAlpha) -}}
{{- end -}}
{{- end -}}
{{- toRawJson $needed -}}
{{- end -}}
