{{- define "ascend-affinity.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* The release's name, with the chart's in it. At most 40 characters: a component's name is appended. */}}
{{- define "ascend-affinity.fullname" -}}
{{- $name := include "ascend-affinity.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* The following templates take (list $ "device-plugin"), (list $ "allocator"), (list $ "scheduler") or (list $ "web"). */}}

{{- define "ascend-affinity.componentName" -}}
{{- printf "%s-%s" (include "ascend-affinity.fullname" (index . 0)) (index . 1) }}
{{- end }}

{{- define "ascend-affinity.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ascend-affinity.name" (index . 0) }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "ascend-affinity.labels" -}}
{{ include "ascend-affinity.selectorLabels" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/part-of: ascend-affinity
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version | replace "+" "_" }}
{{- with (index . 0).Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The labels of pods; takes (list $ component labels), with those of the component's values. */}}
{{- define "ascend-affinity.podLabels" -}}
{{ include "ascend-affinity.labels" . }}
{{- with index . 2 }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "ascend-affinity.serviceAccountName" -}}
{{- $values := index (index . 0).Values (eq (index . 1) "device-plugin" | ternary "devicePlugin" (index . 1)) }}
{{- default (include "ascend-affinity.componentName" .) $values.serviceAccount.name }}
{{- end }}

{{- define "ascend-affinity.image" -}}
{{- with .Values.image }}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The RBAC permission with which the device plugin lists its kubelet's pods: a subresource of nodes. */}}
{{- define "ascend-affinity.kubeletSubresource" -}}
{{- $wanted := .Values.devicePlugin.kubelet.authorization }}
{{- if eq $wanted "auto" }}
{{- $wanted = ternary "pods" "proxy" (semverCompare ">=1.33.0-0" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- printf "nodes/%s" $wanted }}
{{- end }}

{{/*
The values of the device plugin for each pool of nodes, by the name of its component: `device-plugin` for all nodes
without the label ascend-affinity.io/pool, and `device-plugin-<pool>` with the pool's overrides.
*/}}
{{- define "ascend-affinity.pluginPools" -}}
{{- $common := omit .Values.devicePlugin "pools" "enabled" "networkPolicy" }}
{{- $found := dict }}
{{- if .Values.devicePlugin.enabled }}
{{- $_ := set $found "device-plugin" $common }}
{{- range $pool, $overrides := .Values.devicePlugin.pools }}
{{- $_ := set $found (printf "device-plugin-%s" $pool) (mergeOverwrite (deepCopy $common) (deepCopy $overrides)) }}
{{- end }}
{{- range $name, $values := $found }}
{{- if eq $values.health.faultsInUse "auto" }}
{{- $told := or $.Values.allocator.enabled $values.chooseChips | ternary "unhealthy" "healthy" }}
{{- $_ := set $found $name (mergeOverwrite (deepCopy $values) (dict "health" (dict "faultsInUse" $told))) }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $found }}
{{- end }}

{{/* The label whose value is the name of a node's pool. */}}
{{- define "ascend-affinity.poolLabel" -}}
ascend-affinity.io/pool
{{- end }}

{{/* The label that Node Feature Discovery gives to nodes with chips. */}}
{{- define "ascend-affinity.discoveredLabel" -}}
ascend-affinity.io/chips
{{- end }}

{{/* The affinity of the device plugin on nodes of no pool; takes (list $ $values). JSON. */}}
{{- define "ascend-affinity.affinityOutsidePools" -}}
{{- $root := index . 0 }}
{{- $affinity := deepCopy ((index . 1).affinity | default dict) }}
{{- with $root.Values.devicePlugin.pools }}
{{- $outside := dict "key" (include "ascend-affinity.poolLabel" $root) "operator" "NotIn" "values" (keys . | sortAlpha) }}
{{- $node := $affinity.nodeAffinity | default dict }}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict }}
{{- $terms := list }}
{{- range $required.nodeSelectorTerms | default (list dict) }}
{{- $terms = append $terms (set . "matchExpressions" (append (.matchExpressions | default list) $outside)) }}
{{- end }}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (set $required "nodeSelectorTerms" $terms) }}
{{- $_ := set $affinity "nodeAffinity" $node }}
{{- end }}
{{- toJson $affinity }}
{{- end }}

