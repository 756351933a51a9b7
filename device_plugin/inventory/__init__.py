"""The command ``ascend-device-plugin inventory``: one scan of the driver, without Kubernetes."""
