"""The API with which plugins tell the kubelet's plugin watcher what they are."""