{{/* The device plugin's settings that only a restart applies; takes the values of its pool. */}}
{{- define "ascend-affinity.pluginFixedSettings" -}}
{{- with . }}
driver: {{ .driver.type }}
{{- if eq .driver.type "simulated" }}
simulated_state: /etc/ascend-affinity/chips/simulated.json
{{- if .dynamicVnpus }}
simulated_cuts: /var/lib/ascend-affinity/cuts/simulated.json
{{- end }}
{{- else }}
link_tool: {{ .driver.dcmi.hostPath }}/tools/hccn_tool
die_policy: {{ .driver.dcmi.diePolicy }}
{{- if .driver.dcmi.library }}
dcmi_library: {{ .driver.dcmi.library }}
{{- end }}
{{- end }}
readmission: {{ .health.readmission }}
faults_in_use: {{ .health.faultsInUse }}
taint_from: {{ .health.taint.from | quote }}
taint_effect: {{ .health.taint.effect }}
choose_chips: {{ .chooseChips }}
dynamic_vnpus: {{ .dynamicVnpus }}
device_root: {{ .deviceRoot }}
cdi_dir: {{ .cdiDir }}
{{- with .hangDetection }}
hang_detection: {{ .enabled }}
hang_minutes: {{ .minutes }}
{{- end }}
{{- with .hotReset }}
hot_reset: {{ .mode | quote }}
hot_reset_idle_s: {{ .idleSeconds }}
hot_resets_per_hour: {{ .perHour }}
{{- end }}
{{- with .jobFiles }}
job_files: {{ .enabled }}
{{- if .enabled }}
reset_config_dir: {{ .resetConfigDir }}
data_trace_dir: {{ .dataTraceDir }}
{{- end }}
{{- end }}
telemetry: {{ .telemetry.enabled }}
device_plugin_dir: {{ .kubelet.devicePluginDir }}
pod_resources_socket: {{ .kubelet.rootDir }}/pod-resources/kubelet.sock
plugins_registry_dir: {{ .kubelet.rootDir }}/plugins_registry
kubelet_cert_dir: {{ .kubelet.certDir }}
{{- with .kubelet.caFile }}
kubelet_ca_file: {{ . }}
{{- end }}
kubelet_insecure_skip_tls_verify: {{ .kubelet.insecureSkipTLSVerify }}
# On all addresses: the kubelet probes the pod's address, which may be an IPv6 one.
http_address: ":{{ .httpPort }}"
{{- end }}
{{- end }}

{{/* The name of the Secret with the allocator's certificate. */}}
{{- define "ascend-affinity.tlsSecretName" -}}
{{- $made := printf "%s-tls" (include "ascend-affinity.componentName" (list . "allocator")) }}
{{- ternary .Values.allocator.tls.secretName $made (eq .Values.allocator.tls.source "secret") }}
{{- end }}

{{/* The name in the allocator's certificate that the API server and kube-scheduler verify. */}}
{{- define "ascend-affinity.serverName" -}}
{{- printf "%s.%s.svc" (include "ascend-affinity.componentName" (list . "allocator")) .Release.Namespace }}
{{- end }}

{{/*
The Secret with the certificate that kube-scheduler presents, and the name in it. The chart, or cert-manager, makes it; with
tls.source=secret it is yours.
*/}}
{{- define "ascend-affinity.schedulerSecretName" -}}
{{- printf "%s-scheduler" (include "ascend-affinity.componentName" (list . "allocator")) }}
{{- end }}
{{- define "ascend-affinity.schedulerName" -}}
{{- printf "%s.%s" (include "ascend-affinity.schedulerSecretName" .) .Release.Namespace }}
{{- end }}

{{/* The names of the allowed clients; JSON. None: certificates are not asked for. */}}
{{- define "ascend-affinity.clientNames" -}}
{{- $made := ternary list (list (include "ascend-affinity.schedulerName" .)) (eq .Values.allocator.tls.source "secret") }}
{{- concat $made .Values.allocator.tls.clientNames | toJson }}
{{- end }}

{{/* The Secret whose ca.crt verifies clients. */}}
{{- define "ascend-affinity.clientAuthoritySecret" -}}
{{- if eq .Values.allocator.tls.source "secret" }}
{{- .Values.allocator.tls.secretName }}
{{- else }}
{{- include "ascend-affinity.schedulerSecretName" . }}
{{- end }}
{{- end }}

{{/* The schedulers whose pods the allocator places, with the chart's own; JSON. */}}
{{- define "ascend-affinity.schedulerNames" -}}
{{- concat .Values.allocator.schedulerNames (ternary (list .Values.scheduler.name) list .Values.scheduler.enabled) | uniq | toJson }}
{{- end }}

