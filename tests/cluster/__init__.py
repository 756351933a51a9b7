"""A real Kubernetes on this one machine: etcd, kube-apiserver, kube-scheduler, and kubelets with real containers."""
