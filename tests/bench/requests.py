"""The requests of a user to the API server, from its audit log."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class AuditLog:
    """An audit log that is being written.

    Attributes:
        path: one JSON object a line, with stages ResponseStarted (watches) and ResponseComplete.
    """

    path: Path

    @property
    def end(self) -> int:
        """The position of the next line."""
        return self.path.stat().st_size if self.path.exists() else 0

    def since(self, position: int) -> Counter[str]:
        """Count requests after a position by verb and resource; a watch that started before it is not counted."""
        known: set[str] = set()
        found: Counter[str] = Counter()
        with self.path.open("rb") as file:
            before, after = file.read(position), file.read()
        known.update(json.loads(line)["auditID"] for line in before.splitlines())
        for line in after.splitlines():
            event = json.loads(line)
            if event["auditID"] not in known:
                known.add(event["auditID"])
                found[f"{event['verb']} {event.get('objectRef', {}).get('resource', event['requestURI'])}"] += 1
        return found
