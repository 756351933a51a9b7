"""Leaf switches: the choice of a job's servers, so that its pods communicate through few switches.

docs/spec/switch-affinity.md. ``ascend/leaf_switches.py`` reads which servers each switch has; ``rooms.py`` says what a
job sees of a switch; ``v1.py`` (also for a single layer) and ``v2.py`` are the rules, ``replacing.py`` says where some
pods of a job go whose others stay, and to which switches they may return. All of it are pure functions:
``allocator/state/switches.py`` feeds them, and the policy ``allocator/gangs/switch_affinity.py`` asks them.
"""
