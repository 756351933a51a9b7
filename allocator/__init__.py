"""The allocator: chooses node and chips for pods, and binds the pods with their chips written on them.

* ``watch``: informers feed objects of the API server into ``state``.
* ``state``: for each node the chips it reports, their health and who holds them; the jobs; and the ledger, which
  reserves chips that are assigned but not yet seen on a pod.
* ``rules``: pure functions that judge what is left of a node for a request. ``gangs`` places the pods of a job
  together.
* ``decision``: turns the verdicts into an answer and reserves its chips. ``binding`` writes the decision on the pod in
  the Binding itself.
* ``serving``: how schedulers call it: over HTTP (``serving.extender``, ``serving.webhook``) or gRPC
  (``serving.grpc_api``). ``observe`` records decisions.
* ``leadership``: of several allocators one answers, and only once its informers have synced.

``app`` puts everything together. Nothing is stored: after a restart the state is rebuilt from the API server.
"""
