"""Which chips a pod gets, on which node: the allocator.

Three reflectors (``view``) feed the cluster as the API server knows it into ``state``: per node the chips it reports,
their health and who holds them; the ledger adds what was decided but can't be seen yet. ``rules`` judges what is left
of a node for a request, ``decide`` turns the verdicts into an answer and reserves it, ``commit`` writes the decision
onto the pod in the Binding itself. A scheduler reaches it over HTTP (``serving.extender``) or gRPC
(``serving.grpc_api``); ``app`` puts everything together. Nothing is stored: after a restart the view is rebuilt, and
nothing is answered before it is complete.
"""
