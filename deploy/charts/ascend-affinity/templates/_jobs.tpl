{{/* The rules by which the objects of jobs are watched: by the allocator, and by the page of the cluster. */}}
{{- define "ascend-affinity.jobRules" }}
  # The desired number of pods, before all of them exist.
  - apiGroups: [apps]
    resources: [statefulsets]
    verbs: [list, watch]
  - apiGroups: [batch]
    resources: [jobs]
    verbs: [list, watch]
  # The network of the nodes, for jobs with a network topology, if the cluster has Volcano's HyperNodes.
  - apiGroups: [topology.volcano.sh]
    resources: [hypernodes]
    verbs: [list, watch]
  # The number, the minimum and the settings of jobs whose operators are installed, if the cluster has them.
  # <!-- watched-jobs -->
  - apiGroups: [scheduling.k8s.io]
    resources: [podgroups]
    verbs: [list, watch]
  - apiGroups: [scheduling.volcano.sh]
    resources: [podgroups]
    verbs: [list, watch]
  - apiGroups: [scheduling.x-k8s.io]
    resources: [podgroups]
    verbs: [list, watch]
  - apiGroups: [leaderworkerset.x-k8s.io]
    resources: [leaderworkersets]
    verbs: [list, watch]
  - apiGroups: [mindxdl.gitee.com]
    resources: [ascendjobs]
    verbs: [list, watch]
  - apiGroups: [kubeflow.org]
    resources: [pytorchjobs, tfjobs, mpijobs, paddlejobs]
    verbs: [list, watch]
  - apiGroups: [jobset.x-k8s.io]
    resources: [jobsets]
    verbs: [list, watch]
  - apiGroups: [ray.io]
    resources: [rayclusters]
    verbs: [list, watch]
  - apiGroups: [workload.serving.volcano.sh]
    resources: [modelservings]
    verbs: [list, watch]
  - apiGroups: [orchestration.aibrix.ai]
    resources: [stormservices]
    verbs: [list, watch]
  - apiGroups: [batch.volcano.sh]
    resources: [jobs]
    verbs: [list, watch]
  # <!-- /watched-jobs -->
  {{- range .Values.allocator.jobKinds }}
  - apiGroups: [{{ splitList "/" .apiVersion | first }}]
    resources: [{{ .plural }}]
    verbs: [list, watch]  # {{ .kind }}
  {{- end }}
{{- end }}
