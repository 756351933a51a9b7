"""API discovery: the server version, the API groups, and the resources of each group."""

from sandbox.apiserver.resources import Catalogue, Json, ServedResource

VERSION: Json = {
    "major": "1",
    "minor": "34",
    "gitVersion": "v1.34.4",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}


def api_versions(address: str) -> Json:
    """Return the document of `/api`."""
    by_client = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": by_client}


def _group(api_version: str) -> Json:
    name, _, version = api_version.rpartition("/")
    known = {"groupVersion": api_version, "version": version}
    return {"name": name, "versions": [known], "preferredVersion": known}


def group_list(catalogue: Catalogue) -> Json:
    """Return the document of `/apis`."""
    groups = [_group(version) for version in catalogue.api_versions if "/" in version]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(catalogue: Catalogue, name: str) -> Json | None:
    """Return the document of `/apis/<group>`; None for an unknown group."""
    for version in catalogue.api_versions:
        if version.startswith(f"{name}/"):
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(version)}
    return None


def resource_list(catalogue: Catalogue, api_version: str) -> Json:
    """Return the document of `/api/v1` or `/apis/<group>/<version>`."""
    rows = [row for resource in catalogue.of(api_version) for row in _rows(resource)]
    rows.sort(key=lambda row: str(row["name"]))
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": rows}


def _rows(resource: ServedResource) -> list[Json]:
    main: Json = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        main["shortNames"] = list(resource.short_names)
    below = [
        {
            "name": f"{resource.plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": "Binding" if name == "binding" else resource.kind,
            "verbs": list(verbs),
        }
        for name, verbs in resource.subresources.items()
    ]
    return [main, *below]