{{/* The image of the chart's kube-scheduler: by default of the cluster's version, without what distributions append to it. */}}
{{- define "ascend-affinity.schedulerImage" -}}
{{- with .Values.scheduler.image }}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository (default (regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" $.Capabilities.KubeVersion.Version) .tag) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The Secret with the certificate that the chart's kube-scheduler presents; empty if it presents none. */}}
{{- define "ascend-affinity.clientSecretName" -}}
{{- if eq .Values.allocator.tls.source "secret" }}
{{- .Values.scheduler.certificateSecretName }}
{{- else }}
{{- include "ascend-affinity.schedulerSecretName" . }}
{{- end }}
{{- end }}

{{/*
The configuration of the chart's kube-scheduler: that of kube-scheduler.yaml, with a name and a Lease of its own. YAML. Pods
resolve the name of the Service, unless its address is given.
*/}}
{{- define "ascend-affinity.schedulerConfiguration" -}}
{{- $configuration := .Files.Get "kube-scheduler.yaml" | fromYaml }}
{{- $_ := unset $configuration.clientConnection "kubeconfig" }}
{{- $lease := include "ascend-affinity.componentName" (list . "scheduler") }}
{{- $_ := set $configuration "leaderElection" (dict "leaderElect" true "resourceLock" "leases" "resourceName" $lease "resourceNamespace" .Release.Namespace) }}
{{- $_ := set $configuration "profiles" (list (dict "schedulerName" .Values.scheduler.name)) }}
{{- $extender := first $configuration.extenders }}
{{- $host := default (include "ascend-affinity.serverName" .) .Values.allocator.service.clusterIP }}
{{- if contains ":" $host }}{{ $host = printf "[%s]" $host }}{{ end }}
{{- $_ := set $extender "urlPrefix" (printf "https://%s:%v/scheduler" $host .Values.allocator.service.port) }}
{{- $tls := dict "serverName" (include "ascend-affinity.serverName" .) "caFile" "/etc/kubernetes/ascend-affinity/ca.crt" }}
{{- if include "ascend-affinity.clientSecretName" . }}
{{- $tls = merge $tls (pick $extender.tlsConfig "certFile" "keyFile") }}
{{- end }}
{{- if .Values.allocator.tls.insecureAnyoneMayBindPods }}
{{- $_ := set $extender "httpTimeout" "60s" }}
{{- end }}
{{- $_ := set $extender "tlsConfig" $tls }}
{{- toYaml $configuration }}
{{- end }}

{{/* The webhooks that are served; with commas. */}}
{{- define "ascend-affinity.webhooks" -}}
{{- $schedulers := ternary (list "schedulers") list .Values.scheduler.enabled }}
{{- with .Values.allocator }}
{{- concat (ternary (list "bindings") list .webhooks.bindings.enabled) (ternary (list "pods") list .webhooks.pods.enabled) (ternary (list "gates") list (eq .nominate "gated")) $schedulers (ternary (list "explanations") list .webhooks.explanations.enabled) | join "," }}
{{- end }}
{{- end }}

{{/*
The content of a Secret with a generated certificate; takes (list $ name-of-the-secret names-in-it addresses-in-it). JSON of
base64 texts. Each has a CA of its own, whose key is not kept. It is made once per rendering for all templates that need it.
An existing one is taken from the cluster, because an upgrade must not change what kube-scheduler trusts or presents.
*/}}
{{- define "ascend-affinity.generated" -}}
{{- $root := index . 0 }}
{{- $secret := index . 1 }}
{{- $names := index . 2 }}
{{- $tls := $root.Values.allocator.tls }}
{{- if not (hasKey $tls "made") }}{{ $_ := set $tls "made" dict }}{{ end }}
{{- if not (hasKey $tls.made $secret) }}
{{- $found := lookup "v1" "Secret" $root.Release.Namespace $secret }}
{{- if $found }}
{{- $_ := set $tls.made $secret $found.data }}
{{- else }}
{{- if not (or $tls.ephemeral (lookup "v1" "Service" "default" "kubernetes")) }}
{{- fail "allocator.tls.source=generated needs a cluster: rendered without one (GitOps, helm template), every rendering would have another CA, and kube-scheduler would no longer trust the allocator. Use cert-manager or secret, or set allocator.tls.ephemeral=true only to look at the objects" }}
{{- end }}
{{- $days := 730 }}
{{- $authority := genCAWithKey (printf "%s-authority" $secret) $days (genPrivateKey "ecdsa") }}
{{- $pair := genSignedCertWithKey (first $names) (index . 3) $names $days $authority (genPrivateKey "ecdsa") }}
{{- $_ := set $tls.made $secret (dict "ca.crt" (b64enc $authority.Cert) "tls.crt" (b64enc $pair.Cert) "tls.key" (b64enc $pair.Key)) }}
{{- end }}
{{- end }}
{{- toJson (index $tls.made $secret) }}
{{- end }}

{{/* The generated certificate of the allocator; JSON. */}}
{{- define "ascend-affinity.certificate" -}}
{{- $name := include "ascend-affinity.serverName" . }}
{{- $names := list $name (trimSuffix ".svc" $name) (printf "%s.cluster.local" $name) "localhost" }}
{{- include "ascend-affinity.generated" (list . (include "ascend-affinity.tlsSecretName" .) $names (list "127.0.0.1")) }}
{{- end }}

{{/* The CA with which the API server verifies the allocator's certificate; base64, empty if cert-manager injects it. */}}
{{- define "ascend-affinity.caBundle" -}}
{{- if eq .Values.allocator.tls.source "generated" }}
{{- index (include "ascend-affinity.certificate" . | fromJson) "ca.crt" }}
{{- else }}
{{- .Values.allocator.tls.caBundle }}
{{- end }}
{{- end }}

{{/* Annotations of the webhooks; takes the root. With cert-manager, which injects the CA of its certificate. */}}
{{- define "ascend-affinity.webhookAnnotations" -}}
{{- $made := dict }}
{{- if eq .Values.allocator.tls.source "cert-manager" }}
{{- $_ := set $made "cert-manager.io/inject-ca-from" (printf "%s/%s" .Release.Namespace (include "ascend-affinity.tlsSecretName" .)) }}
{{- end }}
{{- with merge (deepCopy .Values.allocator.webhooks.annotations) $made }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The user name of a program at the API server; takes (list $ component). */}}
{{- define "ascend-affinity.user" -}}
{{- printf "system:serviceaccount:%s:%s" (index . 0).Release.Namespace (include "ascend-affinity.serviceAccountName" .) }}
{{- end }}

{{/* The label of namespaces in which the webhook for Bindings is called. */}}
{{- define "ascend-affinity.bindingLabel" -}}
ascend-affinity.io/bindings
{{- end }}

{{/* The label of namespaces whose pods get the chart's kube-scheduler. */}}
{{- define "ascend-affinity.schedulerLabel" -}}
ascend-affinity.io/scheduler
{{- end }}

{{/* Whether a pod requests chips, vNPUs or AI cores; CEL. */}}
{{- define "ascend-affinity.requestsChips" -}}
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c, has(c.resources) && ((has(c.resources.limits) && c.resources.limits.exists(name, name == "huawei.com/Ascend910" || name == "huawei.com/npu-core" || name.startsWith("huawei.com/Ascend910-"))) || (has(c.resources.requests) && c.resources.requests.exists(name, name == "huawei.com/Ascend910" || name == "huawei.com/npu-core" || name.startsWith("huawei.com/Ascend910-")))))
{{- end }}

