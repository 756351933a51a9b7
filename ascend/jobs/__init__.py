"""The kinds of jobs, a module each: the marks of the pods, the reading of the object, and the pods of its controller.

``ascend.jobs.table`` has them in the order in which a pod is tried.
"""
