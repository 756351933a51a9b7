"""A real Kubernetes cluster on one machine: etcd, kube-apiserver, kube-scheduler, and kubelets with real containers."""
