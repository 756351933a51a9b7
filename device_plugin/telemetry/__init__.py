"""What the chips do and who uses them, as metrics with the names of MindCluster's npu-exporter. Off by default."""
