"""Stand-ins for the programs of MindCluster: what was seen of the real ones, with their defects and at their pace."""