{{/* Whether the cluster has admission policies. */}}
{{- define "ascend-affinity.supportsPolicies" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}yes{{ end }}
{{- end }}

{{/* Whether the allocator's admission policies are installed: enabled in the values, and supported by the cluster. */}}
{{- define "ascend-affinity.hasPolicies" -}}
{{- if and .Values.allocator.enabled .Values.allocator.policies.enabled (include "ascend-affinity.supportsPolicies" .) }}yes{{ end }}
{{- end }}

{{/* The peers of a rule of a NetworkPolicy; takes what the value says: a list, or a word for all. */}}
{{- define "ascend-affinity.peers" -}}
{{- if kindIs "slice" . }}
from:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A pod to try the installation with; takes (list $ name resource number). JSON. */}}
{{- define "ascend-affinity.examplePod" -}}
{{- $command := list "sh" "-c" "echo chips: $ASCEND_AFFINITY_CHIPS; sleep 3600" }}
{{- $container := dict "name" "main" "image" "busybox:1.36" "command" $command "resources" (dict "limits" (dict (index . 2) (index . 3))) }}
{{- $spec := dict "restartPolicy" "Never" "terminationGracePeriodSeconds" 0 "containers" (list $container) }}
{{- with (index . 0).Values.scheduler }}
{{- if .enabled }}{{ $_ := set $spec "schedulerName" .name }}{{ end }}
{{- end }}
{{- dict "apiVersion" "v1" "kind" "Pod" "metadata" (dict "name" (index . 1)) "spec" $spec | toJson }}
{{- end }}
