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

{{/* What follows takes (list $ "device-plugin") or (list $ "allocator"). */}}

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
{{- end }}

{{- define "ascend-affinity.serviceAccountName" -}}
{{- $root := index . 0 }}
{{- $values := ternary $root.Values.devicePlugin $root.Values.allocator (eq (index . 1) "device-plugin") }}
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

{{/* The right by which the device plugin lists its kubelet's pods: a subresource of nodes. */}}
{{- define "ascend-affinity.kubeletSubresource" -}}
{{- $wanted := .Values.devicePlugin.kubelet.authorization }}
{{- if eq $wanted "auto" }}
{{- $wanted = ternary "pods" "proxy" (semverCompare ">=1.33.0-0" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- printf "nodes/%s" $wanted }}
{{- end }}

{{/* The device plugin's settings that only a restart applies. */}}
{{- define "ascend-affinity.pluginFixedSettings" -}}
{{- with .Values.devicePlugin }}
driver: {{ .driver.type }}
{{- if eq .driver.type "simulated" }}
simulated_state: /etc/ascend-affinity/chips/simulated.json
{{- else if .driver.dcmi.library }}
dcmi_library: {{ .driver.dcmi.library }}
{{- end }}
readmission: {{ .health.readmission }}
device_root: {{ .deviceRoot }}
cdi_dir: {{ .cdiDir }}
device_plugin_dir: {{ .kubelet.devicePluginDir }}
pod_resources_socket: {{ .kubelet.rootDir }}/pod-resources/kubelet.sock
{{- with .kubelet.caFile }}
kubelet_ca_file: {{ . }}
{{- end }}
http_address: 0.0.0.0:{{ .httpPort }}
{{- end }}
{{- end }}
