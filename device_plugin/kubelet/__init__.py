"""The kubelet's side: registration, the device-plugin service, and what the kubelet can be asked."""
