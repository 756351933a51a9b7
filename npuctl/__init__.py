"""The command line for operators, also installed as ``kubectl npu``."""
